#pragma once
// Updaters hold slices of weights and the rules that change the weights. In mode `local`, engine tasks call an updater.
// A server calls its updaters when messages arrive.

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
  std::string name;               // name of the key
  std::int64_t begin = 0;         // the first element
  std::int64_t end = 0;           // one past the last element
  DType dtype = DType::kFloat32;  // float32 or float64
  // How the slice changes: by gradients, or by means over the workers, as running statistics do.
  enum class Kind : std::uint8_t { kGradient, kAverage } kind = Kind::kGradient;
};

// The weights of a slice at one version. A snapshot never changes, so the server can remember exactly what it sent.
struct Snapshot {
  std::uint64_t version = 0;                     // number of updates that led to these weights
  std::shared_ptr<const std::byte[]> data;       // the weights
  std::size_t bytes = 0;                         // size of the data
  std::shared_ptr<const Codec> codec = nullptr;  // codec of the data; null: elements of the slice's type
};

// One gradient for one slice.
struct Contribution {
  int worker = 0;                  // rank of the worker that sent the gradient
  std::uint64_t version = 0;       // version of the weights that the gradient was computed from
  std::int64_t examples = 0;       // number of examples that the gradient is the mean of
  const void* gradient = nullptr;  // elements of the slice's type, or encoded bytes; read only during the call
  const Codec* codec = nullptr;    // codec of an encoded float32 gradient, which has passed check(); null: not encoded
  std::size_t bytes = 0;           // size of an encoded gradient
  // The update uses these numbers if they are resolved. Otherwise apply_all() computes them and writes them here.
  ResolvedScalars scalars = {};
};

// Counters of a slice, which are saved and loaded with it.
struct SliceCounters {
  std::uint64_t version = 0;  // number of updates of the weights
  std::int64_t examples = 0;  // number of examples in all applied gradients
  // Number of updates since the optimizer's state began (t in Adam), and since the staleness policy's state began. A
  // number is below `version` if new rules have reset this state, or if a checkpoint had no such state.
  std::int64_t optimizer_updates = 0;
  std::int64_t policy_updates = 0;
};

// A gradient and its slice.
struct SliceContribution {
  int slice = 0;              // number of the slice
  Contribution contribution;  // the gradient
};

// A slice to copy.
struct SliceRead {
  int slice = 0;              // number of the slice
  int worker = -1;            // as in Updater::pull()
  void* out = nullptr;        // where the weights go
  std::uint64_t version = 0;  // set by read_all(): version of the weights
};

// The result of applying a gradient.
struct Applied {
  std::uint64_t version = 0;     // version of the weights after the update
  std::int64_t delay = 0;        // number of updates between pull and push
  bool refused = false;          // true: the policy refused the gradient, and refused() counts it
  ResolvedScalars scalars = {};  // the numbers that the update used
};

// Where apply_round() writes copies of the whole slice; null: no copy.
struct RoundCopies {
  void* gradient = nullptr;  // the combined gradient that was applied
  void* weight = nullptr;    // the weights after the update
  // Gets the weights after the update. The updater may use this memory of the caller for the weights until they change.
  // Until then, nobody may write there, except an apply_round() that gets the same `place`.
  std::shared_ptr<std::byte[]> place = nullptr;
};

// Holds slices of weights, and changes them by the rules. Thread-safe. Calls for one slice run one after the other, and
// calls for different slices run in parallel. A call that changes rules or adds slices runs alone.
class Updater {
 public:
  virtual ~Updater() = default;

  // Replaces the rules. The optimizer's state is kept if the names of its arrays stay the same. Otherwise it begins
  // anew with zeros. The same holds for the policy's state. A policy that keeps the momentum at the worker (`dana`)
  // makes the optimizer plain SGD here. The policy may be one of `own`. If the rules are wrong, throws InvalidArgument
  // and changes nothing.
  virtual void set_rules(const Spec& optimizer, const std::string& staleness, const Options& staleness_options,
                         const Extensions& own = {}) = 0;
  // Set the base of the learning rate, and the number of live workers, for later updates. set_learning_rate() throws
  // InvalidArgument for a rate below 0.
  virtual void set_learning_rate(double rate) = 0;
  virtual void set_workers(int live) = 0;

