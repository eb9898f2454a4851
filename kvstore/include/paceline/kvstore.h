#pragma once
// KVStore: workers share named parameters, push gradients and pull weights. The same program runs alone and
// distributed. One string chooses the mode: `NAME[:option=value,...]`.
//
// - `local[:aggregate=A]`: one process. Several devices may push gradients of one key (backend.h). Float32 weights on
//   an accelerator stay there. NCCL sums the gradients of several GPUs if possible (PACELINE_NCCL=0: never).
// - `device`, or `nccl`: as `local`, but gradients that `local` would sum on the CPU are summed on the first of their
//   devices.
// - `dist_sync[:backup=b][,aggregate=A]`, or `dist_sync_device`, `dist_device_sync`: rounds over the live workers.
//   Without backup, every run gives the same bits. With backup, a round closes without the last b workers, and their
//   pushes are refused.
// - `dist_async[:bound=s][,staleness=P]`: servers apply each push as it arrives, corrected for its delay. With a bound,
//   a pull waits while its worker is more than s steps ahead of the slowest. So no worker that pulls in every step
//   computes further ahead; a worker that only pushes is not held. With bound=lo..hi, the servers choose s in lo..hi
//   at each step to minimise the predicted wait.
// - `dist_local:steps=H[,averaging=F]`: every worker trains alone, and every H steps the weights are averaged.
//   `average` takes the mean, weighted by examples. `elastic` moves each worker's weights and the servers' weights
//   towards each other by the share `alpha`, and no worker waits. `federated` takes the mean over a `fraction` of the
//   workers, drawn for each round with `seed`. A worker that is not drawn drops a step and waits. After a barrier all
//   workers have the same weights.
// - `ring[:aggregate=A]`: no server. The workers sum each other's gradients in a fixed order.
// - `gossip[:steps=H][,seed=S]`: no server. Every worker trains alone. Every H steps, a worker and another one, drawn
//   with `seed`, move to the mean of their weights. No worker waits. After a barrier all workers have the mean of all
//   weights.
//
// In `dist_sync` and `ring`, `aggregate` says what a round applies: the `mean` of the gradients, weighted by examples
// (the default), or their `sum`. In `local` and `device`, `aggregate` says the same for the gradients of several
// devices, and `sum` is the default. Other modes refuse the option: `dist_async`, for instance, applies each push on
// its own.
//
// The dist modes have these further options. `ring` has them too, except `staleness` and `bandwidth`. `gossip` has only
// `transport`.
// - `staleness` and the options of the policy (staleness.h), but not in `dist_local`;
// - `transport` (transport.h);
// - `compression` and the options of the codec (compression.h);
// - `pull`: the codec of weights, `none`, `bf16` or `fp16`. The default is the codec of `compression` if it suits
//   weights;
// - `min_bytes`: keys with fewer bytes are not encoded (4096);
// - `except` and `only`: patterns of the names of keys that are not encoded, and of the only keys that are encoded; +
//   joins patterns, as `except=*bias*+norm*`;
// - `bandwidth`: bytes per second of the link, or `measured`. Keys whose pushes would not become faster are then not
//   encoded. This choice follows from measured times, so results may differ from run to run.

#include <paceline/backend.h>
#include <paceline/cluster.h>
#include <paceline/staleness.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

// Options that the text of a mode cannot hold. A deadline that differs from its default here replaces the deadline of
// the environment or of the ClusterConfig.
struct StoreOptions {
  // Modes, policies and codecs of the user's own that the text may name. Servers need them too (extensions.h).
  Extensions own;
  Engine* engine = nullptr;              // null: default_engine()
  double start_deadline_seconds = 60;    // time for every process of the job to join
  double silence_deadline_seconds = 15;  // time until a silent peer counts as lost
};

// The store of a worker. One thread at a time may call it.
class KVStore {
 public:
  // Makes a store. In a distributed mode, create() reads the job from the environment (cluster.h) and joins it. Blocks
  // until every process has joined. At the start deadline, throws Timeout naming the missing processes. In a process
  // whose DMLC_ROLE is scheduler or server, create() serves the job and then ends the process. For an unknown mode or
  // option, throws InvalidArgument listing the known ones.
  static std::shared_ptr<KVStore> create(const std::string& mode, const StoreOptions& options = {});
  // Throws InvalidArgument if create() would refuse the text of the mode. With `tables`, also throws if the mode holds
  // no row-sparse tables. Joins no job.
  static void check(const std::string& mode, bool tables = false, const Extensions& own = {});
  // Like create(), for a worker of a job that `config` describes instead of the environment. Several workers may live
  // in one process. For `local` and `device`, throws InvalidArgument.
  static std::shared_ptr<KVStore> join(const ClusterConfig& config, const std::string& mode,
                                       const StoreOptions& options = {});
  // Makes a store on a backend of the caller's own. mode() then returns `mode`.
  explicit KVStore(std::unique_ptr<Backend> backend, Spec mode);
  ~KVStore();

