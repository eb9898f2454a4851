#pragma once
// What a program ends with after an exception.

#include <paceline/error.h>

#include <exception>

namespace paceline {

constexpr int kExitFailure = 1;  // the run failed
constexpr int kExitMistake = 2;  // what was asked for can never work, or not in this build or on this machine

// kExitMistake for InvalidArgument and NotAvailable, else kExitFailure.
inline int exit_code_of(const std::exception& error) {
  const bool mistake = dynamic_cast<const InvalidArgument*>(&error) || dynamic_cast<const NotAvailable*>(&error);
  return mistake ? kExitMistake : kExitFailure;
}

}  // namespace paceline
