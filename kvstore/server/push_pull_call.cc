#include "push_pull_call.h"

#include <paceline/error.h>

namespace paceline {

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

}  // namespace paceline
