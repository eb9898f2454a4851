#pragma once
// What the closure of a task finds out when it is destroyed, that is when an accelerator has done what the task issued.
// Not installed.

#include <exception>

namespace paceline::detail {

// Fails the task of an accelerator whose closure the calling thread destroys. What the task wrote is poisoned, unless a
// later task has overwritten it. Tasks of other kinds of device see that. Does nothing elsewhere.
void fail_late(std::exception_ptr failure) noexcept;

}  // namespace paceline::detail
