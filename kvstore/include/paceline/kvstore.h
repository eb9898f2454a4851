#pragma once
// KVStore: parameters by name, pushed gradients, pulled weights. The same program runs alone and distributed. The mode
// is one string, `NAME[:key=value,...]`.
//
// - `local[:aggregate=A]`: one process. Several devices may push parts of one gradient (backend.h). Weights on an
//   accelerator stay there, and NCCL sums the gradients if it can (PACELINE_NCCL=0: never).
// - `device`, or `nccl`: as `local`, but the gradients are summed on the first of the devices.
// - `dist_sync[:backup=b][,aggregate=A]`, or `dist_sync_device`, `dist_device_sync`: rounds over the live workers,
//   bitwise the same in every run. With backup, a round closes without the last b workers, whose pushes are refused.
// - `dist_async[:bound=s][,staleness=P]`: servers apply each push as it arrives, corrected for its delay. With a bound,
//   no worker computes more than s steps ahead of the slowest. With bound=lo..hi the servers choose s in lo..hi at each
//   step to minimise the predicted wait.
// - `dist_local:steps=H[,averaging=A]`: every worker trains alone. Every H steps the weights are averaged. `average`
//   takes the mean, weighted by examples. `elastic` moves each worker and a centre towards each other by the share
//   alpha, asynchronously. `federated` takes the mean of a `fraction` of the workers, drawn for each round by `seed`. A
//   worker that is left out drops a step and waits. After a barrier all workers have the same weights.
// - `ring[:aggregate=A]`: no server. The workers add up each other's gradients in rank order.
// - `gossip[:steps=H][,seed=S]`: no server. Every worker trains alone. Every H steps it and another worker, drawn by
//   `seed`, move to the mean of their weights. No worker waits. After a barrier all workers have the mean.
//
// `aggregate` of `dist_sync` and `ring` says what a round applies: the `mean` of the gradients, weighted by examples
// (the default), or their `sum`, added up in rank order. `local` and `device` have the option for the gradients of
// several devices, and sum by default. Other modes refuse it: `dist_async` applies each push as it is.
//
// Keys of every dist mode:
// - `staleness` and the options of the policy, `transport`, `compression` (compression.h) and the options of the codec;
// - `pull`: the codec of weights, none, bf16 or fp16; by default `compression` where it is one of these;
// - `min_bytes`: smaller keys travel raw (4096);
// - `except` and `only`: patterns of key names joined by +, as `except=*bias*+norm*`;
// - `bandwidth`: bytes per second, or `measured`: encodes only keys whose pushes were measured to become faster.

#include <paceline/backend.h>
#include <paceline/cluster.h>
#include <paceline/staleness.h>

#include <atomic>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

// Options that the text of a mode cannot hold.
struct StoreOptions {
  // Modes, policies and codecs of the user's own that the text may name. Servers need them too (extensions.h).
  Extensions own;
  Engine* engine = nullptr;              // default_engine() where null
  double start_deadline_seconds = 60;    // until every process of the job has joined
  double silence_deadline_seconds = 15;  // until a silent peer counts as lost
};

// The store of a worker. One thread at a time calls it.
class KVStore {
 public:
  // Makes a store. In a distributed mode, create() reads the job from the environment (cluster.h) and joins it. It then
  // blocks until every process is there, and throws Timeout naming who is missing. In a process whose DMLC_ROLE is
  // scheduler or server, create() serves the job, and then ends the process. For an unknown mode or key it throws
  // InvalidArgument listing the known ones.
  static std::shared_ptr<KVStore> create(const std::string& mode, const StoreOptions& options = {});
  // Throws as create() does where the mode's text is wrong, or, with `tables`, where the mode holds no row-sparse
  // tables. Joins no job.
  static void check(const std::string& mode, bool tables = false, const Extensions& own = {});
  // Like create(), for a worker of a job that the caller describes instead of the environment. Several may live in one
  // process. Not for `local` and `device`.
  static std::shared_ptr<KVStore> join(const ClusterConfig& config, const std::string& mode,
                                       const StoreOptions& options = {});
  // A store on a backend of the caller's own.
  explicit KVStore(std::unique_ptr<Backend> backend, Spec mode);
  ~KVStore();

