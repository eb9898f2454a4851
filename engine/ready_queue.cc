#include "ready_queue.h"

#include "task.h"

#include <algorithm>

namespace paceline::detail {

void ReadyQueue::add(Task* task) {
  const Entry entry{task->info.priority, task->id, task};
  if (entry.priority == 0 && (ring_size_ == 0 || entry.id > ring_last_id_)) {
    if (ring_size_ == ring_.size()) grow();
    ring_[(ring_first_ + ring_size_++) & (ring_.size() - 1)] = entry;
    ring_last_id_ = entry.id;
  } else {
    heap_.push_back(entry);
    std::push_heap(heap_.begin(), heap_.end());
  }
}

Task* ReadyQueue::take() {
  if (heap_.empty() || (ring_size_ > 0 && heap_.front() < ring_[ring_first_])) {
    Task* task = ring_[ring_first_].task;
    ring_first_ = (ring_first_ + 1) & (ring_.size() - 1);
    --ring_size_;
    return task;
  }
  std::pop_heap(heap_.begin(), heap_.end());
  Task* task = heap_.back().task;
  heap_.pop_back();
  return task;
}

void ReadyQueue::grow() {
  std::vector<Entry> larger(2 * ring_.size());
  for (std::size_t i = 0; i < ring_size_; ++i) larger[i] = ring_[(ring_first_ + i) & (ring_.size() - 1)];
  ring_.swap(larger);
  ring_first_ = 0;
}

}  // namespace paceline::detail