  // Adds slices, and copies their first weights. The slices get consecutive numbers. Returns the first number. Ranges
  // of a key must not overlap. This is not checked.
  virtual int add_slices(std::span<const std::pair<SliceInfo, const void*>> slices) = 0;
  int add_slice(const SliceInfo& info, const void* initial) {
    const std::pair<SliceInfo, const void*> slice(info, initial);
    return add_slices({&slice, 1});
  }
  // The description of a slice.
  virtual SliceInfo info(int slice) const = 0;

  // Corrects the gradient, updates the weights and counts the update, in one pass over the slice. Copies the weights to
  // `copy` unless that is null, even if the policy refuses the gradient. Throws InvalidArgument for a version that does
  // not yet exist.
  virtual Applied apply(int slice, const Contribution& contribution, void* copy = nullptr) = 0;
  // Applies several gradients in order, faster than single calls for many small slices. Returns how many gradients the
  // policy refused. If an update throws, applies the others nevertheless, and then throws the first error.
  virtual int apply_all(std::span<SliceContribution> contributions) = 0;
  // Applies the mean or the sum of several contributions as one update of delay 0. If every contribution has a codec
  // that votes(), applies the sign of their sum instead. The gradients are added in the order given. A contribution of
  // a worker below 0 enters no histogram of delays. Its running statistics count only while no other worker has any.
  // Uses `scalars` if they are resolved.
  virtual Applied apply_round(int slice, const std::vector<Contribution>& contributions, const RoundCopies& copies = {},
                              const ResolvedScalars& scalars = {}, Aggregate aggregate = Aggregate::kMean) = 0;
  // Do the rules keep no state besides the weights? Then take_round() can replace apply_round().
  virtual bool only_weights() const = 0;
  // Takes over a round that another process has applied. `weights` are the weights after the apply_round() of that
  // process. The updater keeps `weights` if they are large, and copies them if they are small. Also copies them to
  // `copy` unless that is null. `examples` and `worker` are as in a Contribution.
  virtual Applied take_round(int slice, std::shared_ptr<const std::byte[]> weights, std::int64_t examples, int worker,
                             void* copy) = 0;
  // Returns the present weights, encoded by `codec` unless that is null. Only float32 slices can be encoded. The
  // weights are encoded once for each version and codec. A `worker` of 0 or above computes its next gradient from these
  // weights. If the policy needs pulled weights, the updater remembers the weights as the worker decodes them.
  virtual Snapshot pull(int slice, int worker, const std::shared_ptr<const Codec>& codec = nullptr) = 0;
  // As pull() without a codec, but copies the weights to `out` and returns the version. read_all() does this for
  // several slices.
  virtual std::uint64_t read(int slice, int worker, void* out) = 0;
  virtual void read_all(std::span<SliceRead> reads) = 0;
  // The weights that the worker pulled last. A snapshot without data if the updater remembers none.
  virtual Snapshot pulled(int slice, int worker) const = 0;
  // Lets `action` change the weights in place. The version stays the same. Modes that train at the workers use this to
  // average with other workers.
  virtual void change(int slice, const std::function<void(void* weight)>& action) = 0;
  // The version of a slice's weights.
  virtual std::uint64_t version(int slice) const = 0;
  // Overwrites weights, state and counters from a checkpoint. Missing state begins with zeros and a count of 0. Throws
  // InvalidArgument for a wrong size, or for a name that the rules do not have.
  virtual void load_slice(int slice, const NamedArrays& state, const SliceCounters& counters) = 0;
  // Returns copies of "weight" and of the state arrays that exist. Writes the counters to `counters` unless that is
  // null.
  virtual NamedArrays save_slice(int slice, SliceCounters* counters) = 0;

  // Forgets the weights of a slice that a worker pulled. Call it when the worker was lost or has left. Also removes the
  // worker's part from the mean of running statistics. If no other worker has a part in it, the part stays until
  // another worker has one.
  virtual void drop_worker(int slice, int worker) = 0;

  virtual std::vector<Histogram> delays() const = 0;  // delays of all applied gradients, in versions, by worker
  virtual std::int64_t refused() const = 0;           // number of gradients that the policy refused
  virtual std::size_t pulled_bytes() const = 0;       // bytes of remembered weights at present
};

// An updater without slices, whose rules are the optimizer `sgd` and the policy `none`.
std::unique_ptr<Updater> make_updater();

// A hash of a name, the same in every process.
std::uint64_t hash_key(const std::string& name);

}  // namespace paceline
