#pragma once
// Lets the array check, in builds with assertions, that a task touches only what it declared. Not installed.

#include <paceline/engine.h>

namespace paceline::detail {

// On a thread that runs a task which declared neither to read nor to write `variable`, the task's name; else null.
const char* task_that_did_not_declare(const Variable& variable);

}  // namespace paceline::detail
