// What a writer waits for when readers of its variable are in the stream of an accelerator.

#include "variable.h"

#include "task.h"

#include <gtest/gtest.h>

namespace paceline::detail {
namespace {

class NoStream final : public Stream {
 public:
  void enqueue(std::function<void()>) override {}
};

class NoEvent final : public Event {
 public:
  bool reached() const override { return false; }
  void synchronize() override {}
};

class InFlightReaders : public testing::Test {
 protected:
  // A reader whose event is entered next.
  void enter(Task::Kind kind, const std::shared_ptr<Event>& event) {
    Task* task = Task::make(kind, info_, nullptr, kEngine, {&variable_, 1}, {});
    task->id = tasks_.size() + 1;
    tasks_.push_back(task);
    const SpinGuard guard(state().lock);
    state().add_in_flight(task->accesses[0], stream_, event);
  }

  void leave(std::size_t reader) {
    const SpinGuard guard(state().lock);
    state().remove_in_flight(tasks_[reader]->accesses[0]);
  }

  bool writer_waits_for(const std::shared_ptr<Event>& event) {
    const std::unique_ptr<Task, void (*)(Task*)> writer(
        Task::make(Task::Kind::kWork, info_, nullptr, kEngine, {}, {&variable_, 1}), Task::free);
    const auto events = state().events_before(writer->accesses[0], writers_stream_);
    return std::find(events.begin(), events.end(), event) != events.end();
  }

  void TearDown() override {
    for (Task* task : tasks_) Task::free(task);
  }

  const std::shared_ptr<Event> first_ = std::make_shared<NoEvent>();
  const std::shared_ptr<Event> second_ = std::make_shared<NoEvent>();

 private:
  static constexpr std::uint32_t kEngine = 1;

  VariableState& state() { return *variable_.state(); }

  const TaskInfo info_{"reader", Device("sim:0")};
  Variable variable_ = make_variable(kEngine);
  NoStream stream_, writers_stream_;
  std::vector<Task*> tasks_;
};

TEST_F(InFlightReaders, OneEventStandsForAllThatOneThreadIssues) {
  enter(Task::Kind::kWork, first_);
  enter(Task::Kind::kWork, second_);
  EXPECT_FALSE(writer_waits_for(first_));
  EXPECT_TRUE(writer_waits_for(second_));
}

// Completed on another thread, it recorded its event before `second_`, and enters it after.
TEST_F(InFlightReaders, AnAsynchronousOneDoesNotHideALaterEvent) {
  enter(Task::Kind::kWork, second_);
  enter(Task::Kind::kAsyncWork, first_);
  EXPECT_TRUE(writer_waits_for(second_));
  leave(1);
  EXPECT_TRUE(writer_waits_for(second_));
}

// Its work went into the stream after `first_` was recorded, and it entered its event first.
TEST_F(InFlightReaders, AnAsynchronousOneIsNotHidden) {
  enter(Task::Kind::kAsyncWork, second_);
  enter(Task::Kind::kWork, first_);
  EXPECT_TRUE(writer_waits_for(second_));
}

}  // namespace
}  // namespace paceline::detail
