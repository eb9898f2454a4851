#pragma once
// The rows of a table in one place, and their updates. The place is a partition on a server, or the process of mode
// `local`.

#include <paceline/aggregate.h>
#include <paceline/histogram.h>
#include <paceline/mutex.h>

#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "digest.h"
#include "rows/row_rules.h"
#include "rows/row_store.h"
#include "rows/table_layout.h"

namespace paceline {

// Stands for the version of a row that the worker has never pulled. The gradient of the row then counts as computed
// from the present version.
constexpr std::uint64_t kNeverPulled = std::numeric_limits<std::uint64_t>::max();

// The ResolvedScalars of an update of rows. Rows of one push may have different delays.
struct RowScalars {
  double learning_rate = ResolvedScalars::kUnresolved;
  std::map<std::int64_t, double> factors;  // by delay; factors of 1 are left out
  bool resolved() const { return learning_rate >= 0; }
};

// Gradients for rows. No row occurs twice. A RowTable does not keep the gradients.
struct RowGradients {
  int worker = 0;
  std::int64_t examples = 0;  // the gradients are means over that many
  std::int64_t counted = 0;   // examples that count for the learning rate's schedule, after this update
  std::span<const std::int64_t> ids;
  const std::uint64_t* versions = nullptr;  // that the gradients were computed from, or kNeverPulled
  const std::byte* values = nullptr;
  // The place p of each gradient: row p of `values` if p < `array`, else row p - `array` of `sums`. Null: gradient i is
  // row i of `values`.
  const std::uint32_t* places = nullptr;
  std::size_t array = 0;
  const std::byte* sums = nullptr;
  // Examples of earlier pushes of the worker that named no row here. They count for the schedule before this update.
  std::int64_t elsewhere = 0;

  const std::byte* gradient(std::size_t i, std::size_t row_bytes) const {
    if (!places) return values + i * row_bytes;
    return places[i] < array ? values + places[i] * row_bytes : sums + (places[i] - array) * row_bytes;
  }
};

// Memory for the rows that a worker reads. The rows lie one after the other. `call` is the number of the worker's call.
// If the policy needs pulled weights and `worker` >= 0, the rows are remembered, and a repeated call gets the same
// rows.
struct RowAnswer {
  int worker = -1;
  std::uint64_t call = 0;
  std::uint64_t* versions = nullptr;
  std::byte* values = nullptr;
};

struct SavedRowArrays {
  std::vector<std::int64_t> ids;
  std::vector<std::uint64_t> versions;
  std::vector<std::pair<std::string, std::vector<std::byte>>> arrays;  // "weight" first
  std::int64_t examples = 0;
  std::optional<std::int64_t> next;  // where to continue; none: this was the end
};

struct RowFigures {
  std::vector<Histogram> delays;  // per worker; each row that a push updates counts one delay
  std::int64_t refused = 0;       // refused row updates
  std::size_t rows = 0;           // rows that exist
  std::size_t bytes = 0;          // memory of all rows
  std::size_t pulled_bytes = 0;   // the part of `bytes` for pulled rows that are remembered
  void add(const RowFigures& other);
};

// Thread-safe. Calls run one at a time.
class RowTable {
 public:
  explicit RowTable(TableSpec table, int block_bits);

  const TableSpec& spec() const { return spec_; }
  std::size_t row_bytes() const { return row_bytes_; }

  // State whose name stays the same keeps its values.
  void set_rules(std::shared_ptr<const RowRules> rules);
  void set_workers(int live);

  // Updates each row by its gradient, which is corrected for the delay of the row. With `answer`, also reads each row
  // while it is in the caches. Returns the number of refused updates. Uses `scalars` if they are resolved. Otherwise
  // computes the numbers and writes them to `scalars`. If the update of a row throws, still updates the other rows, and
  // then throws the first error. apply_round() does the same.
  std::uint64_t apply(const RowGradients& push, RowScalars* scalars, const RowAnswer* answer = nullptr);
  // Applies the mean or the sum of several contributions, as one update of delay 0 for each row. Contributions are
  // added up in the order given. A row that a contribution lacks counts as zeros.
  void apply_round(const std::vector<RowGradients>& contributions, Aggregate aggregate, RowScalars* scalars);

