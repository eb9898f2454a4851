#pragma once
// What the manifests among some sources say of their records together.

#include <paceline/manifest.h>

#include <string>
#include <vector>

namespace paceline::io {

struct SaidBy {
  // What records cannot say: the decoder and its labels, the columns, the names of the classes, and the order.
  Manifest manifest;
  std::string first;    // the first source with a manifest; empty: none has one
  std::string without;  // a source without one; empty: all have one
};

// Throws InvalidArgument where manifests contradict each other.
SaidBy said_by(const std::vector<std::string>& sources);

}  // namespace paceline::io
