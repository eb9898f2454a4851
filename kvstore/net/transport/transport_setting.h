#pragma once
// How the processes of a job reach each other, as its text says it: "tcp", "shm:host=NAME", "inproc".

#include <paceline/options.h>

#include <string>

namespace paceline {

struct TransportSetting {
  Spec spec;

  // Throws InvalidArgument on an unknown name, listing the known ones.
  static TransportSetting parse(const std::string& text);

  // All processes of the job are threads of this one.
  bool in_process() const { return spec.name == "inproc"; }
  // Peers of one host may read each other's arrays where they lie.
  bool lends_memory() const { return in_process() || spec.name == "shm"; }
};

}  // namespace paceline
