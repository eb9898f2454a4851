#pragma once

namespace paceline::detail {

// Does a Recorder see the operators that the calling thread calls? Kept by RecordingScope.
inline bool& calls_are_recorded() {
  thread_local bool recorded = false;
  return recorded;
}

}  // namespace paceline::detail
