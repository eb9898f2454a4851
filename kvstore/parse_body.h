#pragma once
#include <paceline/error.h>

#include "message.h"

namespace paceline {

// The body of a message; throws Corrupt where it is not a `Body`.
template <class Body>
Body parse_body(const Message& message) {
  Body body;
  if (!body.ParseFromString(message.body)) throw Corrupt("the body of a message cannot be parsed");
  return body;
}

}  // namespace paceline
