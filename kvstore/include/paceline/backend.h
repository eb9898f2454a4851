#pragma once
// Backends: the worker's side of a mode. A backend sends gradients and gets weights. Users call a KVStore, which uses a
// backend.

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

// A parameter and its first value.
struct InitValue {
  std::string key;       // its name: 1 to 2000 bytes of any kind, UTF-8 where a checkpoint is written to a file
  NDArray value;         // the first weights; init() overwrites it with those of rank 0
  bool average = false;  // running statistics: the store keeps their mean over the workers, without gradients
  // The store may use `value` as its weight storage; only pulls may write it from then on. `local`, `device` and `ring`
  // do so. If the caller writes to it, `local` and `device` take this as the weights. In `ring` the weights of the
  // workers would differ, so the next push or pull throws InvalidArgument.
  bool shared = false;
};

// A gradient of a key. In `local` and `device` one call may name a key several times, once for each device. The
// gradients are then summed for one update, in the order of the devices (in NCCL's order for three GPUs or more).
// Running statistics are averaged. Each gradient is the sum over the examples of its device, divided by the number of
// examples on all devices. With aggregate=mean it is the mean over the examples of its device, and the sum is divided
// by the number of gradients. In other modes a second gradient of a key is an error.
struct PushItem {
  std::string key;   // its name
  NDArray gradient;  // flat or of the key's shape, in host memory or on a device that the backend supports
};

// Where the weights of a key go. A key may be named several times, as in PushItem; every output gets the weights.
struct PullItem {
  std::string key;  // its name
  NDArray out;      // flat or of the key's shape; is overwritten
};

// How long the bound or the rounds of the mode held a worker back, at the server where this was longest.
struct WorkerWait {
  double seconds = 0;      // sum of all waits that are over
  std::int64_t times = 0;  // the number of steps that waited to begin
};

// Statistics of the job so far, from all servers.
struct StoreReport {
  std::vector<Histogram> delays;      // of applied pushes, by worker, in versions
  std::int64_t pushes = 0;            // slices that were applied
  std::int64_t refused = 0;           // slices that `backup` or `discard` refused
  std::size_t pulled_bytes = 0;       // memory of pulled weights, which staleness policies compare with
  double wait_seconds = 0;            // how long the bound or round held this worker back
  std::vector<WorkerWait> waits;      // by worker
  std::int64_t furthest_ahead = 0;    // under a bound: the most steps that a worker led the slowest by
  std::int64_t bytes_to_hosts = 0;    // mode ring: bytes that this worker sent to other hosts
  std::int64_t raw_bytes = 0;         // of the gradients that this worker encoded, before encoding
  std::int64_t encoded_bytes = 0;     // of the same gradients, after encoding
  std::int64_t clock = 0;             // finished steps of this worker; finished rounds under dist_local
  std::vector<Histogram> row_delays;  // of row-sparse tables, by worker: a count for each row of each push
  std::int64_t rows_refused = 0;      // rows that `discard` refused
  std::int64_t rows_held = 0;         // rows that exist
  std::size_t row_bytes = 0;          // memory of the tables
  std::int64_t loads = 0;             // calls of load() in which this worker took part
  // The delays of all workers.
  Histogram all_delays() const;
};

// Positions of a data set, as sorted [begin, end) pairs.
using PositionRanges = std::vector<std::pair<std::int64_t, std::int64_t>>;

// What a worker tells of an epoch before its first batch.
struct DataPlan {
  PositionRanges mine;      // that this worker will deliver
  PositionRanges all;       // that all workers together will deliver: all but those that a checkpoint names as done
  bool on_request = false;  // data_take_over() gives out `all`, and `mine` is empty
  std::string order = {};   // says which record stands at which position
};

// How many positions data_take_over() should give.
struct PieceSize {
  std::int64_t wanted = 0;    // 0: as many as seem fit
  std::int64_t multiple = 1;  // of which their number should be one, but for the last piece
};

// Bytes that workers share by name, sorted by name.
using Facts = std::map<std::string, std::string>;
// What each worker gave to all_gather(), by rank.
using GatheredValues = std::map<int, std::string>;

// The complete state of a store.
struct StoreState {
  NamedArrays arrays;                                         // weights, state of optimizers and workers, versions
  std::vector<std::pair<std::string, std::string>> counters;  // by name, as text
};

