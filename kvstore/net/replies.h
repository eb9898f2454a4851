#pragma once
// Answers to requests.

#include <paceline/error.h>

#include <google/protobuf/message_lite.h>

#include <utility>
#include <vector>

#include "node.h"

namespace paceline {

inline void reply(const Request& request, const google::protobuf::MessageLite& body, std::vector<Frame> payload = {}) {
  Message message;
  message.body = body.SerializeAsString();
  message.payload = std::move(payload);
  request.reply(std::move(message));
}

// Runs `work`. If `work` throws an Error, refuses the request with this Error.
template <class Work>
void answer_or_refuse(const Request& request, Work work) {
  try {
    work();
  } catch (const Error& error) {
    request.refuse(error);
  }
}

}  // namespace paceline
