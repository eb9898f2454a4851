#include "table_shard.h"

#include <paceline/error.h>

namespace paceline {

void TableShard::run(const std::shared_ptr<RowCall>& call, int part) {
  try {
    check(call->parts[static_cast<std::size_t>(part)]);
    sequencer_->run(call, part);
  } catch (const std::exception&) {
    call->fail(std::current_exception());
    call->finish_part();
  }
}

void TableShard::check(const RowCall::Part& part) {
  const RowPartition& state = part.served->state;
  const std::int64_t rows = state.spec().rows;
  for (const auto& ids : {part.push.ids, part.pulled}) {
    std::int64_t last = -1, block = -1;
    for (const std::int64_t id : ids) {
      const bool same_block = id >> state.layout().block_bits() == block;
      if (id <= last || id >= rows ||
          (!same_block && state.layout().partition_of(id) != static_cast<int>(state.number())))
        throw Corrupt(str("a message about table '", state.spec().name, "' names row ", id, " after row ", last,
                          " in partition ", state.number()));
      last = id;
      block = id >> state.layout().block_bits();
    }
  }
  if (!part.push.places) return;
  for (const std::uint32_t place : std::span(part.push.places, part.push.ids.size()))
    if (place >= part.push.array + part.sums)
      throw Corrupt(str("a message about table '", state.spec().name, "' has a gradient at ", place, " of ",
                        part.push.array, " + ", part.sums));
}

}  // namespace paceline
