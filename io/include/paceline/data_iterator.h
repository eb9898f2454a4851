#pragma once
// Where batches come from. Positions are numbers in the epoch's order, 0 .. count-1; they identify records for exactly
// once delivery: each batch carries its positions, the trainer commits them when the push is acknowledged.

#include <paceline/ndarray.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace paceline {

// Positions from here on are never those of records.
constexpr std::int64_t kNotData = std::int64_t{1} << 62;

// [begin, end)
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  friend bool operator==(const Range&, const Range&) = default;
};

// A set of positions as sorted disjoint ranges; what a cursor and a checkpoint hold.
class RangeSet {
 public:
  void add(Range range);
  void subtract(Range range);
  bool contains(std::int64_t position) const;
  std::int64_t count() const;
  bool empty() const { return ranges_.empty(); }
  const std::vector<Range>& ranges() const& { return ranges_; }
  std::vector<Range> ranges() && { return std::move(ranges_); }
  std::string text() const;                        // "0-64,128-192"
  static RangeSet parse(const std::string& text);  // throws Corrupt
  friend bool operator==(const RangeSet&, const RangeSet&) = default;

 private:
  std::vector<Range> ranges_;
};

struct Batch {
  NDArray data;               // (examples, ...) float32
  NDArray label;              // (examples) int32 class numbers, or (examples, width) float32
  std::int64_t examples = 0;  // the last batch of a part may be smaller; nothing is padded
  std::int64_t epoch = 0;
  std::vector<Range> positions;
};

// Part `index` of `count` of an epoch; count 0: none, for one that came later and only takes over.
struct Part {
  int index = 0;
  int count = 1;
};

// Decides which positions this process delivers. FixedSource is rank and world; nn::shared_source(store) follows the
// live workers and takes over what a lost one did not commit. Functions may block on the network and throw
// NetworkError.
class Source {
 public:
  virtual ~Source() = default;
  // This process's part of `epoch`; decided once per epoch.
  virtual Part part(std::int64_t epoch) = 0;
  // Tells, before the first batch, the positions this process will deliver in `epoch`, and those that all processes
  // together will (the same at each), so that the part of one that is lost before it begins is known too.
  virtual void begin(std::int64_t epoch, const RangeSet& mine, const RangeSet& all) = 0;
  // The update made from these positions was acknowledged. From kNotData on they are no records, but what workers tell
  // each other; passed on like the others.
  virtual void commit(std::int64_t epoch, const std::vector<Range>& positions) = 0;
  // After the own part: positions that lost workers left, to be delivered here. Blocks until there are some, or every
  // position of the epoch is committed: then it is empty. Commit first what was delivered.
  virtual RangeSet take_over(std::int64_t epoch) = 0;
};

// Part `index` of `count`, never takes over.
std::shared_ptr<Source> fixed_source(Part part = {});

// An epoch of batches. One thread uses an iterator; it may read ahead with threads of its own.
class DataIterator {
 public:
  virtual ~DataIterator() = default;

  // Was it given a Source? Without one, every process delivers all records.
  virtual bool has_source() const { return true; }

  // Where the batches of the next start() are used: for an accelerator they may be made on it, or lie in memory that it
  // copies from beside its work (pinned). Trainer says it.
  virtual void deliver_to(Device) {}

  // Starts epoch `epoch` (from 0). `done`: positions, of any part, that a checkpoint says were committed; they are not
  // delivered. Throws InvalidArgument where a part would be empty ("4 workers share 3 records").
  virtual void start(std::int64_t epoch, const RangeSet& done = {}) = 0;

  // False at the end of the part. Blocks until a batch is ready. Throws IoError and Corrupt (file, offset, record)
  // under the policy `fail`.
  virtual bool next(Batch& batch) = 0;

  // At the end of the part: asks the Source for what lost workers left. True: next() delivers it. False: the epoch is
  // complete. Blocks as Source::take_over does.
  virtual bool take_over() = 0;

  // Records of the whole data set.
  virtual std::int64_t size() const = 0;
  // The shape of a full batch's data; () where only a batch tells.
  virtual Shape batch_shape() const { return {}; }
  // The batch's positions were used: forwards them to the Source, those from kNotData on, too, which
  // Trainer::evaluate() adds.
  virtual void commit(const Batch& batch) = 0;
  // The positions of records that commit() has seen in the current epoch; saved in checkpoints.
  virtual RangeSet committed() const = 0;
};

// The batches of one epoch for a range-based for loop: for (Batch& batch : EpochRange(data, e, {})) ...
class EpochRange {
 public:
  EpochRange(DataIterator& data, std::int64_t epoch, const RangeSet& done) : data_(data) { data_.start(epoch, done); }
  struct End {};
  class Iterator {
   public:
    explicit Iterator(DataIterator& data) : data_(data) { ++*this; }
    Batch& operator*() { return batch_; }
    Iterator& operator++() {
      more_ = data_.next(batch_);
      return *this;
    }
    bool operator!=(End) const { return more_; }

   private:
    DataIterator& data_;
    Batch batch_;
    bool more_ = false;
  };
  Iterator begin() { return Iterator(data_); }
  End end() const { return {}; }

 private:
  DataIterator& data_;
};

}  // namespace paceline
