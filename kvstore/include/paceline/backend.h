#pragma once
// Backends: the worker's side of a mode, which decides what becomes of a gradient and where weights come from. Users
// see a KVStore, which stands on one.

#include <paceline/histogram.h>
#include <paceline/ndarray.h>
#include <paceline/optimizer.h>
#include <paceline/row_tables.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace paceline {

// A parameter as it starts.
struct InitValue {
  std::string key;       // its name: 1 to 2000 bytes of any kind, UTF-8 where a checkpoint is written to a file
  NDArray value;         // its first weights, and the array that gets those of rank 0
  bool average = false;  // running statistics: the store keeps their mean over the workers, without gradients
  // The store may use `value` as its weight storage, which only pulls may write from then on: `local`, `device` and
  // `ring` do. What the caller writes there all the same counts as the weights. In `ring` the workers' weights would
  // differ, so the next push or pull throws InvalidArgument.
  bool shared = false;
};

// A gradient of a key. In `local` and `device` one call may name a key several times, once for each device. Then the
// gradients are summed for one update, in the order of the devices (in NCCL's order for three GPUs or more), and
// averages are averaged. Each gradient is the sum over its device's examples, divided by the examples of all; with
// aggregate=mean it is the mean over its device's examples, and the sum is divided by the number of gradients.
// Elsewhere a second gradient of a key is an error.
struct PushItem {
  std::string key;   // its name
  NDArray gradient;  // flat or of the key's shape, in host memory or on a device that the backend carries
};

// Where the weights of a key go. A key may be named several times, as in PushItem; every output gets the weights.
struct PullItem {
  std::string key;  // its name
  NDArray out;      // flat or of the key's shape; is overwritten
};

// How long the mode's bound or round held a worker back, at the server where that was longest.
struct WorkerWait {
  double seconds = 0;      // of all waits that are over
  std::int64_t times = 0;  // the number of steps that waited to begin
};

// Figures of the job so far, from all servers.
struct StoreReport {
  std::vector<Histogram> delays;      // of applied pushes, by worker, in versions
  std::int64_t pushes = 0;            // slices that were applied
  std::int64_t refused = 0;           // slices that `backup` or `discard` refused
  std::size_t pulled_bytes = 0;       // memory of weights that staleness policies compare with
  double wait_seconds = 0;            // how long the bound or round held this worker back
  std::vector<WorkerWait> waits;      // by worker
  std::int64_t furthest_ahead = 0;    // under a bound: the most steps that a worker led the slowest by
  std::int64_t bytes_to_hosts = 0;    // mode ring: bytes that this worker sent to other hosts
  std::int64_t raw_bytes = 0;         // gradients that this worker encoded: bytes before
  std::int64_t encoded_bytes = 0;     // and after
  std::int64_t clock = 0;             // finished steps of this worker; finished rounds under dist_local
  std::vector<Histogram> row_delays;  // of row-sparse tables, by worker: a count for each row of each push
  std::int64_t rows_refused = 0;      // rows that `discard` refused
  std::int64_t rows_held = 0;         // rows that exist
  std::size_t row_bytes = 0;          // memory of the tables
  std::int64_t loads = 0;             // calls of load() that this worker had a part in
  // The delays of all workers.
  Histogram all_delays() const;
};

// Positions of a data set, as sorted [begin, end) pairs.
using PositionRanges = std::vector<std::pair<std::int64_t, std::int64_t>>;

// Bytes that workers share by name, sorted by name.
using Facts = std::map<std::string, std::string>;
// What each worker gave to all_gather(), by rank.
using GatheredValues = std::map<int, std::string>;

// All that a store holds.
struct StoreState {
  NamedArrays arrays;                                         // weights, state of optimizers and workers, versions
  std::vector<std::pair<std::string, std::string>> counters;  // by name, as text
};

