#pragma once
// Batches from arrays in memory, for small data and tests.

#include <paceline/data_iterator.h>
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
};

// Deals positions as a RecordLoader with Partition::kRecords does: step k of all parts together is the same set of
// examples for every number of parts.
class MemoryIterator final : public DataIterator {
 public:
  // Example i is data[i] with label[i]. Both arrays are read here, once: it blocks until they are computed. They may be
  // of any type, on any device. Batches are float32; labels are int32 where they were integers. Throws InvalidArgument
  // where the counts differ or are 0.
  MemoryIterator(const NDArray& data, const NDArray& label, MemoryIteratorOptions options = {});
  ~MemoryIterator() override;

  bool has_source() const override;
  void deliver_to(Device device) override;
  void start(std::int64_t epoch, const RangeSet& done = {}) override;
  bool next(Batch& batch) override;
  bool take_over() override;
  std::int64_t size() const override;
  // Reads the arrays when it is first called.
  std::string order() const override;
  Shape batch_shape() const override;
  void commit(const Batch& batch) override;
  RangeSet committed() const override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paceline
