#pragma once
// The worker's side of row-sparse tables: one call of push_rows, pull_rows or push_pull_rows in flight.

#include <paceline/mutex.h>
#include <paceline/row_tables.h>
#include <paceline/updater.h>

#include <optional>
#include <vector>

#include "rows/block_pages.h"
#include "rows/row_table.h"
#include "send/row_order.h"
#include "send/store_call.h"

namespace paceline {

namespace wire {
class RowPart;
}

// The versions of the rows that a worker has pulled. The memory grows with the number of these rows. Thread-safe.
class RowVersions {
 public:
  explicit RowVersions(int block_bits) : pages_(block_bits, kNeverPulled) {}
  // Writes the version of each row; kNeverPulled if there is none.
  void get(std::span<const std::int64_t> rows, std::uint64_t* versions);
  void set(std::span<const std::int64_t> rows, const std::uint64_t* versions);
  void clear();

 private:
  Mutex mutex_;
  BlockPages<std::uint64_t> pages_ PACELINE_GUARDED_BY(mutex_);
};

struct RemoteTable {
  RemoteTable(const TableSpec& table, int partitions, Engine& engine)
      : spec(table),
        group(hash_key(table.name)),
        layout(table, partitions),
        row_bytes(paceline::row_bytes(table)),
        order(engine.new_variable()),
        pull_order(engine.new_variable()),
        pushes(static_cast<std::size_t>(layout.partitions())),
        elsewhere(pushes.size()),
        versions(layout.block_bits()) {}

  const TableSpec spec;
  const PartitionGroup group;
  const TableLayout layout;
  const std::size_t row_bytes;
  // Every push of this table writes `order`, so that pushes run in order. Pulls read it: they run between the pushes,
  // and fail after a failed push. Pulls write `pull_order`, so that they run in order, too. Nothing reads it, so a
  // failed pull fails no other call.
  Variable order;
  const Variable pull_order;
  // By partition, for tasks that write `order`: the sequence number of the last push, and the examples of the pushes
  // since then, none of which named a row there.
  std::vector<std::uint64_t> pushes;
  std::vector<std::int64_t> elsewhere;
  RowVersions versions;
  std::optional<std::uint64_t> last_step;  // the last step that pushed rows
};

class RowTransfer final : public StoreCall, public std::enable_shared_from_this<RowTransfer> {
 public:
  // The push and the pull of one table. `gradients` is none if there is no push, and `out` is none if there is no pull.
  struct Item {
    RemoteTable* table = nullptr;
    NDArray pushed_ids, gradients;
    NDArray pulled_ids, out;
    std::uint64_t need = 0;
  };
  // `everywhere`: a push goes to every partition, even without rows there, because rounds wait for it.
  RowTransfer(Route route, std::vector<Item> items, std::shared_ptr<Step> step, std::uint64_t call,
              std::int64_t examples, int priority, bool everywhere);

  std::vector<Variable> reads() const;
  std::vector<Variable> writes() const;
  // Sends the call, whose ids and gradients are ready. Calls done() or fail() of `completion` when everything is
  // answered.
  void start(Completion completion);

 private:
  // The rows of an item in the order in which they travel; null: none. If the pushed and the pulled ids are equal, both
  // share one order.
  struct Ordered {
    std::shared_ptr<RowOrder> pushed, pulled;
  };
  struct Piece;
  struct Ids;
  struct Pulled;
  struct Outgoing;

  static Ordered order(const Item& item);
  void send_messages(bool pushes, bool pulls) override;
  void release() override { items_.clear(); }
  // Cuts the item's rows of a partition into pieces.
  std::vector<Piece> cut(std::size_t item, int partition, bool pushes, bool pulls) const;
  void add(std::size_t item, const Piece& piece, Outgoing& message);
  static Ids ids_of(const std::vector<OrderedRow>& rows, RowRange range);
  // Adds the gradients of a piece to the message. Returns the ids of their rows.
  Ids add_gradients(std::size_t item, const Piece& piece, wire::RowPart& part, Outgoing& message);
  void submit(Outgoing& message);
  void receive(const std::vector<Pulled>& pulled, const Message& answer);

  std::vector<Item> items_;
  std::vector<Ordered> ordered_;  // the rows of each item; ordered when the first messages are made
  const std::uint64_t call_;
  const bool everywhere_;
};

// Is `out` a part of a larger array? A task that writes the part must also read the array: the failure of another part
// then stays known.
bool is_part(const NDArray& out);

// Throws InvalidArgument unless ids and values fit a push to or a pull from `table`. `use`: for instance "the push to".
void check_rows(const TableSpec& table, const NDArray& ids, const NDArray& values, const char* use);

}  // namespace paceline
