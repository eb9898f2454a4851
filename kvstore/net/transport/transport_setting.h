#pragma once
// The transport of a job, parsed from a text such as "tcp", "shm:host=NAME" or "inproc".

#include <paceline/options.h>

#include <cstdint>
#include <string>

namespace paceline {

struct TransportSetting {
  Spec spec;

  // Throws InvalidArgument on an unknown name, listing the known ones.
  static TransportSetting parse(const std::string& text);

  // Are all processes of the job threads of this process?
  bool in_process() const { return spec.name == "inproc"; }
  // The largest frame that the transport takes, in bytes.
  std::uint64_t max_frame_bytes() const {
    if (in_process()) return UINT64_MAX;
    return static_cast<std::uint64_t>(spec.options.get("max_frame_bytes", std::int64_t{1} << 30));
  }
  // May peers of one host read each other's arrays without a copy?
  bool lends_memory() const { return in_process() || spec.name == "shm"; }
};

}  // namespace paceline
