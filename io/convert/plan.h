#pragma once
// Which entry goes where: into which set, which shard of it, and in which place.

#include <paceline/convert.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "convert/source.h"

namespace paceline::io {

// One set that is written.
struct PlannedSet {
  std::string prefix;
  std::vector<std::int64_t> entries;  // in the order of the records
  int shards = 1;

  // The entries of a shard.
  std::span<const std::int64_t> of_shard(int shard) const;
};

// Throws InvalidArgument for options that cannot be, and where entries are too few for the shards.
std::vector<PlannedSet> plan_conversion(const std::string& prefix, const RecordSource& source,
                                        const ConvertOptions& options);

}  // namespace paceline::io
