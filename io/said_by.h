#pragma once
// What the manifests among some sources say of their records together.

#include <paceline/manifest.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace paceline::io {

struct SaidBy {
  // What records cannot say: the decoder and its labels, the columns, the names of the classes, and the order.
  Manifest manifest;
  std::string first;    // the first source with a manifest; empty: none has one
  std::string without;  // a source without one; empty: all have one
};

// The checksum of the columns that several sources have in common.
class CommonColumns {
 public:
  // `columns`: what the source says; none: it does not know its columns. Throws InvalidArgument where an earlier source
  // says something else.
  void add(const std::string& source, std::optional<std::uint32_t> columns);
  // None unless every source says it, so that no manifest vouches for unknown columns.
  std::optional<std::uint32_t> checksum() const { return all_say_it_ ? checksum_ : std::nullopt; }

 private:
  std::optional<std::uint32_t> checksum_;  // of the first source that says one
  bool all_say_it_ = true;
};

// Throws InvalidArgument where manifests contradict each other.
SaidBy said_by(const std::vector<std::string>& sources);

}  // namespace paceline::io
