#pragma once
// Errors on the wire. The sender of the request gets an Error of the same class and text.

#include <exception>
#include <string>

namespace paceline {

std::string refusal_of(const std::exception& reason);     // body of a kRefusal
std::exception_ptr error_of(const std::string& refusal);  // never null

}  // namespace paceline
