#pragma once
// KVStore: parameters by name, pushed gradients, pulled weights. The same program runs alone and distributed: the mode
// is one string, `NAME[:key=value,...]`.
//   local                                   in this process; several devices push parts of one gradient (exchange.h)
//   device                                  the same, summed on the first of the devices; or `nccl`. In both, weights
//                                           on an accelerator stay there; NCCL sums if it can (PACELINE_NCCL=0: not)
//   dist_sync[:backup=b]                    rounds over the live workers, bitwise the same from run to run; with backup
//                                           they close without the last b, whose pushes are refused; also
//                                           `dist_sync_device` and `dist_device_sync`
//   dist_async[:bound=s][,staleness=P][,..] each push as it arrives, corrected for its delay; with a bound nobody
//                                           computes more than s steps ahead of the slowest; with bound=lo..hi the
//                                           servers choose one of them at every step, where the wait is predicted
//                                           shortest
//   dist_local:steps=H[,averaging=A]        every worker trains alone, and each H steps the weights meet: `average`
//   (the
//                                           mean, by examples), `elastic` (drawn to a centre by alpha, asynchronously)
//                                           or `federated` (a `fraction` of the workers in each round, drawn by `seed`;
//                                           one that is left out drops a step and waits); after a barrier all are equal
//   ring                                    no server: workers add up each other's gradients in rank order
//   gossip[:steps=H][,seed=S]               no server: every worker trains alone, and each H steps its weights and
//   those
//                                           of another one, drawn by `seed`, move to their mean; nobody waits; after a
//                                           barrier all hold the mean
// Keys of every dist mode: staleness, transport, and the policy's own options; compression (compression.h) with the
// codec's own options, pull (codec of the weights: none, bf16, fp16; the same as `compression` where that is one of
// them), min_bytes (4096: smaller keys travel raw), except and only (patterns of key names joined by '+', as
// `except=*bias*+norm*`), bandwidth (bytes per second, or `measured`: encode only keys where that was measured to pay).

#include <paceline/cluster.h>
#include <paceline/exchange.h>
#include <paceline/staleness.h>

#include <atomic>
#include <memory>
#include <string>

namespace paceline {

struct StoreOptions {
  // A policy of the user's own, an object instead of a name. Servers must have it too: pass it to serve(), or start the
  // same program in every role; set_optimizer() throws InvalidArgument where a server (paceline_server) has none.
  std::shared_ptr<const Staleness> staleness;
  Engine* engine = nullptr;              // default_engine() where null
  double start_deadline_seconds = 60;    // until every process of the job has joined
  double silence_deadline_seconds = 15;  // until a silent peer is lost
};

class KVStore {
 public:
  // Distributed modes read the job from the environment (cluster.h) and join it: blocks until every process is there;
  // throws Timeout naming who is missing. In a process whose DMLC_ROLE is scheduler or server it serves and then ends
  // the process. Throws InvalidArgument on unknown modes and keys, listing the known ones.
  static std::shared_ptr<KVStore> create(const std::string& mode, const StoreOptions& options = {});
  // Throws as create() does where the mode's text is wrong or, with `tables`, where the mode holds no row-sparse
  // tables; joins nothing.
  static void check(const std::string& mode, bool tables = false);
  // The same as create() for a worker of a job that the caller describes instead of the environment; several may live
  // in one process. Not for `local`.
  static std::shared_ptr<KVStore> join(const ClusterConfig& config, const std::string& mode,
                                       const StoreOptions& options = {});
  // Over an exchange of the caller's own.
  explicit KVStore(std::unique_ptr<Exchange> exchange, Spec mode);
  ~KVStore();

  const Spec& mode() const;
  bool is_distributed() const;
  bool holds_tables() const;  // row-sparse ones; not ring, gossip, dist_local and dist_sync with backup
  Exchange& exchange();

  int rank() const;
  int size() const;

  // Collective; rank 0's values count, every worker's arrays hold them on return. Blocks. A different shape or type at
  // another worker throws InvalidArgument naming both. May be called again for further keys.
  void init(const std::vector<InitValue>& values);
  // Collective in effect: names a registered optimizer and its parameters; acknowledged by every server before it
  // returns. The first worker's call counts, another spec from another worker throws InvalidArgument.
  void set_optimizer(const Spec& optimizer);
  // Acknowledged by every server before it returns.
  void set_learning_rate(double rate);

  // Engine tasks, see Exchange. Gradients are means over `examples`. A push throws InvalidArgument before
  // set_optimizer().
  void push(const std::string& key, const NDArray& gradient, std::int64_t examples = 1, int priority = 0);
  // The next push of the key counts its delay from the last pull of it, into whatever array: pull last what you compute
  // from.
  void pull(const std::string& key, const NDArray& out, int priority = 0);
  void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights,
                 std::int64_t examples = 1, int priority = 0);
  // Row-sparse tables, see row_tables.h and Exchange.
  void init_table(const TableSpec& table);
  void push_rows(const std::vector<RowPush>& rows, std::int64_t examples = 1, int priority = 0);
  void pull_rows(const std::vector<RowPull>& rows, int priority = 0);
  void push_pull_rows(const std::vector<RowPush>& gradients, const std::vector<RowPull>& rows,
                      std::int64_t examples = 1, int priority = 0);
  void step_end(std::int64_t examples);
  void barrier();

  StoreReport report();
  StoreState save();
  void load(const StoreState& state);
  void finish();

 private:
  Spec mode_;
  std::unique_ptr<Exchange> exchange_;
  void require_optimizer() const;

  std::int64_t loads_ = 0;
  std::atomic<bool> has_optimizer_ = false;
};

}  // namespace paceline
