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
  std::string key;       // name of 1 to 2000 bytes; must be UTF-8 if a checkpoint is written to a file
  NDArray value;         // the first weights; KVStore::init() overwrites them with the weights of one worker
  bool average = false;  // running statistics: a push gives new values, and the store averages them over workers
  // True: the store may use the memory of `value` for its weights, as `local`, `device` and `ring` do. Only pulls may
  // write that memory from then on. In `local` and `device`, anything else that the caller writes there may become the
  // weights. In `ring`, such a write would make the weights of the workers differ, so the next push or pull of the key
  // throws InvalidArgument.
  bool shared = false;
};

// A gradient of a key. In `local` and `device`, one call may name a key several times, once for each device. The store
// then combines these gradients for one update:
//
// - With aggregate=sum, the default, it adds the gradients. Each gradient is the sum over the examples of its device,
//   divided by the number of examples on all devices.
// - With aggregate=mean, it averages the gradients. Each gradient is the mean over the examples of its device.
//
// Running statistics are averaged in both cases. The store adds in the order of the devices. If NCCL adds the gradients
// of three GPUs or more, NCCL chooses the order. In other modes, a second gradient of a key in one call throws
// InvalidArgument.
struct PushItem {
  std::string key;   // name of the key
  NDArray gradient;  // of the key's type, flat or of the key's shape; on any device
};

// An output array for the weights of a key. A call may name a key several times. Each output then gets the weights.
struct PullItem {
  std::string key;  // name of the key
  NDArray out;      // of the key's type, flat or of the key's shape; is overwritten
};

// How long the bound or the rounds of the mode held a worker back. Each number is the maximum over the servers.
struct WorkerWait {
  double seconds = 0;      // sum of the waits that have ended
  std::int64_t times = 0;  // number of steps that had to wait for their weights
};

// Statistics since the start of the job. In modes with servers, the counts are those of all workers, unless a member
// says otherwise. In modes without servers, each worker reports what it has counted itself.
struct StoreReport {
  std::vector<Histogram> delays;      // delays of applied slices, in versions; by worker
  std::int64_t pushes = 0;            // number of pushed slices that were applied
  std::int64_t refused = 0;           // number of pushed slices that the mode or the policy refused
  std::size_t pulled_bytes = 0;       // bytes of pulled weights that are kept for staleness policies
  double wait_seconds = 0;            // how long bound or rounds held this worker back; ring: duration of its calls
  std::vector<WorkerWait> waits;      // waits of each worker, by rank
  std::int64_t furthest_ahead = 0;    // with a bound: the most steps that any worker was ahead of the slowest
  std::int64_t bytes_to_hosts = 0;    // mode ring: bytes that this worker sent to other hosts
  std::int64_t raw_bytes = 0;         // size of the gradients that this worker encoded, before encoding
  std::int64_t encoded_bytes = 0;     // size of the same gradients after encoding
  std::int64_t clock = 0;             // steps that this worker has ended; dist_local: rounds; local, device and ring: 0
  std::vector<Histogram> row_delays;  // delays of table rows, by worker; each row of each push counts once
  std::int64_t rows_refused = 0;      // number of pushed rows that the mode or the policy refused
  std::int64_t rows_held = 0;         // number of rows that exist
  std::size_t row_bytes = 0;          // bytes of memory of the tables
  std::int64_t loads = 0;             // number of load() calls of this worker
  // The histograms in `delays`, merged.
  Histogram all_delays() const;
};

// Positions of an epoch, as ranges [begin, end) in ascending order.
using PositionRanges = std::vector<std::pair<std::int64_t, std::int64_t>>;

// What a worker declares with data_begin(), before its first batch of an epoch.
struct DataPlan {
  PositionRanges mine;      // positions that this worker will deliver
  PositionRanges all;       // positions that all workers will deliver; a resumed job leaves out those that are done
  bool on_request = false;  // true: data_take_over() hands out `all`, and `mine` is empty
  std::string order = {};   // text that identifies the order of the records; the same at every worker
};

// How many positions data_take_over() should return.
struct PieceSize {
  std::int64_t wanted = 0;    // 0: the scheduler chooses
  std::int64_t multiple = 1;  // the number is a multiple of this, except in the last piece; unused if `wanted` is 0
};

// The values of facts, by name.
using Facts = std::map<std::string, std::string>;
// The values that the workers passed to all_gather(), by rank.
using GatheredValues = std::map<int, std::string>;

// The complete state of a store.
struct StoreState {
  NamedArrays arrays;                                         // weights, state of optimizers and workers, versions
  std::vector<std::pair<std::string, std::string>> counters;  // names and values of counters, as text
};

