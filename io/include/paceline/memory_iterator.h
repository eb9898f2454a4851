#pragma once
// Batches from arrays in memory, for data that fits there, and for tests.

#include <paceline/pipeline_iterator.h>
#include <paceline/sampling.h>

#include <cstdint>
#include <memory>
#include <optional>

namespace paceline {

// How examples are dealt.
struct MemoryIteratorOptions {
  std::int64_t batch = 64;                    // examples in a batch of this process
  std::optional<std::uint64_t> shuffle = {};  // seed of the order; none: as given
  std::shared_ptr<Source> source = {};        // none: all examples
  std::int64_t global_batch = 0;              // examples of all parts together, as RecordLoaderOptions have it
  Sampling sampling = {};                     // draws examples by weights, or groups them by a key
  int copy_threads = 0;                       // that copy batches ahead; 0: next() copies
};

// Deals positions as a RecordLoader with Partition::kRecords does: step k of all parts together is the same set of
// examples for every number of parts.
class MemoryIterator final : public PipelineIterator {
 public:
  // Example i is data[i] with label[i]. Both arrays are read here, once: it blocks until they are computed. They may be
  // of any type, on any device. Batches are float32; labels are int32 where they were integers. Throws InvalidArgument
  // where the counts differ or are 0.
  MemoryIterator(const NDArray& data, const NDArray& label, MemoryIteratorOptions options = {});
  // Example i is row i of each array. Types are kept, so uint8 images stay uint8. "data" and "label" become the members
  // of Batch with these names, others Batch::others. The rest as above.
  explicit MemoryIterator(const NamedArrays& arrays, MemoryIteratorOptions options = {});
};

}  // namespace paceline