// The worker's side of a mode. Functions whose comment begins with "Task" push engine tasks and return at once. If such
// a task fails, the arrays that it writes carry the error. The other functions block, and throw NetworkError, or
// Timeout naming who is missing. A backend calls an Updater of this process, or sends messages to servers or other
// workers. One thread at a time calls it.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual int rank() const = 0;          // of this worker, from 0
  virtual int size() const = 0;          // the number of workers at the start
  virtual int server_count() const = 0;  // 0 where the mode has none
  // Can it hold row-sparse tables?
  virtual bool holds_tables() const { return false; }
  // Is this worker the leader, which prints and writes for all? The leader is the lowest rank of those that met at the
  // last barrier. Before the first barrier, and when that worker is lost, it is the lowest live rank. Workers that ask
  // between the same two barriers agree on the leader.
  virtual bool leads() const = 0;
  // Did this worker take the place of a lost worker in a running job? If so, init() gave it the weights and the clock
  // of the job. It passes the barriers that the others have already passed. It may have no part of the current epoch.
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
  // Declares row-sparse tables (row_tables.h). Every worker declares the same tables. If two workers declare a table
  // differently, throws InvalidArgument naming both. Backends without tables throw NotAvailable.
  virtual void init_tables(const std::vector<TableSpec>& tables);
  // Collective, after init_tables(), before the rows are used: as KVStore::init_table() with first values. Calls
  // `values` on this thread, at the live worker with the lowest rank, for each row once. What it throws as
  // InvalidArgument every worker throws. If that worker is lost meanwhile, the values of the next one count.
  virtual void fill_table(const std::string& table, const FirstRows& values);
  // Task: reads ids and gradients, updates these rows, then writes the pulled rows, in one round trip. A call may push
  // a table once and pull it once. An id outside the table fails the task. Synchronous modes take one push of a table
  // in a step, which may have no rows.
  virtual void push_pull_rows(const std::vector<RowPush>& pushes, const std::vector<RowPull>& pulls,
                              std::int64_t examples, int priority);
  // Ends a step of this worker. Its clock advances when its earlier pushes are sent. Returns at once, unless rounds
  // wait for every worker and this one is several steps ahead of the slowest: then it blocks.
  virtual void step_end() = 0;
  // This worker has ended `step` steps. For fault plans, and for messages about workers that do not get on.
  virtual void reached(std::uint64_t /*step*/) {}
  // Blocks until all live workers have called it. Rounds and bounds do not wait for a worker inside. On return rounds
  // are aligned, and the scheduler knows what this worker has committed of the data. Other workers may have made steps
  // meanwhile, so pull before you compute on. The same holds after a data_take_over() that waited. Barriers are
  // numbered from the last data_part(). Every worker must call data_part() between the same two barriers.
  void barrier() { all_gather({}, {}); }
  // A barrier at which each worker gives a value and gets the values of all. Every worker calls it with the same name.
  // If the names differ, all throw InvalidArgument. The value of a worker that was lost before is missing. A worker
  // that joins a running job gets no values from barriers that the others have passed. Without a name it is a mere
  // barrier. The values of all workers together have at most 32 MiB.
  virtual GatheredValues all_gather(const std::string& name, const std::string& value) = 0;

  // Facts are small values that workers share by name: at most 1 MiB each, 32 MiB in a job. The scheduler keeps them
  // until the job ends, and a worker that joins later reads them. Names that begin with '/' are the library's. Both
  // functions block.
  //
  // Keeps `value` under `name`, and replaces an older value. Other workers can read it when put_fact() returns.
  virtual void put_fact(const std::string& name, const std::string& value) = 0;
  // The facts whose names begin with `prefix`.
  virtual Facts facts(const std::string& prefix) = 0;

  // The functions data_...() divide an epoch among the workers; nn::shared_source() uses them. The scheduler knows
  // which positions were committed. Every position is delivered once, except those that a lost worker has delivered and
  // not committed.
  //
  // Returns this worker's part, {index, count}. When the first worker asks for an epoch, the parts are fixed over the
  // live workers. A worker that joined later has count 0: it has no part of its own, and may only take over.
  virtual std::pair<int, int> data_part(std::int64_t epoch) = 0;
  // Call it before the first batch. Where `on_request` or `order` are not the same at each worker, it throws. Called
  // again in an epoch, it gives back what was taken over and not committed. From `all` the scheduler knows the part of
  // a worker that is lost before it begins.
  virtual void data_begin(std::int64_t epoch, const DataPlan& plan) = 0;
  // Records that these positions were delivered and used. Returns at once. A note that is not empty is kept with the
  // positions. If this worker is lost, either both count or neither does.
  virtual void data_commit(std::int64_t epoch, const PositionRanges& done, const std::string& note = {}) = 0;
  // Every position of `epoch` that any worker has committed. In a resumed job rank 0 commits the positions of the
  // checkpoint, before the others begin.
  virtual PositionRanges data_committed(std::int64_t epoch) = 0;
  // The notes of all commits of `epoch`, in the order of the first position of each commit.
  virtual std::vector<std::string> data_notes(std::int64_t epoch) = 0;
  // Returns positions of `epoch` that lost workers have left, or that are given out on request. This worker must
  // deliver and commit them. They come in pieces, which shrink towards the end of an epoch: call again until the answer
  // is empty. Without `wait`, more positions may appear later, also in earlier epochs. With `wait`, the call blocks
  // until there are positions, or until every position of the epoch is committed and the answer is empty. Call it with
  // `wait` at the latest before finish(). Rounds and bounds do not wait for a worker that waits here. Throws Error if a
  // push of this worker has failed: what its gradient was made of does not count as delivered until this worker has
  // ended and others have taken it over.
  virtual PositionRanges data_take_over(std::int64_t epoch, bool wait, PieceSize size = {}) = 0;

  // Statistics of the job so far.
  virtual StoreReport report() = 0;
  // Collective: every live worker calls it. The leader gets the state, and the others get an empty one.
  virtual StoreState save() = 0;
  // Collective, after init() with the same keys. The number of servers and workers may differ from those of the state.
  // The state that the leader passes counts. Clocks move on to those of the state, and never back.
  virtual void load(const StoreState& state) = 0;

  // Blocks until every push is acknowledged, then leaves the job. The destructor leaves without waiting. If an
  // exception unwinds, it does not leave, and the others count this worker as lost.
  virtual void finish() = 0;
};

}  // namespace paceline
