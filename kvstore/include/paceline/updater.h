#pragma once
// Updaters hold slices of weights and the rules that change them. Engine tasks call them in mode `local`. A server
// calls them when messages arrive.

#include <paceline/aggregate.h>
#include <paceline/compression.h>
#include <paceline/histogram.h>
#include <paceline/ndarray.h>
#include <paceline/optimizer.h>
#include <paceline/staleness.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace paceline {

// A run of elements [begin, end) of a key, in row-major order.
struct SliceInfo {
  std::string name;               // of the key
  std::int64_t begin = 0;         // the first element
  std::int64_t end = 0;           // one past the last element
  DType dtype = DType::kFloat32;  // float32 or float64
  // How the slice changes: by gradients, or by means over the workers, as running statistics do.
  enum class Kind : std::uint8_t { kGradient, kAverage } kind = Kind::kGradient;
};

// The weights of a slice at one version. They never change, so the server may remember exactly what it sent.
struct Snapshot {
  std::uint64_t version = 0;                     // number of updates before it
  std::shared_ptr<const std::byte[]> data;       // the weights
  std::size_t bytes = 0;                         // of the data
  std::shared_ptr<const Codec> codec = nullptr;  // the data is encoded with it; null: elements of the slice's type
};

// One gradient for one slice.
struct Contribution {
  int worker = 0;                  // the rank that sent it
  std::uint64_t version = 0;       // of the weights that it was computed from
  std::int64_t examples = 0;       // it is the mean over that many
  const void* gradient = nullptr;  // (end - begin) elements of the slice's type; read only during the call
  const Codec* codec = nullptr;  // a float32 gradient is encoded with it, and has passed its check(); null: not encoded
  std::size_t bytes = 0;         // of an encoded gradient
  // Used if they are resolved. Otherwise apply_all() computes them and writes them here.
  ResolvedScalars scalars = {};
};

// Counters of a slice, which are saved and loaded with it.
struct SliceCounters {
  std::uint64_t version = 0;  // updates of the weights
  std::int64_t examples = 0;  // in all applied gradients
  // Updates since the state of the optimizer (Adam's t), or of the staleness policy, began. They are fewer than
  // `version` if the rules changed during the run, or if a checkpoint had no such state.
  std::int64_t optimizer_updates = 0;
  std::int64_t policy_updates = 0;
};

// A gradient and its slice.
struct SliceContribution {
  int slice = 0;              // its number
  Contribution contribution;  // the gradient
};

// A slice to copy.
struct SliceRead {
  int slice = 0;              // its number
  int worker = -1;            // as in Updater::pull()
  void* out = nullptr;        // where the weights go
  std::uint64_t version = 0;  // set by read_all(): of the weights
};

// The result of applying a gradient.
struct Applied {
  std::uint64_t version = 0;     // of the weights afterwards
  std::int64_t delay = 0;        // updates between pull and push
  bool refused = false;          // the policy refused it, which is counted
  ResolvedScalars scalars = {};  // that the update used
};

// Where apply_round() writes copies of the whole slice; null: no copy.
struct RoundCopies {
  void* gradient = nullptr;  // what the gradients made together, as it was applied
  void* weight = nullptr;    // the weights after the update
  // The weights after the update, in memory of the caller, where the updater may keep them until they change. Only an
  // update that is given this place again may write there; the caller sees to that.
  std::shared_ptr<std::byte[]> place = nullptr;
};

// Holds the only copy of the weights. Thread-safe. Calls for one slice run one after the other, and calls for different
// slices run at once. A call that changes rules or adds slices runs alone.
class Updater {
 public:
  virtual ~Updater() = default;

  // Replaces the rules. The states of optimizer and policy go on where their names stay the same, else they begin anew
  // with zeros. A policy that keeps the momentum at the worker (dana) makes the optimizer plain SGD here. The policy
  // may be one of `own`. Throws InvalidArgument, and then changes nothing.
  virtual void set_rules(const Spec& optimizer, const std::string& staleness, const Options& staleness_options,
                         const Extensions& own = {}) = 0;
  // The learning rate, and the number of live workers, from now on.
  virtual void set_learning_rate(double rate) = 0;
  virtual void set_workers(int live) = 0;

