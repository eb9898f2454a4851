#pragma once
// The worker's side of a mode: what becomes of a gradient and where weights come from. In this process it calls an
// Updater, else it sends messages to servers or other workers; one may wrap another. KVStore is the face of one.

#include <paceline/histogram.h>
#include <paceline/ndarray.h>
#include <paceline/optimizer.h>
#include <paceline/row_tables.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace paceline {

struct InitValue {
  std::string key;
  NDArray value;
  bool average = false;  // running statistics: the mean over the workers instead of gradient steps
  // From now on pulls alone write `value`: in `local`, `device` and `ring` the store may keep the weights in it. What
  // the caller writes there all the same counts as the weights; in `ring`, where the workers' would differ, the next
  // push or pull throws InvalidArgument.
  bool shared = false;
};

// In `local` and `device` one call may name a key several times, once per device: the gradients are summed in the order
// of the devices (of three GPUs or more in NCCL's; let each be the sum over its examples over the examples of all;
// averages are averaged), for one update; every output gets the weights. Elsewhere a second gradient is an error.
struct PushItem {
  std::string key;
  NDArray gradient;  // flat or shaped, host memory or a device the exchange carries
};

struct PullItem {
  std::string key;
  NDArray out;
};

// What the mode's bound or round cost a worker, at the server where that was most.
struct WorkerWait {
  double seconds = 0;      // of waits that are over
  std::int64_t times = 0;  // steps that it waited to begin
};

// Figures of the job so far, from all servers.
struct StoreReport {
  std::vector<Histogram> delays;  // per worker, in versions
  std::int64_t pushes = 0;        // slices applied
  std::int64_t refused = 0;       // by backup or discard
  std::size_t pulled_bytes = 0;   // weights remembered for staleness correction
  double wait_seconds = 0;        // this worker held back by the mode's bound or round
  std::vector<WorkerWait> waits;  // per worker
  std::int64_t furthest_ahead =
      0;  // most steps that a worker led the slowest by as it began one; counted under a bound
  std::int64_t bytes_to_hosts = 0;  // mode ring: of gradients and weights, sent by this worker to other hosts
  std::int64_t raw_bytes = 0;       // gradients that this worker encoded (compression.h), before
  std::int64_t encoded_bytes = 0;   // and after
  std::int64_t clock = 0;           // steps of this worker that are over, under dist_local rounds; counted with servers
  // Row-sparse tables; the delays have one count for each row of each push.
  std::vector<Histogram> row_delays;
  std::int64_t rows_refused = 0;
  std::int64_t rows_held = 0;  // rows that exist
  std::size_t row_bytes = 0;   // memory of the tables
  std::int64_t loads = 0;      // that this worker had a part in
  Histogram all_delays() const;
};

// Positions of the data set, as sorted [begin, end) pairs.
using PositionRanges = std::vector<std::pair<std::int64_t, std::int64_t>>;

// Weights, optimizer state, versions and workers' state under names, and counters as text.
struct StoreState {
  NamedArrays arrays;
  std::vector<std::pair<std::string, std::string>> counters;
  // For load(), the same at every worker: other tables, keys and what workers keep stay as they are.
  bool tables_alone = false;
};

// Functions that say "task" are pushed to the engine and return at once; failures poison what they write. The others
// block and throw NetworkError or Timeout naming who is missing.
class Exchange {
 public:
  virtual ~Exchange() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;  // workers at start
  virtual int server_count() const = 0;
  // One worker prints and writes for all: the lowest rank of those that met at the last barrier; before the first, and
  // once that one is lost, the lowest live rank. To agree on one, ask between two barriers.
  virtual bool leads() const = 0;
  // This worker took a lost one's place in a job that was on its way: init() gave it the job's weights and clock, its
  // first barriers are those that the others have passed, and it may have no part of the current epoch.
  virtual bool joined_late() const { return false; }

  virtual void init(const std::vector<InitValue>& values) = 0;
  virtual void set_optimizer(const Spec& optimizer) = 0;
  virtual void set_learning_rate(double rate) = 0;

  // Task: reads the gradients. `examples`: they are means over that many.
  virtual void push(const std::vector<PushItem>& items, std::int64_t examples, int priority) = 0;
  // Task: writes the outputs, after this worker's earlier pushes were applied or refused.
  virtual void pull(const std::vector<PullItem>& items, int priority) = 0;
  // Task: both in one round trip, per slice atomic.
  virtual void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights,
                         std::int64_t examples, int priority) = 0;
  // Row-sparse tables (row_tables.h). Collective in effect: a table that another worker has declared otherwise throws
  // InvalidArgument naming both. Exchanges without tables throw NotAvailable.
  virtual void init_tables(const std::vector<TableSpec>& tables);
  // Task: reads ids and gradients, updates those rows, then writes the rows pulled; a table may be pushed once and
  // pulled once in a call, and both are one round trip. An id outside the table fails the task. Synchronous modes take
  // one push of a table per step, which may be of no rows.
  virtual void push_pull_rows(const std::vector<RowPush>& pushes, const std::vector<RowPull>& pulls,
                              std::int64_t examples, int priority);
  // A step of this worker is over; its clock goes on when what it pushed before was sent. Returns at once.
  virtual void step_end(std::int64_t examples) = 0;
  // All live workers meet. While inside, a worker holds back no round and no bound; rounds are aligned at the exit.
  // Others' steps went on meanwhile, so pull before computing on; likewise after a data_take_over() that waited.
  // Barriers are counted from the worker's last data_part(), which every worker calls at the same place between them.
  virtual void barrier() = 0;

  // Who delivers what of an epoch, and what lost workers left (io's Source stands on these). The scheduler keeps the
  // book: every position of an epoch is delivered once, save what a lost worker delivered but had not committed.
  //
  // {index, count}: this worker's part, fixed over the live workers when the first one asks for that epoch. count 0: it
  // joined later and has no part of its own, but may take over.
  virtual std::pair<int, int> data_part(std::int64_t epoch) = 0;
  // Before the first batch: this worker will deliver `mine`; `all` is what all workers together deliver in this epoch
  // (the same at each: every position, less what a checkpoint says was done), so that the part of a worker that is lost
  // before it begins is known too.
  virtual void data_begin(std::int64_t epoch, const PositionRanges& mine, const PositionRanges& all) = 0;
  virtual void data_commit(std::int64_t epoch, const PositionRanges& done) = 0;  // returns at once
  // Every position of `epoch` that any worker committed. Rank 0 of a resumed job commits what its checkpoint says
  // before the others begin; epoch numbers are the caller's, negative ones too.
  virtual PositionRanges data_committed(std::int64_t epoch) = 0;
  // Positions of `epoch` that lost workers left, now this worker's to deliver and commit; shared out in pieces, so call
  // again until empty. `wait` false: empty means none now; ask again later, also for earlier epochs. `wait` true (at
  // the latest before finish): blocks until there are some or every position of the epoch is committed, which empty
  // then means; a waiting worker holds back no round and no bound.
  virtual PositionRanges data_take_over(std::int64_t epoch, bool wait) = 0;

  virtual StoreReport report() = 0;
  // Collective: every live worker calls it; the one that leads gets the state, the others an empty one.
  virtual StoreState save() = 0;
  // Collective after init with the same keys, under any number of servers and workers; the state of the one that leads
  // counts. Clocks go on from the state's, but never back.
  virtual void load(const StoreState& state) = 0;

  // Blocks until everything pushed was acknowledged; then leaves the job. The destructor leaves without waiting for
  // what was pushed; while an exception unwinds it does not even leave, and the others take this worker for lost.
  virtual void finish() = 0;
};

}  // namespace paceline
