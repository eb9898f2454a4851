#pragma once
// Parses and writes the bodies of messages, which are Protocol Buffers.

#include <paceline/error.h>

#include <utility>
#include <vector>

#include "message.h"

namespace paceline {

// Parses the body of a message. Throws Corrupt if the body cannot be parsed as a `Body`.
template <class Body>
Body parse_body(const Message& message) {
  Body body;
  if (!body.ParseFromString(message.body)) throw Corrupt("the body of a message cannot be parsed");
  return body;
}

template <class Body>
Message message_of(MessageKind kind, const Body& body, std::vector<Frame> payload = {}) {
  Message message;
  message.header.kind = kind;
  message.body = body.SerializeAsString();
  message.payload = std::move(payload);
  return message;
}

}  // namespace paceline
