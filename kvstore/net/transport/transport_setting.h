#pragma once
// The transport of a job, from its text: "tcp", "shm:host=NAME", "inproc".

#include <paceline/options.h>

#include <string>

namespace paceline {

struct TransportSetting {
  Spec spec;

  // Throws InvalidArgument on an unknown name, listing the known ones.
  static TransportSetting parse(const std::string& text);

  // Are all processes of the job threads of this process?
  bool in_process() const { return spec.name == "inproc"; }
  // May peers of one host read each other's arrays without a copy?
  bool lends_memory() const { return in_process() || spec.name == "shm"; }
};

}  // namespace paceline