  // Adds slices, and copies their first weights. The slices get consecutive numbers. Returns the first number. Ranges
  // of a key must not overlap. This is not checked.
  virtual int add_slices(std::span<const std::pair<SliceInfo, const void*>> slices) = 0;
  int add_slice(const SliceInfo& info, const void* initial) {
    const std::pair<SliceInfo, const void*> slice(info, initial);
    return add_slices({&slice, 1});
  }
  // What a slice is, and how many there are.
  virtual SliceInfo info(int slice) const = 0;
  virtual int slice_count() const = 0;

  // Corrects the gradient, updates the weights and counts, in one pass over the slice. Then copies the weights to
  // `copy` unless that is null, even if the policy refuses the gradient. Throws InvalidArgument for a version that does
  // not yet exist.
  virtual Applied apply(int slice, const Contribution& contribution, void* copy = nullptr) = 0;
  // Applies several gradients in order, faster than single calls for many small slices. Returns how many gradients the
  // policy refused. If an update throws, applies the others nevertheless, and then throws the first error.
  virtual int apply_all(std::span<SliceContribution> contributions) = 0;
  // Applies the mean or the sum of several contributions as one update of delay 0. They are added up in the order
  // given. A worker below 0 is in no histogram of delays. `scalars` are taken where they are resolved.
  virtual Applied apply_round(int slice, const std::vector<Contribution>& contributions, const RoundCopies& copies = {},
                              const ResolvedScalars& scalars = {}, Aggregate aggregate = Aggregate::kMean) = 0;
  // Is there no state but the weights? Then take_round() can stand in for apply_round().
  virtual bool only_weights() const = 0;
  // Takes over the update of a round that another process has applied. `weights` are the result of its apply_round().
  // The updater keeps large weights and copies small ones. It also copies them to `copy` unless that is null.
  // `examples` and `worker` are as in a Contribution.
  virtual Applied take_round(int slice, std::shared_ptr<const std::byte[]> weights, std::int64_t examples, int worker,
                             void* copy) = 0;
  // The present weights, encoded once for each version and codec (float32 slices). A `worker` of 0 or above computes
  // from these weights next. If the policy needs pulled weights, the updater remembers them as the worker gets them.
  virtual Snapshot pull(int slice, int worker, const std::shared_ptr<const Codec>& codec = nullptr) = 0;
  // The same, but copies the weights to `out` and returns the version. read_all() does this for several slices.
  virtual std::uint64_t read(int slice, int worker, void* out) = 0;
  virtual void read_all(std::span<SliceRead> reads) = 0;
  // The weights that the worker pulled last. A snapshot without data if the policy does not need them.
  virtual Snapshot pulled(int slice, int worker) const = 0;
  // Lets `action` change the weights in place, without an update. Local training uses it to average with other workers.
  virtual void change(int slice, const std::function<void(void* weight)>& action) = 0;
  // The version of a slice's weights.
  virtual std::uint64_t version(int slice) const = 0;
  // Overwrites weights, state and counters from a checkpoint. Missing state begins with zeros and a count of 0. Throws
  // InvalidArgument for a wrong size, or for a name that the rules do not have.
  virtual void load_slice(int slice, const NamedArrays& state, const SliceCounters& counters) = 0;
  // Copies of "weight" and of every state array, with their counters.
  virtual NamedArrays save_slice(int slice, SliceCounters* counters) = 0;

  // Forgets the weights of a slice that a lost worker pulled.
  virtual void drop_worker(int slice, int worker) = 0;

  virtual std::vector<Histogram> delays() const = 0;  // of all applied gradients, by worker, in versions
  virtual std::int64_t refused() const = 0;           // gradients that the policy refused
  virtual std::size_t pulled_bytes() const = 0;       // memory of remembered weights at present
};

// An updater without slices, whose rules are the optimizer `sgd` and the policy `none`.
std::unique_ptr<Updater> make_updater();

// A hash of a name, the same in every process.
std::uint64_t hash_key(const std::string& name);

}  // namespace paceline
