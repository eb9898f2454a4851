#pragma once
// The observers of one engine. Costs one load per task while there are none.

#include <paceline/engine_observer.h>
#include <paceline/mutex.h>

#include <atomic>
#include <memory>
#include <vector>

namespace paceline::detail {

class Observers {
 public:
  bool any() const { return current_.load(std::memory_order_acquire) != nullptr; }

  void add(std::shared_ptr<EngineObserver> observer) {
    const Lock lock(mutex_);
    auto longer = lists_.empty() ? std::make_unique<List>() : std::make_unique<List>(*lists_.back());
    longer->push_back(std::move(observer));
    current_.store(longer.get(), std::memory_order_release);
    // Earlier lists stay: a thread may be walking them.
    lists_.push_back(std::move(longer));
  }

  void on_start(std::uint64_t id, const TaskInfo& info, int thread) const {
    const TaskEvent event{id, info, std::chrono::steady_clock::now(), thread, false};
    for (const auto& observer : *current_.load(std::memory_order_acquire)) observer->on_start(event);
  }
  void on_finish(std::uint64_t id, const TaskInfo& info, int thread, bool failed) const {
    const TaskEvent event{id, info, std::chrono::steady_clock::now(), thread, failed};
    for (const auto& observer : *current_.load(std::memory_order_acquire)) observer->on_finish(event);
  }

 private:
  using List = std::vector<std::shared_ptr<EngineObserver>>;

  std::atomic<const List*> current_ = nullptr;
  Mutex mutex_;
  std::vector<std::unique_ptr<List>> lists_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline::detail
