#pragma once
// What a call is refused with.

#include <paceline/error.h>

#include <string>

namespace paceline::test {

// The text of the `Refusal` that `call` throws; empty where it throws nothing. Anything else passes.
template <class Refusal = InvalidArgument, class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const Refusal& refusal) {
    return refusal.what();
  }
  return "";
}

}  // namespace paceline::test