  const Spec& mode() const;     // as given to create(); an alias is replaced by the mode's own name
  bool is_distributed() const;  // false for `local` and `device`
  bool holds_tables() const;    // row-sparse tables: false for ring, gossip, dist_local, and dist_sync with backup
  // The backend of the store, which lives as long as the store.
  Backend& backend();

  int rank() const;  // of this worker, from 0
  int size() const;  // the number of workers at the start

  // Collective: every worker calls it with the same keys. Blocks. The values of rank 0 count, and the arrays of every
  // worker hold them on return. If workers name different shapes or types, throws InvalidArgument naming both. May be
  // called again for further keys.
  void init(const std::vector<InitValue>& values);
  // Every worker names the same optimizer. Blocks until every server has it. The call of the first worker counts. A
  // worker that names another spec gets InvalidArgument.
  void set_optimizer(const Spec& optimizer);
  // Blocks until every server has the rate.
  void set_learning_rate(double rate);

  // Pushes and pulls are engine tasks, as Backend says, and return at once. Gradients are means over `examples`, their
  // weight in a round; with aggregate=sum they are added up as they are. A push throws InvalidArgument before
  // set_optimizer(). Tasks of larger priority go first.
  void push(const std::string& key, const NDArray& gradient, std::int64_t examples = 1, int priority = 0);
  // The delay of the next push of a key counts from the last pull of that key, into any array. Compute the gradient
  // from the weights of that pull.
  void pull(const std::string& key, const NDArray& out, int priority = 0);
  // Lists in one call: array number i is of key number i. A key may be named several times where PushItem and PullItem
  // allow it. Throw InvalidArgument, and then do nothing, where one list is longer than the other.
  void push(const std::vector<std::string>& keys, const std::vector<NDArray>& gradients, std::int64_t examples = 1,
            int priority = 0);
  void pull(const std::vector<std::string>& keys, const std::vector<NDArray>& outs, int priority = 0);
  // The same for lists in braces, of which two keys would otherwise be taken for the ends of one.
  void push(std::initializer_list<std::string> keys, std::initializer_list<NDArray> gradients,
            std::int64_t examples = 1, int priority = 0) {
    push(std::vector<std::string>(keys), std::vector<NDArray>(gradients), examples, priority);
  }
  void pull(std::initializer_list<std::string> keys, std::initializer_list<NDArray> outs, int priority = 0) {
    pull(std::vector<std::string>(keys), std::vector<NDArray>(outs), priority);
  }
  // Both in one round trip, for several keys.
  void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights,
                 std::int64_t examples = 1, int priority = 0);
  // Declares a row-sparse table (row_tables.h), as Backend::init_tables().
  void init_table(const TableSpec& table);
  // Collective: every worker calls it at the same place, as init(). The table's rows begin with `values`, an array
  // (rows, width) of the table's type on any device, or what a function writes, which needs no array of the whole
  // table. Those of the live worker with the lowest rank count. Blocks until the servers have them; a worker that
  // joined_late() waits for them, too. The worker sends some 20 MB at a time, and a server keeps one copy of each row.
  void init_table(const TableSpec& table, const NDArray& values);
  void init_table(const TableSpec& table, const FirstRows& values);
  // Rows of tables: as Backend::push_pull_rows().
  void push_rows(const std::vector<RowPush>& rows, std::int64_t examples = 1, int priority = 0);
  void pull_rows(const std::vector<RowPull>& rows, int priority = 0);
  void push_pull_rows(const std::vector<RowPush>& gradients, const std::vector<RowPull>& rows,
                      std::int64_t examples = 1, int priority = 0);
  // As the functions of Backend with these names.
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
