#pragma once
// What the programs of Paceline end with: 0 for success, and one rule for errors.

#include <paceline/error.h>

#include <exception>

namespace paceline {

constexpr int kExitFailure = 1;  // the run failed
constexpr int kExitMistake = 2;  // what was asked for can never work, or not in this build or on this machine

inline int exit_code_of(const std::exception& error) {
  const bool mistake = dynamic_cast<const InvalidArgument*>(&error) || dynamic_cast<const NotAvailable*>(&error);
  return mistake ? kExitMistake : kExitFailure;
}

}  // namespace paceline
