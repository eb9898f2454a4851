#include "send/store_call.h"

#include <paceline/error.h>

#include <utility>

namespace paceline {

Delivery::~Delivery() {
  std::vector<Action> actions;
  std::exception_ptr error;
  {
    Lock lock(mutex_);
    actions.swap(actions_);
    error = error_;
  }
  for (const Action& action : actions) action(error);
}

void Delivery::then(Action action) {
  Lock lock(mutex_);
  actions_.push_back(std::move(action));
}

void Delivery::fail(const std::exception_ptr& error) {
  if (failed_) failed_->note(error);
  Lock lock(mutex_);
  if (!error_) error_ = error;
}

Step::~Step() {
  if (on_end_) on_end_(number_);
  delivery_.reset();
}

void Step::close(std::shared_ptr<Step> next) {
  // Keeps the next delivery until all actions of this one have run.
  delivery_->then([later = next->delivery()](const std::exception_ptr& error) {
    if (error) later->fail(error);
  });
  next_ = std::move(next);
}

void Pending::add() {
  Lock lock(mutex_);
  ++count_;
  changed_ = std::chrono::steady_clock::now();
}

void Pending::remove() {
  Lock lock(mutex_);
  changed_ = std::chrono::steady_clock::now();
  --count_;
  fewer_.notify_all();
}

double Pending::seconds_waiting() {
  Lock lock(mutex_);
  return count_ == 0 ? 0 : std::chrono::duration<double>(std::chrono::steady_clock::now() - changed_).count();
}

void Pending::wait_until(int most) {
  Lock lock(mutex_);
  fewer_.wait(mutex_, [this, most]() PACELINE_REQUIRES(mutex_) { return count_ <= most; });
}

void Answers::note(const std::exception_ptr& error) {
  Lock lock(mutex_);
  if (!error_) error_ = error;
}

std::exception_ptr Answers::error() {
  Lock lock(mutex_);
  return error_;
}

void require_delivered(Answers& failed) {
  const std::exception_ptr error = failed.error();
  if (!error) return;
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& failure) {
    throw Error(str("a push failed, and its data does not count as delivered; others get the data when this worker ",
                    "has ended: ", failure.what()));
  }
}

StoreCall::StoreCall(Route route, std::shared_ptr<Step> step, std::int64_t examples, int priority)
    : route_(std::move(route)), step_(std::move(step)), examples_(examples), priority_(priority) {
  route_.pending->add();
}

StoreCall::~StoreCall() {
  if (step_) fail(std::make_exception_ptr(Error("a gradient was not pushed: what it is computed from has failed")));
  step_.reset();
  route_.pending->remove();
}

void StoreCall::fail(const std::exception_ptr& error) {
  answers_.note(error);
  if (step_) step_->delivery()->fail(error);
}

void StoreCall::note_wait(std::uint64_t microseconds) {
  std::uint64_t longest = longest_wait_;
  while (microseconds > longest && !longest_wait_.compare_exchange_weak(longest, microseconds)) {
  }
}

void StoreCall::send(bool pushes, bool pulls) {
  // Expects one answer more than there are messages, because the first answers may come while the other messages are
  // made.
  answers_.expect(1);
  try {
    send_messages(pushes, pulls);
  } catch (...) {
    fail(std::current_exception());
  }
  finish_message();
}

void StoreCall::finish_message() {
  if (!answers_.count()) return;
  std::exception_ptr error = answers_.error();
  if (!error && std::exchange(pulls_left_, false)) {
    step_.reset();  // the pushes are answered, so the step may end while the pulls wait
    return send(false, true);
  }
  *route_.waited_microseconds += static_cast<std::int64_t>(longest_wait_.load());
  step_.reset();
  std::optional<Completion> completion = std::move(completion_);
  completion_.reset();
  if (error)
    completion->fail(std::move(error));
  else
    completion->done();
  release();
}

}  // namespace paceline
