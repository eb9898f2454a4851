#pragma once
// What this build checks. For the modules engine and ndarray, which CMake tells. Not installed.

namespace paceline::detail {

// The checking build: memory is guarded while tasks run.
constexpr bool kChecksAccess = PACELINE_CHECK_ACCESS;

// NDArray::data() asks whether the running task declared the array.
#ifdef NDEBUG
constexpr bool kChecksData = kChecksAccess;
#else
constexpr bool kChecksData = true;
#endif

}  // namespace paceline::detail
