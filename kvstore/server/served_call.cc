#include "served_call.h"

#include <utility>

namespace paceline {

void ServedCall::fail(std::exception_ptr reason) {
  const Lock lock(mutex_);
  if (!error_) error_ = std::move(reason);
}

void ServedCall::finish_part() {
  if (parts_left.fetch_sub(1) != 1) return;
  std::exception_ptr reason;
  {
    const Lock lock(mutex_);
    reason = error_;
  }
  if (!reason) return request.reply(answer());
  try {
    std::rethrow_exception(reason);
  } catch (const std::exception& refusal) {
    request.refuse(refusal);
  }
}

void PullGate::finish(ServedCall& call, WorkerClocks::Time since, bool held, std::uint64_t need) {
  const auto now = std::chrono::steady_clock::now();
  if (held) {
    waits_.release(call.worker(), since, now);
    clocks_.released(call.worker(), need, since, now);
  }
  const std::int64_t waited = std::chrono::duration_cast<std::chrono::microseconds>(now - since).count();
  std::int64_t longest = call.waited_microseconds;
  while (waited > longest && !call.waited_microseconds.compare_exchange_weak(longest, waited)) {
  }
  call.finish_part();
}

}  // namespace paceline
