#pragma once
// What a call of dense keys (Transfer) and one of tables (RowTransfer) have in common: where its messages go, how many
// of them are not answered, and how the call ends.

#include <paceline/engine.h>
#include <paceline/mutex.h>

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "placement.h"
#include "send/coalescer.h"
#include "send/outbox.h"

namespace paceline {

// Runs actions when the last reference to it is released.
class Delivery {
 public:
  ~Delivery();
  void then(std::function<void()> action);

 private:
  Mutex mutex_;
  std::vector<std::function<void()>> actions_ PACELINE_GUARDED_BY(mutex_);
};

// A step of this worker: pushes hold it, so that it ends when the last was answered.
class Step {
 public:
  Step(std::uint64_t number, std::function<void(std::uint64_t)> on_end) : number_(number), on_end_(std::move(on_end)) {}
  ~Step();
  std::uint64_t number() const { return number_; }
  // No more pushes belong to it. It ends no later than `next`.
  void close(std::shared_ptr<Step> next);
  // It will not end: it is replaced by one of another number.
  void cancel() { on_end_ = nullptr; }
  // Held by the step, and by what of its pushes is still to be sent when it has ended.
  const std::shared_ptr<Delivery>& delivery() const { return delivery_; }

 private:
  const std::uint64_t number_;
  std::function<void(std::uint64_t)> on_end_;
  std::shared_ptr<Delivery> delivery_ = std::make_shared<Delivery>();
  std::shared_ptr<Step> next_;
};

// Counts what is under way, for those who wait until nothing is.
class Pending {
 public:
  void add();
  void remove();
  void wait_none();

 private:
  Mutex mutex_;
  CondVar none_;
  int count_ PACELINE_GUARDED_BY(mutex_) = 0;
};

// Counts the answers that are still to come, and keeps the first error among them. Thread-safe.
class Answers {
 public:
  // Before the messages are sent; a negative number takes back messages that could not be sent.
  void expect(int messages) { left_ += messages; }
  // One answer has come, or will never come. True for the last one.
  bool count() { return left_.fetch_sub(1) == 1; }
  void note(const std::exception_ptr& error);
  std::exception_ptr error();

 private:
  std::atomic<int> left_{0};
  Mutex mutex_;
  std::exception_ptr error_ PACELINE_GUARDED_BY(mutex_);
};

// One call of push, pull or push_pull on its way. Where the mode holds pulls back, the pulls follow when the pushes are
// answered.
class StoreCall {
 public:
  struct Route {
    std::vector<std::unique_ptr<Outbox>>* outboxes;       // of each server
    std::vector<std::unique_ptr<Coalescer>>* coalescers;  // in front of them
    std::shared_ptr<const Placement> placement;
    std::shared_ptr<Pending> pending;
    std::atomic<std::int64_t>* waited_microseconds;
    bool pulls_wait = false;  // the mode may hold pulls back: they go in messages of their own, each after its pushes
    bool copies = false;      // servers may read a gradient after they have answered: it is copied
  };

  StoreCall(const StoreCall&) = delete;
  virtual ~StoreCall();

 protected:
  // Holds `step`, unless it is null, until the call's pushes are answered.
  StoreCall(Route route, std::shared_ptr<Step> step, std::int64_t examples, int priority);

  // The number of the step; 0 where there is none.
  std::uint64_t round() const { return step_ ? step_->number() : 0; }
  // A server held a pull back for so long.
  void note_wait(std::uint64_t microseconds);
  // Counts a message that is answered, or lost. The last one begins the pulls that are left, or ends the call.
  void finish_message();

  // Sends messages and counts them in `answers_`.
  virtual void send(bool pushes, bool pulls) = 0;
  // Releases the arrays of the call, once whoever waits has been told.
  virtual void release() = 0;

  const Route route_;
  std::shared_ptr<Step> step_;
  const std::int64_t examples_;
  const int priority_;
  std::optional<Completion> completion_;
  Answers answers_;
  bool pulls_left_ = false;

 private:
  std::atomic<std::uint64_t> longest_wait_{0};
};

}  // namespace paceline