  const Spec& mode() const;     // the mode that create() got; an alias is replaced by the mode's own name
  bool is_distributed() const;  // false for `local` and `device`
  bool holds_tables() const;    // row-sparse tables: false for ring, gossip, dist_local, and dist_sync with backup
  // The backend of the store, which lives as long as the store.
  Backend& backend();

  int rank() const;  // rank of this worker, from 0
  int size() const;  // number of workers at the start of the job

  // Collective: every worker calls it with the same keys, of float32 or float64. Blocks. The values of the live worker
  // with the lowest rank count. On return, the arrays of every worker hold these values. If two workers name different
  // keys, shapes or types, throws InvalidArgument naming both workers. May be called again for further keys.
  void init(const std::vector<InitValue>& values);
  // Sets the update rule. Every worker names the same optimizer. Blocks until every server has it. The first worker's
  // call counts. A worker that names another spec gets InvalidArgument. In `ring`, every call after the first is
  // collective, and all earlier pushes are applied by the old rule.
  void set_optimizer(const Spec& optimizer);
  // Sets the base rate, which the schedule scales. Blocks until every server has the rate; in `ring`, until every
  // worker has it. In `gossip` and `dist_local`, only the rate of this worker changes. Throws InvalidArgument for a
  // rate below 0.
  void set_learning_rate(double rate);

  // Pushes and pulls are engine tasks and return at once, see Backend. A gradient is the mean over `examples` examples,
  // and `examples` is the weight of the gradient in a round. With aggregate=sum, gradients are added as they are. A
  // push before set_optimizer() throws InvalidArgument. Tasks of larger priority go first.
  void push(const std::string& key, const NDArray& gradient, std::int64_t examples = 1, int priority = 0);
  // The delay of the next push of a key counts from the last pull of that key, into any array. Compute the gradient
  // from the weights of that pull.
  void pull(const std::string& key, const NDArray& out, int priority = 0);
  // Several keys in one call: array number i belongs to key number i. PushItem and PullItem say when a key may be named
  // several times. If one list is longer than the other, the call throws InvalidArgument and does nothing.
  void push(const std::vector<std::string>& keys, const std::vector<NDArray>& gradients, std::int64_t examples = 1,
            int priority = 0);
  void pull(const std::vector<std::string>& keys, const std::vector<NDArray>& outs, int priority = 0);
  // The same for lists in braces. Without these overloads, two keys in braces would be taken for the begin and the end
  // of one string.
  void push(std::initializer_list<std::string> keys, std::initializer_list<NDArray> gradients,
            std::int64_t examples = 1, int priority = 0) {
    push(std::vector<std::string>(keys), std::vector<NDArray>(gradients), examples, priority);
  }
  void pull(std::initializer_list<std::string> keys, std::initializer_list<NDArray> outs, int priority = 0) {
    pull(std::vector<std::string>(keys), std::vector<NDArray>(outs), priority);
  }
  // push() and pull() of several keys in one call, see Backend::push_pull().
  void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights,
                 std::int64_t examples = 1, int priority = 0);
  // Declares a row-sparse table (row_tables.h), as Backend::init_tables().
  void init_table(const TableSpec& table);
  // Collective, as init(): all workers make their collective calls in the same order. Declares a table and sets the
  // first values of its rows. `values` is an array (rows, width) of the table's type on any device, or a function that
  // writes some rows at a time. With a function, no array of the whole table is needed. The values of the live worker
  // with the lowest rank count. That worker sends about 16 MiB at a time, and a server keeps one copy of each row.
  // Blocks until the servers have all values, also at a worker that joined late. Throws InvalidArgument if the array
  // has another shape or type.
  void init_table(const TableSpec& table, const NDArray& values);
  void init_table(const TableSpec& table, const FirstRows& values);
  // Push and pull rows of tables, as Backend::push_pull_rows().
  void push_rows(const std::vector<RowPush>& rows, std::int64_t examples = 1, int priority = 0);
  void pull_rows(const std::vector<RowPull>& rows, int priority = 0);
  void push_pull_rows(const std::vector<RowPush>& gradients, const std::vector<RowPull>& rows,
                      std::int64_t examples = 1, int priority = 0);
  // These functions do what the Backend functions of the same names do. In addition, all_gather() throws
  // InvalidArgument for an empty name, and for a value of more than 32 MiB / size(). A saved state does not hold the
  // rate of set_learning_rate(), and load() does not change the rate. So a job that resumes sets its rate again.
  // Schedules go on from the state, which holds the number of examples so far.
  void step_end();
  void barrier();
  GatheredValues all_gather(const std::string& name, const std::string& value);
  void put_fact(const std::string& name, const std::string& value);
  Facts facts(const std::string& prefix);
  StoreReport report();
  StoreState save();
  void load(const StoreState& state);
  void finish();

 private:
  Spec mode_;
  std::unique_ptr<Backend> backend_;
  void require_optimizer() const;

  std::int64_t loads_ = 0;
  std::uint64_t steps_ = 0;
  std::atomic<bool> has_optimizer_ = false;
};

}  // namespace paceline