// Functions that say "Task" push engine tasks and return at once; a failure poisons what they write. The others block,
// and throw NetworkError, or Timeout naming who is missing. A backend calls an Updater of this process, or sends
// messages to servers or other workers. One thread at a time calls it.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual int rank() const = 0;          // of this worker, from 0
  virtual int size() const = 0;          // the number of workers at the start
  virtual int server_count() const = 0;  // 0 where the mode has none
  // Does this worker print and write for all? The lowest rank of those that met at the last barrier does. Before the
  // first barrier, and once that worker is lost, it is the lowest live rank. To agree on one, ask between two barriers.
  virtual bool leads() const = 0;
  // Did this worker take a lost one's place in a running job? Then init() gave it the job's weights and clock, its
  // first barriers are those that the others have passed, and it may have no part of the current epoch.
  virtual bool joined_late() const { return false; }

  // As the functions of KVStore with these names.
  virtual void init(const std::vector<InitValue>& values) = 0;
  virtual void set_optimizer(const Spec& optimizer) = 0;
  virtual void set_learning_rate(double rate) = 0;

  // Task: reads the gradients, which are means over `examples`. Where a round averages, `examples` is their weight;
  // with aggregate=sum it only moves schedules on.
  virtual void push(const std::vector<PushItem>& items, std::int64_t examples, int priority) = 0;
  // Task: writes the outputs, after this worker's earlier pushes were applied or refused.
  virtual void pull(const std::vector<PullItem>& items, int priority) = 0;
  // Task: push() and pull() in one round trip, atomic for each slice.
  virtual void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights,
                         std::int64_t examples, int priority) = 0;
  // Declares row-sparse tables (row_tables.h). Every worker declares the same: where another has declared a table
  // otherwise, InvalidArgument names both. Backends without tables throw NotAvailable.
  virtual void init_tables(const std::vector<TableSpec>& tables);
  // Collective, after init_tables(), before the rows are used: as KVStore::init_table() with first values. Calls
  // `values` on this thread, at the worker that leads, for each row once. What it throws as InvalidArgument every
  // worker throws. Where that worker is lost meanwhile, the next one's values count.
  virtual void fill_table(const std::string& table, const FirstRows& values);
  // Task: reads ids and gradients, updates those rows, then writes the pulled rows, in one round trip. A call may push
  // a table once and pull it once. An id outside the table fails the task. Synchronous modes take one push of a table
  // in a step; it may be of no rows.
  virtual void push_pull_rows(const std::vector<RowPush>& pushes, const std::vector<RowPull>& pulls,
                              std::int64_t examples, int priority);
  // A step of this worker is over. Its clock goes on once what it pushed before is sent. Returns at once.
  virtual void step_end() = 0;
  // Blocks until all live workers are here. A worker inside holds back no round and no bound; rounds are aligned at the
  // exit. What this worker committed of data is in the scheduler's book then. Other workers' steps went on meanwhile:
  // pull before computing on. The same holds after a data_take_over() that waited. Barriers are counted from the last
  // data_part(), which every worker calls at the same place between them.
  void barrier() { all_gather({}, {}); }
  // A barrier at which each worker gives a value and gets those of all that are there. Every worker calls it with the
  // same name; where the names differ, all throw InvalidArgument. A worker that was lost before gave nothing. A worker
  // that joins a running job gets nothing from a barrier that the others have passed. Without a name it is a barrier.
  virtual GatheredValues all_gather(const std::string& name, const std::string& value) = 0;

  // Facts are small values that workers share by name: at most 1 MiB each, 32 MiB in a job. The scheduler keeps them
  // until the job ends, and a worker that joins later reads them. Names with a '/' in front are the library's. Both
  // functions block.
  //
  // Keeps `value` under `name`, in place of what was there. Other workers read it from then on.
  virtual void put_fact(const std::string& name, const std::string& value) = 0;
  // The facts whose names begin with `prefix`.
  virtual Facts facts(const std::string& prefix) = 0;

  // The functions data_...() share out an epoch; nn::shared_source() stands on them. The scheduler knows which
  // positions were committed. Every position is delivered once, but for those that a lost worker delivered and had not
  // committed.
  //
  // This worker's part, {index, count}, fixed over the live workers when the first one asks for that epoch. A worker
  // that joined later has count 0: no part of its own, though it may take over.
  virtual std::pair<int, int> data_part(std::int64_t epoch) = 0;
  // Says before the first batch that this worker will deliver `mine`, and all workers together `all`, the same at each:
  // every position but those that a checkpoint says were done. So the part of a worker that is lost before it begins is
  // known, too.
  virtual void data_begin(std::int64_t epoch, const PositionRanges& mine, const PositionRanges& all) = 0;
  // These positions were delivered and used. Returns at once. A note, unless it is empty, is kept with them: both
  // count, or neither does, where this worker is lost.
  virtual void data_commit(std::int64_t epoch, const PositionRanges& done, const std::string& note = {}) = 0;
  // Every position of `epoch` that any worker committed. In a resumed job rank 0 commits what its checkpoint says,
  // before the others begin.
  virtual PositionRanges data_committed(std::int64_t epoch) = 0;
  // The notes of what any worker committed of `epoch`, by the first position of each.
  virtual std::vector<std::string> data_notes(std::int64_t epoch) = 0;
  // Positions of `epoch` that lost workers left and that this worker is to deliver and commit. They come in pieces:
  // call again until there are none. Without `wait`, none means none now: ask again later, also for earlier epochs.
  // With `wait` it blocks until there are some, or until every position of the epoch is committed: then there are none.
  // Wait at the latest before finish(). A waiting worker holds back no round and no bound.
  virtual PositionRanges data_take_over(std::int64_t epoch, bool wait) = 0;

  // The figures of the job so far.
  virtual StoreReport report() = 0;
  // Collective: every live worker calls it. The worker that leads gets the state, the others an empty one.
  virtual StoreState save() = 0;
  // Collective, after init() with the same keys, under any number of servers and workers. The state at the worker that
  // leads counts. Clocks go on from those of the state, but never back.
  virtual void load(const StoreState& state) = 0;

  // Blocks until every push is acknowledged, then leaves the job. The destructor leaves without waiting. While an
  // exception unwinds, it does not leave, and the others take this worker for lost.
  virtual void finish() = 0;
};

}  // namespace paceline
