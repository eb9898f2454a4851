#pragma once
// Carries an error to the sender of the request that it refuses. The sender gets an Error with the same text, and of
// the same class if ErrorType in refusal.cc lists this class.

#include <exception>
#include <string>

namespace paceline {

// The body of a kRefusal. `before` comes before the text of the reason.
std::string refusal_of(const std::exception& reason, const std::string& before = {});
std::exception_ptr error_of(const std::string& refusal);  // never null

}  // namespace paceline