  void read(std::span<const std::int64_t> ids, const RowAnswer& answer);

  // Copies about `bytes` bytes of rows, from id `begin` on.
  SavedRowArrays save(std::int64_t begin, std::size_t bytes) const;
  // Overwrites rows. With `anew`, drops all rows first. State that `arrays` lacks is zero in new rows, and stays as it
  // is in old ones. Throws InvalidArgument, and changes nothing, for a name that the rules do not have, or without
  // weights.
  void load(std::span<const std::int64_t> ids, const std::uint64_t* versions,
            const std::vector<std::pair<std::string, const std::byte*>>& arrays, std::int64_t examples, bool anew);

  // Forgets the rows that a lost worker has pulled.
  void drop_worker(int worker);
  RowFigures figures() const;
  // Adds to the digest: all rows with their state, and the remembered rows of workers.
  void add_to(Digest& digest) const;

 private:
  // The record of a row: the head is the version, the body is the weights and then the state. The record of a
  // remembered row: the head is the call and then the version, the body is the weights.
  static constexpr std::size_t kHead = 8, kRememberedHead = 16;

  class Answering;

  template <class T>
  std::uint64_t apply_rows(const RowGradients& push, RowScalars* scalars, Answering* answering)
      PACELINE_REQUIRES(mutex_);
  template <class T>
  void apply_together(const std::vector<RowGradients>& contributions, Aggregate aggregate, RowScalars* scalars)
      PACELINE_REQUIRES(mutex_);
  template <class T>
  void update(std::byte* body, const T* gradient, const T* pulled, const StaleContext& context)
      PACELINE_REQUIRES(mutex_);
  // The context of an update. Resolves the learning rate if the scalars have none.
  StaleContext context(RowScalars* scalars) const PACELINE_REQUIRES(mutex_);
  // The row's record. Makes it if there is none.
  RowStore::Record touch(std::int64_t row, RowStore::Slot slot) PACELINE_REQUIRES(mutex_);
  const std::byte* remembered(int worker, std::int64_t row, std::uint64_t version) const PACELINE_REQUIRES(mutex_);
  // If this call got an answer before, replaces the new answer by the earlier one. Otherwise remembers the new answer,
  // unless the answer to a later call is remembered.
  void remember(RowStore& store, std::int64_t row, std::uint64_t call, std::uint64_t* version, std::byte* values) const;
  void initialise(std::int64_t row, std::byte* values) const;
  RowStore make_store(const RowRules& rules) const;
  std::size_t state_offset(std::size_t state) const { return (state + 1) * row_bytes_; }

  const TableSpec spec_;
  const RowInitializer initializer_;
  const int block_bits_;
  const std::size_t row_bytes_;
  mutable Mutex mutex_;
  std::shared_ptr<const RowRules> rules_ PACELINE_GUARDED_BY(mutex_);
  KeyFactors factors_ PACELINE_GUARDED_BY(mutex_);       // of the table
  Preparation preparation_ PACELINE_GUARDED_BY(mutex_);  // of the table, with its factor of weight decay
  RowStore rows_ PACELINE_GUARDED_BY(mutex_);
  std::map<int, RowStore> pulled_ PACELINE_GUARDED_BY(mutex_);
  std::vector<Histogram> delays_ PACELINE_GUARDED_BY(mutex_);
  std::int64_t examples_ PACELINE_GUARDED_BY(mutex_) = 0, refused_ PACELINE_GUARDED_BY(mutex_) = 0;
  int workers_ PACELINE_GUARDED_BY(mutex_) = 1;
  std::vector<RowStore::Slot> slots_ PACELINE_GUARDED_BY(mutex_);  // scratch
};

}  // namespace paceline
