#pragma once
// The checking build's arrays: each lies in pages of its own, which a running task may touch only as it declared.
//
//   a task that reads the array runs      its pages are read-only, for everybody
//   an engine that runs one task at a time runs one that did not declare the array      out of reach
//   the array was released                out of reach, while its pages wait to be used again
//
// An access that breaks this is noted with the task of the thread and let through, so that the task comes to its end
// and fails then. New and released memory is full of 0xff, which is NaN.

#include <paceline/detail/declared.h>

#include <cstddef>
#include <memory>
#include <string>

namespace paceline::detail {

// Memory of an array, watched until the holder lets go. Throws OutOfMemory.
std::shared_ptr<void> allocate_guarded(Engine& engine, const Variable& variable, std::size_t bytes);

// What messages say about the guarded array at `memory` from now on: its number among all, and this.
void describe_guarded(const void* memory, const std::string& description);

// "array 17, float32 (2, 3) on cpu"; empty where nothing is guarded.
std::string name_of_guarded(const void* memory);

// The guarded array that holds `memory`, if there is one, is watched no longer: others lie in it.
void leave_unguarded(const void* memory);

}  // namespace paceline::detail
