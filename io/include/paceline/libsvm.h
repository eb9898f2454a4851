#pragma once
// Sparse examples, as text in LibSVM's format: on each line a label, then index:value pairs in any order. Empty lines
// and what follows a # are left out. Labels and values are finite; those too small for a float are 0.

#include <paceline/data_iterator.h>
#include <paceline/memory_iterator.h>
#include <paceline/pipeline_iterator.h>
#include <paceline/recordio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

// Rows of a sparse matrix: the elements of row i are values[starts[i]] to values[starts[i + 1] - 1], in the columns of
// the same places. csr_matmul() takes them as they are.
struct SparseRows {
  NDArray starts;   // int64 (rows + 1), from 0
  NDArray columns;  // int64 (elements), from 0
  NDArray values;   // float32 (elements)
  Shape shape;      // (rows, features)
};

// A sparse data set in memory.
struct SparseExamples {
  SparseRows data;  // a row for each example
  NDArray label;    // float32 (rows)
};

// How a file is read.
struct LibsvmOptions {
  std::int64_t features = 0;  // columns of the matrix; 0: as the largest index says
  bool from_zero = false;     // indices count from 0 as MXNet's do, instead of from 1 as LibSVM's own
};

// Reads a file. Throws IoError, and Corrupt "PATH:LINE: ..." where a line is not in the format or an index is outside.
SparseExamples load_libsvm(const std::string& path, const LibsvmOptions& options = {});

// Some sparse examples of an epoch; as Batch.
struct SparseBatch {
  SparseRows data;               // a row for each example
  NDArray label;                 // float32 (examples)
  std::int64_t examples = 0;     // how many
  std::int64_t epoch = 0;        // from 0
  std::vector<Range> positions;  // of the examples, for commit()
};

// Deals sparse examples as MemoryIterator deals dense ones. One thread uses it.
class SparseIterator {
 public:
  // Throws InvalidArgument where there are no examples.
  explicit SparseIterator(SparseExamples examples, MemoryIteratorOptions options = {});

  // As the functions of DataIterator with these names.
  void start(std::int64_t epoch, const RangeSet& done = {}) { rows_.start(epoch, done); }
  bool next(SparseBatch& batch);
  bool take_over() { return rows_.take_over(); }
  std::int64_t size() const { return rows_.size(); }
  std::string order() const;
  void commit(const SparseBatch& batch);
  RangeSet committed() const { return rows_.committed(); }

 private:
  SparseExamples examples_;
  MemoryIterator rows_;           // of row numbers
  mutable std::string identity_;  // of the examples, once it is known
};

// How a LibsvmIterator reads a file.
struct LibsvmIteratorOptions {
  std::int64_t batch = 64;                    // examples in a batch of this process
  std::optional<std::uint64_t> shuffle = {};  // seed of the order; none: as in the file
  std::shared_ptr<Source> source = {};        // none: the whole file
  std::int64_t features = 0;                  // columns of the matrix; not 0
  bool from_zero = false;                     // as LibsvmOptions::from_zero
  bool class_labels = false;                  // "label" is int32 class numbers, else float32
  bool sparse = false;                        // see LibsvmIterator
  OnDamage on_damage = OnDamage::kFail;       // kSkip: rows that cannot be read are left out, counted and logged
  int decode_threads = 0;                     // 0: as PipelineIterator chooses
  int prefetch = 0;                           // batches decoded ahead; 0: likewise
};

// Batches of a file that may be larger than memory: it is read in each epoch, as a CsvIterator reads one (csv.h), with
// the same bound on memory. Batches have "label" (examples), and dense "data" (examples, features). Where `sparse` is
// set, they have Batch::others in place of "data": "starts", "columns" and "values", for sparse_rows().
class LibsvmIterator final : public PipelineIterator {
 public:
  // Reads the file once, to find its rows. Throws IoError, and InvalidArgument where there are none or `features` is 0.
  // next() throws Corrupt as load_libsvm().
  explicit LibsvmIterator(const std::string& path, const LibsvmIteratorOptions& options);
  ~LibsvmIterator() override;

  // The rows of a sparse batch. Throws InvalidArgument for another.
  SparseRows sparse_rows(const Batch& batch) const;
  // What kSkip left out since construction: damage() lists at most 1,000 rows, damaged() counts all. Thread-safe.
  std::vector<RecordDamage> damage() const;
  std::int64_t damaged() const;

 private:
  struct State;
  LibsvmIterator(const std::shared_ptr<State>& state, const LibsvmIteratorOptions& options);
  std::shared_ptr<State> state_;
};

}  // namespace paceline
