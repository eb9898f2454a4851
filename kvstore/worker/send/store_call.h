#pragma once
// The common part of calls of dense keys (Transfer) and of tables (RowTransfer): the route of messages, the number of
// unanswered messages, and the end of the call.

#include <paceline/engine.h>
#include <paceline/mutex.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "placement.h"
#include "send/outbox.h"

namespace paceline {

class Answers;

// Runs actions when the last reference to this object is released. The actions get the first error of a push of this
// step or an earlier one, or null if no push has failed.
class Delivery {
 public:
  using Action = std::function<void(const std::exception_ptr&)>;

  // `failed`, unless it is null, notes each error at once. It must outlive this object.
  explicit Delivery(Answers* failed = nullptr) : failed_(failed) {}
  ~Delivery();
  void then(Action action);
  void fail(const std::exception_ptr& error);

 private:
  Answers* const failed_;
  Mutex mutex_;
  std::vector<Action> actions_ PACELINE_GUARDED_BY(mutex_);
  std::exception_ptr error_ PACELINE_GUARDED_BY(mutex_);
};

// A step of this worker. Pushes hold references to it, so it ends when the last push was answered.
class Step {
 public:
  // `failed` is as in Delivery.
  Step(std::uint64_t number, std::function<void(std::uint64_t)> on_end, Answers* failed = nullptr)
      : number_(number), on_end_(std::move(on_end)), delivery_(std::make_shared<Delivery>(failed)) {}
  ~Step();
  std::uint64_t number() const { return number_; }
  // No further pushes belong to the step. The step ends no later than `next`.
  void close(std::shared_ptr<Step> next);
  // Drops `on_end`, because a step of another number replaces this one.
  void cancel() { on_end_ = nullptr; }
  // The step holds its delivery. Second rounds of the step's pushes hold it too, and may go on after the step's end
  // (TwoRoundPush).
  const std::shared_ptr<Delivery>& delivery() const { return delivery_; }

 private:
  const std::uint64_t number_;
  std::function<void(std::uint64_t)> on_end_;
  std::shared_ptr<Delivery> delivery_;
  std::shared_ptr<Step> next_;
};

// Counts calls in flight. A thread can wait until there are few, or none.
class Pending {
 public:
  void add();
  void remove();
  void wait_none() { wait_until(0); }
  // Blocks until at most `most` calls are in flight.
  void wait_until(int most);
  // If calls are in flight, the seconds since a call last began or ended; else 0.
  double seconds_waiting();

 private:
  Mutex mutex_;
  CondVar fewer_;
  int count_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::chrono::steady_clock::time_point changed_ PACELINE_GUARDED_BY(mutex_);
};

// Counts the answers that are still missing, and keeps the first error that was noted. Thread-safe.
class Answers {
 public:
  // Call before the messages are sent. A negative number takes back messages that could not be sent.
  void expect(int messages) { left_ += messages; }
  // Counts an answer that has come, or that will never come. Returns true for the last one.
  bool count() { return left_.fetch_sub(1) == 1; }
  void note(const std::exception_ptr& error);
  std::exception_ptr error();

 private:
  std::atomic<int> left_{0};
  Mutex mutex_;
  std::exception_ptr error_ PACELINE_GUARDED_BY(mutex_);
};

// Throws if a push whose data was committed has failed.
void require_delivered(Answers& failed);

// One call of push, pull or push_pull in flight. If the mode may hold pulls back, the pulls are sent when the pushes
// are answered.
class StoreCall {
 public:
  struct Route {
    std::vector<std::unique_ptr<Outbox>>* outboxes;       // one for each server
    std::vector<std::unique_ptr<Coalescer>>* coalescers;  // in front of the outboxes
    std::shared_ptr<const Placement> placement;
    std::shared_ptr<Pending> pending;
    std::atomic<std::int64_t>* waited_microseconds;
    bool pulls_wait = false;  // the mode may hold pulls back, so they are sent in separate messages after the pushes
    bool copies = false;      // servers may read a gradient after their answer, so the worker copies it
  };

  StoreCall(const StoreCall&) = delete;
  virtual ~StoreCall();

 protected:
  // Holds `step`, unless it is null, until the call's pushes are answered.
  StoreCall(Route route, std::shared_ptr<Step> step, std::int64_t examples, int priority);

  // The number of the step; 0 if there is none.
  std::uint64_t round() const { return step_ ? step_->number() : 0; }
  // Notes the error of a message that may hold pushes. The data that the step's gradients were computed from then does
  // not count as delivered. Call this before finish_message() for the message, while the call holds the step.
  void fail(const std::exception_ptr& error);
  // Records for how long a server held a pull back.
  void note_wait(std::uint64_t microseconds);
  // Counts a message that is answered or lost. After the last one, sends the remaining pulls or ends the call.
  void finish_message();

  // Sends messages. If sending fails, the call ends with the error after all messages that were sent are answered.
  void send(bool pushes, bool pulls);
  // Makes and submits the messages, each counted by expecting().
  virtual void send_messages(bool pushes, bool pulls) = 0;
  // Counts messages that `submit` sends. If `submit` throws, they do not count.
  template <class Submit>
  void expecting(int messages, Submit submit) {
    answers_.expect(messages);
    try {
      submit();
    } catch (...) {
      answers_.expect(-messages);
      throw;
    }
  }
  // Releases the arrays of the call, after the call has completed.
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
