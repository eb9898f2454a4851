#pragma once
// Slices of weights and the rules that change them, in one object: called directly by engine tasks in `local`, through
// messages by a server. It holds the only copy of the weights.

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

// A run of elements [begin, end) of a key, in row-major order; what lives on one server.
struct SliceInfo {
  std::string name;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  DType dtype = DType::kFloat32;                                                  // float32 or float64
  enum class Kind : std::uint8_t { kGradient, kAverage } kind = Kind::kGradient;  // kAverage: running statistics
};

// Weights of a slice at one version, never changed again. The buffer that is sent is the buffer that is remembered.
struct Snapshot {
  std::uint64_t version = 0;
  std::shared_ptr<const std::byte[]> data;
  std::size_t bytes = 0;
  std::shared_ptr<const Codec> codec = nullptr;  // that encoded the data; null: elements of the slice's type
};

// One gradient for one slice.
struct Contribution {
  int worker = 0;
  std::uint64_t version = 0;       // of the weights it was computed from
  std::int64_t examples = 0;       // it is the mean over that many
  const void* gradient = nullptr;  // (end - begin) elements of the slice's type; not kept
  const Codec* codec = nullptr;    // that encoded them (of float32 gradients); they passed its check()
  std::size_t bytes = 0;           // of encoded ones
};

// What a slice has counted; saved and loaded with it.
struct SliceCounters {
  std::uint64_t version = 0;
  std::int64_t examples = 0;
  // Updates since the optimizer's state began (Adam's t) and since the staleness policy's did: fewer than versions
  // where the rules were changed in mid-run or a checkpoint had no such state.
  std::int64_t optimizer_updates = 0;
  std::int64_t policy_updates = 0;
};

struct SliceContribution {
  int slice = 0;
  Contribution contribution;
};

// A slice whose weights `worker` wants copied to `out`; `version` is the answer.
struct SliceRead {
  int slice = 0;
  int worker = -1;
  void* out = nullptr;
  std::uint64_t version = 0;
};

struct Applied {
  std::uint64_t version = 0;  // after it
  std::int64_t delay = 0;
  bool refused = false;  // by the policy; counted
};

// Where a round's results are written to in the pass that makes them, whole slices; null: nowhere.
struct RoundCopies {
  void* mean = nullptr;    // of the gradients, as it was applied
  void* weight = nullptr;  // after the update
  // The weights, too; and here, in the caller's memory, they may stay until they change next. Only an update that is
  // given this place again writes to it then: that nobody else does is for the caller to see to.
  std::shared_ptr<std::byte[]> place = nullptr;
};

class Updater {
 public:
  virtual ~Updater() = default;

  // Replaces the rules. The optimizer's state goes on where its names stay the same, else it begins anew with zeros; so
  // does the policy's. A policy with a worker's half (dana) makes the optimizer plain SGD here. Throws InvalidArgument,
  // and changes nothing.
  virtual void set_rules(const Spec& optimizer, const std::string& staleness, const Options& staleness_options) = 0;
  // A policy of the user's own from now on, whatever set_rules() names.
  virtual void set_staleness(std::shared_ptr<const Staleness> policy) = 0;
  virtual void set_learning_rate(double rate) = 0;
  virtual void set_workers(int live) = 0;

  // Copies the initial elements. Returns the first's number, which the others follow. No two ranges of a key may
  // overlap, which is for the caller to see to.
  virtual int add_slices(std::span<const std::pair<SliceInfo, const void*>> slices) = 0;
  int add_slice(const SliceInfo& info, const void* initial) {
    const std::pair<SliceInfo, const void*> slice(info, initial);
    return add_slices({&slice, 1});
  }
  virtual SliceInfo info(int slice) const = 0;
  virtual int slice_count() const = 0;

  // Functions below are thread-safe; calls for the same slice take turns, for different slices run at once.

  // Corrects, updates, counts: one pass over the slice, which copies the weights after it to `copy` unless that is null
  // (also where the policy refuses). Throws InvalidArgument for a version from the future.
  virtual Applied apply(int slice, const Contribution& contribution, void* copy = nullptr) = 0;
  // Each in turn, in less time where there are many small ones; how many the policy refused.
  virtual int apply_all(std::span<const SliceContribution> contributions) = 0;
  // The mean of several contributions weighted by their examples, summed in the order given, applied as one update of
  // delay 0 (synchronous modes). A worker below 0 is in no histogram of delays.
  virtual Applied apply_round(int slice, const std::vector<Contribution>& contributions,
                              const RoundCopies& copies = {}) = 0;
  // Under these rules nothing but the weights remembers an update: take_round() can stand in for apply_round().
  virtual bool only_weights() const = 0;
  // The same update where another process has made it: `weights` are what apply_round() of `examples` examples left
  // there. They are kept, or copied where they are few, and copied to `copy` unless that is null. `worker`: as in a
  // Contribution.
  virtual Applied take_round(int slice, std::shared_ptr<const std::byte[]> weights, std::int64_t examples, int worker,
                             void* copy) = 0;
  // The weights now, encoded once per version and codec (float32 slices). `worker` >= 0: they are what that worker
  // computes from next (kept, as it gets them, where the policy needs it).
  virtual Snapshot pull(int slice, int worker, const std::shared_ptr<const Codec>& codec = nullptr) = 0;
  // The same, copied to `out`; returns the version.
  virtual std::uint64_t read(int slice, int worker, void* out) = 0;
  virtual void read_all(std::span<SliceRead> reads) = 0;
  // What the worker pulled last, where the policy needs it remembered; else without data.
  virtual Snapshot pulled(int slice, int worker) const = 0;
  // Changes the weights alone, where they lie (local training takes up others').
  virtual void change(int slice, const std::function<void(void* weight)>& action) = 0;
  virtual std::uint64_t version(int slice) const = 0;
  // Overwrites weights, state and counters from a checkpoint; missing state starts as zeros, and its count at 0. Throws
  // InvalidArgument on a size or a name that the rules do not have.
  virtual void load_slice(int slice, const NamedArrays& state, const SliceCounters& counters) = 0;
  // "weight" and every state array, copied, with the counters they belong to.
  virtual NamedArrays save_slice(int slice, SliceCounters* counters) = 0;

  // Forgets what a lost worker pulled of a slice, or said of it.
  virtual void drop_worker(int slice, int worker) = 0;

  // Delays of all applied pushes, per worker.
  virtual std::vector<Histogram> delays() const = 0;
  virtual std::int64_t refused() const = 0;
  virtual std::size_t pulled_bytes() const = 0;  // memory that remembered weights take now
};

std::unique_ptr<Updater> make_updater();

// An id of a name: the same in every process.
std::uint64_t hash_key(const std::string& name);

}  // namespace paceline
