#include "served_call.h"

#include <paceline/error.h>

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
  try {
    if (reason) std::rethrow_exception(reason);
    request.reply(answer());
  } catch (const std::exception& refusal) {
    request.refuse(refusal);
  }
}

std::shared_ptr<const Codec> PushPullCall::codec(std::uint32_t number) const {
  if (number > codecs.size()) throw Corrupt(str("codec ", number, " of ", codecs.size()));
  return number == 0 ? nullptr : codecs[number - 1];
}

Message PushPullCall::answer() {
  wire::PushPullReply reply;
  reply.set_refused(refused);
  reply.set_waited_microseconds(static_cast<std::uint64_t>(waited_microseconds.load()));
  Message message;
  for (Part& part : parts) {
    reply.mutable_versions()->Add(part.versions.begin(), part.versions.end());
    reply.mutable_pull_bytes()->Add(part.encoded_bytes.begin(), part.encoded_bytes.end());
    for (Frame& frame : part.payload.finish()) message.payload.push_back(std::move(frame));
  }
  message.body = reply.SerializeAsString();
  return message;
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
