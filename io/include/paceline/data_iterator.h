#pragma once
// Where batches come from. A position is a number in the order of an epoch, from 0 to count - 1. Positions identify
// records, so that each is delivered once: a batch carries its positions, and the trainer commits them when the push of
// its gradients is acknowledged.

#include <paceline/loader_timing.h>  // IWYU pragma: export
#include <paceline/ndarray.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace paceline {

// The positions from `begin` to `end` - 1.
struct Range {
  std::int64_t begin = 0;  // the first
  std::int64_t end = 0;    // behind the last
  friend bool operator==(const Range&, const Range&) = default;
};

// A set of positions. Checkpoints hold it as text.
class RangeSet {
 public:
  // Add positions to the set, or take them out. An empty range changes nothing.
  void add(Range range);
  void subtract(Range range);
  bool contains(std::int64_t position) const;     // is it in the set?
  std::int64_t count() const;                     // how many there are
  bool empty() const { return ranges_.empty(); }  // are there none?
  // As ranges that are sorted, disjoint and not empty.
  const std::vector<Range>& ranges() const& { return ranges_; }
  std::vector<Range> ranges() && { return std::move(ranges_); }
  std::string text() const;                        // "0-64,128-192"
  static RangeSet parse(const std::string& text);  // reads text(); throws Corrupt
  friend bool operator==(const RangeSet&, const RangeSet&) = default;

 private:
  std::vector<Range> ranges_;
};

// Some examples of an epoch. A handle, as its arrays are.
struct Batch {
  NDArray data;                  // (examples, ...), float32 unless the iterator says otherwise
  NDArray label;                 // (examples) int32 class numbers, or (examples, width) float32; may be none
  NamedArrays others;            // further arrays (examples, ...) of a decoder
  std::int64_t examples = 0;     // how many; the last batch of a part may be smaller, as nothing is padded
  std::int64_t epoch = 0;        // from 0
  std::vector<Range> positions;  // of the examples, for commit()
  std::string note;              // for commit(): what is told to the other processes with the positions

  // The array of this name: "data", "label" or one of the others. Throws InvalidArgument where there is none.
  const NDArray& array(std::string_view name) const;
};

// Which of the equal parts of an epoch a process delivers.
struct Part {
  int index = 0;  // from 0
  int count = 1;  // of parts; 0: this process has none, and only takes over
};

// What is delivered in an epoch.
struct EpochPlan {
  RangeSet mine;      // the positions that this process will deliver
  RangeSet all;       // those of all processes together: so the part of one that is lost before it begins is known too
  std::string order;  // says which record stands at which position, as DataIterator::order() but for the data
};

// Decides which positions this process delivers. fixed_source() gives each process a part; nn::shared_source(store)
// follows the live workers and takes over what a lost one did not commit. Functions may block on the network and throw
// NetworkError. One thread at a time.
class Source {
 public:
  virtual ~Source() = default;
  // This process's part of `epoch`, decided once for each epoch.
  virtual Part part(std::int64_t epoch) = 0;
  // Called before the first batch of `epoch`. The order is the same at each process. `all` counts as the first process
  // that begins has it: a process that begins later has seen more committed.
  virtual void begin(std::int64_t epoch, const EpochPlan& plan) = 0;
  // The update from these positions was acknowledged. A note, unless it is empty, is kept with them for the other
  // processes: both count, or neither does.
  virtual void commit(std::int64_t epoch, const std::vector<Range>& positions, const std::string& note) = 0;
  // Positions that lost workers left, or that nobody has yet, and that this process is to deliver. Call it after the
  // own part. With `wait`, everything that was delivered must be committed; it blocks until there are some, or until
  // every position of the epoch is committed: then the set is empty. Without, an empty set means that there are none
  // now. `batch`: the examples of a batch, so that batches can be full.
  virtual RangeSet take_over(std::int64_t epoch, std::int64_t batch, bool wait) = 0;
  // Is the whole epoch given out by take_over(), so that fast processes deliver more? Then no process has a part.
  virtual bool is_dynamic() const { return false; }
};

// A source with this part of every epoch, which takes nothing over. Throws InvalidArgument where there is no such part.
std::shared_ptr<Source> fixed_source(Part part = {});

// Delivers the batches of epochs. One thread uses an iterator; the iterator may read ahead with threads of its own.
class DataIterator {
 public:
  virtual ~DataIterator() = default;

  // Was the iterator given a Source? Without one, every process delivers all records.
  virtual bool has_source() const { return true; }
  // Is its Source dynamic? Then batches come only after take_over().
  virtual bool is_dynamic() const { return false; }

  // Says where the batches of the next start() are used. For an accelerator they may be made on it, or lie in pinned
  // memory, from which it copies beside its work. Trainer calls it.
  virtual void deliver_to(Device) {}

  // Starts an epoch, counted from 0. Positions in `done`, which a checkpoint says were committed, are not delivered.
  // Throws InvalidArgument where a part would be empty ("4 workers share 3 records").
  virtual void start(std::int64_t epoch, const RangeSet& done = {}) = 0;

  // Blocks until a batch is ready. False at the end of the part. Throws IoError, and Corrupt with file, offset and
  // record where damage is not to be skipped.
  virtual bool next(Batch& batch) = 0;

  // Asks the Source for more positions, at the end of the part. True: next() delivers them. False: the epoch is
  // complete, or without `wait` that there are none now. Blocks as Source::take_over() does.
  virtual bool take_over(bool wait = true) = 0;

  // The number of positions of an epoch: of the records in the whole data set, unless some are drawn by weights.
  virtual std::int64_t size() const = 0;
  // A short text that says what decides which record stands at a position, such as "seed=1 window=16 data=89abcdef".
  // Checkpoints hold it, so that an epoch goes on in the same order only. Empty: not known, and not checked.
  virtual std::string order() const { return {}; }
  // The shape of a full batch's data; () where only a batch can tell.
  virtual Shape batch_shape() const { return {}; }
  // The type of a batch's data.
  virtual DType batch_dtype() const { return DType::kFloat32; }
  // The batch was used: tells the Source its positions and its note.
  virtual void commit(const Batch& batch) = 0;
  // The positions that commit() has seen in the current epoch. Checkpoints hold them.
  virtual RangeSet committed() const = 0;
  // Where the time went since start(); all 0 where the iterator does not measure it.
  virtual LoaderTiming timing() const { return {}; }
};

// The batches of one epoch for a range-based for loop: for (Batch& batch : EpochRange(data, e, {})) ... The iterator
// must outlive it. A batch is valid until the next one. Of a dynamic source it takes what is left without waiting, so
// what lost workers leave later is not delivered.
class EpochRange {
 public:
  // Calls data.start(epoch, done).
  EpochRange(DataIterator& data, std::int64_t epoch, const RangeSet& done) : data_(data) { data_.start(epoch, done); }
  // What the loop needs: a place in the epoch, whose ++ calls next(), and its end.
  struct End {};
  class Iterator {
   public:
    // As for any input iterator. They throw what next() throws.
    explicit Iterator(DataIterator& data) : data_(data) { ++*this; }
    Batch& operator*() { return batch_; }
    Iterator& operator++() {
      more_ = data_.next(batch_);
      while (!more_ && data_.is_dynamic() && data_.take_over(false)) more_ = data_.next(batch_);
      return *this;
    }
    bool operator!=(End) const { return more_; }

   private:
    DataIterator& data_;
    Batch batch_;
    bool more_ = false;
  };
  // The first batch, and what is behind the last.
  Iterator begin() { return Iterator(data_); }
  End end() const { return {}; }

 private:
  DataIterator& data_;
};

}  // namespace paceline