// The worker's side of a mode. A backend calls an Updater of this process, or sends messages to servers or other
// workers. One thread at a time may call a backend. Functions whose comment begins with "Task" push engine tasks, and
// do not wait for these tasks. With `averaging=federated`, a push may still block until this worker's next round is
// near. If a task fails, the arrays that it writes carry the error. Getters such as rank() return at once. All other
// functions may block. All functions throw InvalidArgument for wrong arguments, and NetworkError if the job cannot go
// on, for instance because a server was lost.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual int rank() const = 0;          // rank of this worker, from 0
  virtual int size() const = 0;          // number of workers at the start of the job
  virtual int server_count() const = 0;  // number of servers; 0 if the mode has none
  // Does this backend support row-sparse tables?
  virtual bool holds_tables() const { return false; }
  // Is this worker the leader, which prints and writes for all? The leader is the lowest rank among the workers that
  // met at the last barrier. Before the first barrier, and if the leader is lost, the lowest live rank leads. Workers
  // that ask between the same two barriers agree on the leader, unless it is lost meanwhile.
  virtual bool leads() const = 0;
  // Did this worker take the place of a lost worker in a running job? If so, init() gives this worker the weights and a
  // clock of the job. Its barriers before init() return at once, because the other workers have passed them. It may
  // have no part of the current epoch.
  virtual bool joined_late() const { return false; }

  // These functions do what the KVStore functions of the same names do.
  virtual void init(const std::vector<InitValue>& values) = 0;
  virtual void set_optimizer(const Spec& optimizer) = 0;
  virtual void set_learning_rate(double rate) = 0;

  // Task: pushes gradients, each the mean over `examples` examples. In the mean of a round, `examples` is the weight of
  // this worker. With aggregate=sum, `examples` only advances the schedule of the learning rate.
  virtual void push(const std::vector<PushItem>& items, std::int64_t examples, int priority) = 0;
  // Task: writes the weights to the outputs, after this worker's earlier pushes were applied or refused.
  virtual void pull(const std::vector<PullItem>& items, int priority) = 0;
  // Task: push(), then pull(). If the mode never holds pulls back, as `dist_async` without a bound, both take one round
  // trip, and no push of another worker is applied to a slice in between.
  virtual void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights,
                         std::int64_t examples, int priority) = 0;
  // Declares row-sparse tables (row_tables.h). Every worker declares the same tables. A declaration that differs from
  // another worker's throws InvalidArgument naming both workers. Modes without tables throw NotAvailable, or
  // InvalidArgument in `dist_sync` with backup.
  virtual void init_tables(const std::vector<TableSpec>& tables);
  // Collective, after init_tables() and before the rows are used. Sets the first values of all rows, as
  // KVStore::init_table() does. At the live worker with the lowest rank, calls `values` on the calling thread, for each
  // row once. If that worker is lost meanwhile, the next worker begins again. If `values` throws, that worker rethrows
  // the exception, and the others throw InvalidArgument with the same text.
  virtual void fill_table(const std::string& table, const FirstRows& values);
  // Task: reads ids and gradients, updates these rows, then writes the pulled rows. Takes one round trip under the same
  // condition as push_pull(). A call may push a table once and pull it once. An id outside the table fails the task. In
  // a synchronous mode, a worker may push a table once in each step. A push without rows is allowed.
  virtual void push_pull_rows(const std::vector<RowPush>& pushes, const std::vector<RowPull>& pulls,
                              std::int64_t examples, int priority);
  // Ends a step of this worker. The clock that other processes see advances when the pushes of the step are
  // acknowledged. In modes whose servers wait for every worker in each round, blocks while this worker is several steps
  // ahead of the slowest. Otherwise returns at once.
  virtual void step_end() = 0;
  // Tells the backend that this worker has ended `step` steps. Fault plans, and messages about workers that hang, use
  // this number. Returns at once.
  virtual void reached(std::uint64_t /*step*/) {}
  // Blocks until all live workers have called barrier(). Rounds and bounds do not wait for a worker inside the barrier.
  // In modes with rounds, the next steps of all workers belong to the same round. On return, the scheduler knows which
  // data this worker has committed. Other workers may already have made further steps, so pull before you compute on.
  // Pull also after a data_take_over() that waited. Barriers are counted anew from each data_part(), so every worker
  // must call data_part() between the same two barriers. Throws InvalidArgument if another worker waits in
  // data_take_over() for the end of an epoch, which this worker has not reached. Such a worker cannot go on: what it
  // pushes from then on does not count as delivered.
  void barrier() { all_gather({}, {}); }
  // A barrier at which each worker gives a value and gets the values of all workers. Every worker must pass the same
  // name; all names are empty in barrier(), where no values are exchanged. If two workers pass different names, all
  // throw InvalidArgument, and the barrier is over for all. The value of a worker that was lost before the barrier is
  // missing. A worker that joins a running job gets no values from barriers that the others have passed, and may meet
  // them under no name. The values of all workers together may have at most 32 MiB.
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
  // which positions were committed. Every position is delivered once, with one exception: positions that a lost worker
  // delivered and did not commit are delivered again.
  //
  // Returns this worker's part, {index, count}. The parts of an epoch are fixed over the workers that are live when the
  // first of them asks. A worker that joins later gets {0, 0}, and may only take over positions. If it has the rank of
  // a worker that was lost before its data_begin(), it gets the part of that worker instead. If other workers may
  // already take over that part, it gets {0, 0} as well.
  //
  // Numbers from 0 to 2^31 - 2 are epochs of training, and all others are evaluations. A worker that has asked for its
  // part of an epoch of training is taken to begin no evaluation that others began within an earlier one. If a worker
  // joined after the start, and nobody else has asked for the first epoch in which it trains, it waits until another
  // worker asks, or until no worker of an earlier epoch is left.
  virtual std::pair<int, int> data_part(std::int64_t epoch) = 0;
  // Begins an epoch. Call data_begin() before the first batch. Throws InvalidArgument if `on_request` or `order` differ
  // from those of another worker. A further call in the same epoch gives back the positions that this worker took over
  // and did not commit. From `all`, the scheduler knows the part of a worker that is lost before its data_begin().
  virtual void data_begin(std::int64_t epoch, const DataPlan& plan) = 0;
  // Reports that these positions were delivered and used. Blocks only while the scheduler answers late: three reports
  // are open, and the oldest is older than 100 ms. The report is sent when this worker's earlier pushes are
  // acknowledged. `dist_local` sends it when the round is over, and `gossip` sends it immediately. A note that is not
  // empty is kept with the positions. If this worker is lost, the positions and the note either both count, or neither
  // does.
  virtual void data_commit(std::int64_t epoch, const PositionRanges& done, const std::string& note = {}) = 0;
  // Returns every position of `epoch` that any worker has committed. Blocks until the scheduler has this worker's own
  // commits; `dist_local` ends its round for them. In a resumed job, rank 0 commits the positions of the checkpoint
  // before the other workers begin.
  virtual PositionRanges data_committed(std::int64_t epoch) = 0;
  // The notes of all commits of `epoch`, in the order of the first position of each commit. Those of an
  // evaluation may be gone when every worker has asked for its part of a later epoch of training.
  virtual std::vector<std::string> data_notes(std::int64_t epoch) = 0;
  // Returns positions of `epoch` that lost workers have left, or that are handed out on request. This worker must
  // deliver and commit them. An answer is a piece of the positions, and pieces shrink towards the end of an epoch. Call
  // again until the answer is empty.
  //
  // Without `wait`, more positions may appear after an empty answer, also in earlier epochs. With `wait`, blocks until
  // there are positions, or until every position of the epoch is committed; the answer is then empty. Before finish(),
  // call it with `wait` until the answer is empty. Rounds and bounds do not wait for a worker that waits here.
  //
  // Throws Error if a push of this worker has failed. The positions of that push do not count as delivered, and neither
  // do positions that are committed later, also after load(). Other workers can take them over when this worker has
  // ended. In `gossip`, and in `dist_local` between two rounds, a push whose gradient has failed is left out, and its
  // positions count.
  virtual PositionRanges data_take_over(std::int64_t epoch, bool wait, PieceSize size = {}) = 0;

  // Statistics of the job so far.
  virtual StoreReport report() = 0;
  // Collective: every live worker calls it. The leader gets the state, and the others get an empty one. If a worker
  // cannot do its part, every worker throws, and the error names this worker.
  virtual StoreState save() = 0;
  // Collective: every live worker calls it, after init() with the same keys. Only the state that the leader passes
  // counts. The job of the state may have had other numbers of servers and workers. In modes with servers, clocks move
  // forward to the clock of the state, and never back. If the state does not fit the keys or the rules, every worker
  // throws InvalidArgument, and all weights and states stay as they were. If the load fails later, every worker throws
  // an error that says that the state is loaded in part. In modes with servers, each worker then has the weights that
  // the servers have. The next load() changes all weights and states.
  virtual void load(const StoreState& state) = 0;

  // Blocks until every push is acknowledged, then leaves the job. The destructor leaves without waiting for pushes. If
  // the destructor runs because of an exception, it does not leave, and the others count this worker as lost.
  virtual void finish() = 0;
};

}  // namespace paceline
