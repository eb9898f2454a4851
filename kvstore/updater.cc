#include <paceline/detail/host_memory.h>
#include <paceline/mutex.h>
#include <paceline/updater.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <shared_mutex>
#include <span>

#include "stream_copy.h"
#include "weights.h"

namespace paceline {
namespace {

using Bytes = std::vector<std::byte>;

struct Rules {
  std::shared_ptr<const Optimizer> optimizer;
  std::shared_ptr<const Staleness> named, staleness;  // the user's own may stand in for the named one
  Preparation preparation;
  LearningRate rate;
  std::vector<std::string> state_names;  // the optimizer's, then the policy's
  std::size_t optimizer_states = 0;

  void use(const std::shared_ptr<const Staleness>& own) {
    staleness = own ? own : named;
    state_names = optimizer->state_names();
    optimizer_states = state_names.size();
    for (const std::string& name : staleness->state_names()) state_names.push_back(name);
  }
  std::span<const std::string> optimizer_names() const { return std::span(state_names).first(optimizer_states); }
  std::span<const std::string> policy_names() const { return std::span(state_names).subspan(optimizer_states); }
};

struct Slice {
  SliceInfo info;
  mutable Mutex mutex;
  Weights weight GUARDED_BY(mutex);
  std::map<std::string, Bytes> state GUARDED_BY(mutex);
  SliceCounters counters GUARDED_BY(mutex);
  std::int64_t refused GUARDED_BY(mutex) = 0;
  std::vector<Snapshot> latest GUARDED_BY(mutex);  // encoded, of one version, one per codec that was asked for
  std::map<int, Snapshot> pulled GUARDED_BY(mutex);  // what each worker pulled last
  std::vector<Histogram> delays GUARDED_BY(mutex);
  std::map<int, Bytes> averaged GUARDED_BY(mutex);  // kind kAverage: what each worker said last

  bool is_average() const { return info.kind == SliceInfo::Kind::kAverage; }
  std::int64_t count() const { return info.end - info.begin; }
};

class UpdaterImpl final : public Updater {
 public:
  UpdaterImpl() {
    set_rules(Spec{"sgd", {}}, "none", {});
  }

  void set_rules(const Spec& optimizer, const std::string& staleness, const Options& staleness_options) override {
    auto rules = std::make_shared<Rules>();
    rules->optimizer = make_optimizer(optimizer);
    rules->named = make_staleness(staleness, staleness_options);
    rules->rate = LearningRate::parse(optimizer.options);
    if (has_part(staleness, "dana")) {
      require(rules->optimizer->worker_momentum() >= 0, "staleness policy 'dana' keeps the optimizer's momentum at the "
              "workers, which optimizer '", optimizer.name, "' cannot give up; use gap_aware with it");
      rules->optimizer = make_optimizer(Spec{"sgd", {}});
    } else {
      rules->preparation = Preparation::parse(optimizer.options);
    }
    std::unique_lock lock(rules_mutex_);
    install(std::move(rules));
  }

  void set_staleness(std::shared_ptr<const Staleness> policy) override {
    std::unique_lock lock(rules_mutex_);
    own_ = std::move(policy);
    auto rules = std::make_shared<Rules>(*rules_);
    install(std::move(rules));
  }

  void set_learning_rate(double rate) override {
    require(rate >= 0, "the learning rate is ", rate, ", expected at least 0");
    std::unique_lock lock(rules_mutex_);
    rules_->rate.set_base(rate);
  }

  void set_workers(int live) override {
    std::unique_lock lock(rules_mutex_);
    workers_ = live;
  }

  int add_slice(const SliceInfo& info, const void* initial) override {
    require(info.dtype == DType::kFloat32 || info.dtype == DType::kFloat64, "key '", info.name, "' is ",
            name_of(info.dtype), "; the store updates float32 and float64");
    require(info.begin <= info.end && info.begin >= 0, "key '", info.name, "' has an impossible slice");
    std::unique_lock lock(rules_mutex_);
    for (const auto& slice : slices_) {
      require(slice->info.key != info.key || slice->info.name == info.name, "keys '", slice->info.name, "' and '",
              info.name, "' have the same 64-bit hash; rename one");
      require(slice->info.key != info.key || slice->info.end <= info.begin || info.end <= slice->info.begin, "key '",
              info.name, "' is initialised twice");
    }
    auto slice = std::make_unique<Slice>();
    slice->info = info;
    Lock slice_lock(slice->mutex);
    const auto* bytes = static_cast<const std::byte*>(initial);
    slice->weight.assign(bytes, static_cast<std::size_t>(slice->count()) * size_of(info.dtype));
    slices_.push_back(std::move(slice));
    return static_cast<int>(slices_.size()) - 1;
  }

  const SliceInfo& info(int slice) const override {
    std::shared_lock lock(rules_mutex_);
    return at(slice).info;
  }

  int slice_count() const override {
    std::shared_lock lock(rules_mutex_);
    return static_cast<int>(slices_.size());
  }

  Applied apply(int index, const Contribution& contribution) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    Lock lock(slice.mutex);
    require(contribution.version <= slice.counters.version, "a push for '", slice.info.name,
            "' says it was computed from version ", contribution.version, ", but the slice is at ",
            slice.counters.version);
    StaleContext context = context_of(slice, contribution.examples);
    context.delay = static_cast<std::int64_t>(slice.counters.version - contribution.version);
    const Snapshot pulled = find_pulled(slice, contribution.worker, contribution.version);
    Applied applied{slice.counters.version, context.delay, false};
    if (slice.is_average()) {
      average(slice, {contribution});
      return {++slice.counters.version, 0, false};
    }
    if (!rules_->staleness->accepts(context)) {
      ++slice.refused;
      applied.refused = true;
      return applied;
    }
    if (slice.info.dtype == DType::kFloat32)
      update<float>(slice, contribution, pulled, context);
    else
      update<double>(slice, contribution, pulled, context);
    add_delay(slice, contribution.worker, context.delay);
    applied.version = count_update(slice, contribution.examples);
    return applied;
  }

  Applied apply_round(int index, const std::vector<Contribution>& contributions, const RoundCopies& copies) override {
    require(!contributions.empty(), "a round without contributions");
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    Lock lock(slice.mutex);
    std::int64_t examples = 0;
    for (const Contribution& contribution : contributions) examples += contribution.examples;
    const StaleContext context = context_of(slice, examples);
    if (slice.is_average()) {
      average(slice, contributions);
      for (void* copy : {copies.mean, copies.weight})
        if (copy) std::memcpy(copy, slice.weight.data(), slice.weight.size());
      return {++slice.counters.version, 0, false};
    }
    if (slice.info.dtype == DType::kFloat32)
      update_mean<float>(slice, contributions, examples, context, copies);
    else
      update_mean<double>(slice, contributions, examples, context, copies);
    for (const Contribution& contribution : contributions) add_delay(slice, contribution.worker, 0);
    return {count_update(slice, examples), 0, false};
  }

  Snapshot pull(int index, int worker, const std::shared_ptr<const Codec>& codec) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    Lock lock(slice.mutex);
    return take_snapshot(slice, worker, codec);
  }

  std::uint64_t read(int index, int worker, void* out) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    Lock lock(slice.mutex);
    if (worker >= 0 && rules_->staleness->needs_pulled()) take_snapshot(slice, worker, nullptr);
    if (!slice.weight.empty()) std::memcpy(out, slice.weight.data(), slice.weight.size());
    return slice.counters.version;
  }

  void write(int index, const void* weight) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    Lock lock(slice.mutex);
    slice.weight.assign(static_cast<const std::byte*>(weight), slice.weight.size());
    slice.latest.clear();
  }

  std::uint64_t version(int index) const override {
    std::shared_lock rules_lock(rules_mutex_);
    const Slice& slice = at(index);
    Lock lock(slice.mutex);
    return slice.counters.version;
  }

  void load_slice(int index, const NamedArrays& state, const SliceCounters& counters) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    std::map<std::string, Bytes> loaded;
    for (const auto& [name, array] : state) {
      const auto& names = rules_->state_names;
      require(name == "weight" || std::find(names.begin(), names.end(), name) != names.end(), "key '", slice.info.name,
              "' has no state '", name, "' under these rules");
      require(array.dtype() == slice.info.dtype && array.size() == slice.count(), "state '", name, "' of key '",
              slice.info.name, "' is ", array.describe(), ", expected ", slice.count(), " elements of ",
              name_of(slice.info.dtype));
      const NDArray dense = array.contiguous();
      dense.wait();
      const auto* bytes = static_cast<const std::byte*>(dense.data());
      loaded[name] = Bytes(bytes, bytes + dense.bytes());
    }
    require(loaded.count("weight") == 1, "a checkpoint without the weight of '", slice.info.name, "'");
    Lock lock(slice.mutex);
    slice.weight.assign(loaded["weight"].data(), loaded["weight"].size());
    loaded.erase("weight");
    slice.state = std::move(loaded);
    slice.counters = counters;
    if (!has_all(slice, rules_->optimizer_names())) slice.counters.optimizer_updates = 0;
    if (!has_all(slice, rules_->policy_names())) slice.counters.policy_updates = 0;
    slice.latest.clear();
    slice.pulled.clear();
  }

  NamedArrays save_slice(int index, SliceCounters* counters) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    Lock lock(slice.mutex);
    if (counters) *counters = slice.counters;
    NamedArrays arrays;
    arrays.emplace_back("weight", to_array(slice, Bytes(slice.weight.data(), slice.weight.data() + slice.weight.size())));
    for (const std::string& name : rules_->state_names)
      if (slice.state.count(name)) arrays.emplace_back(name, to_array(slice, slice.state.at(name)));
    return arrays;
  }

  void drop_worker(int worker) override {
    std::shared_lock rules_lock(rules_mutex_);
    for (const auto& slice : slices_) {
      Lock lock(slice->mutex);
      slice->pulled.erase(worker);
      if (slice->averaged.size() > 1 && slice->averaged.erase(worker)) {
        average(*slice, {});
        ++slice->counters.version;
      }
    }
  }

  std::vector<Histogram> delays() const override {
    std::vector<Histogram> all;
    std::shared_lock rules_lock(rules_mutex_);
    for (const auto& slice : slices_) {
      Lock lock(slice->mutex);
      if (all.size() < slice->delays.size()) all.resize(slice->delays.size());
      for (std::size_t worker = 0; worker < slice->delays.size(); ++worker) all[worker].merge(slice->delays[worker]);
    }
    return all;
  }

  std::int64_t refused() const override {
    std::int64_t total = 0;
    std::shared_lock rules_lock(rules_mutex_);
    for (const auto& slice : slices_) {
      Lock lock(slice->mutex);
      total += slice->refused;
    }
    return total;
  }

  std::size_t pulled_bytes() const override {
    std::size_t total = 0;
    std::shared_lock rules_lock(rules_mutex_);
    for (const auto& slice : slices_) {
      Lock lock(slice->mutex);
      std::map<const std::byte*, std::size_t> distinct;
      for (const auto& [worker, snapshot] : slice->pulled) distinct[snapshot.data.get()] = snapshot.bytes;
      for (const auto& [data, bytes] : distinct) total += bytes;
    }
    return total;
  }

 private:
  Slice& at(int index) const {
    require(index >= 0 && index < static_cast<int>(slices_.size()), "no slice ", index);
    return *slices_[static_cast<std::size_t>(index)];
  }

  Snapshot take_snapshot(Slice& slice, int worker, const std::shared_ptr<const Codec>& codec) REQUIRES(slice.mutex) {
    const Snapshot snapshot =
        codec ? encoded(slice, codec) : Snapshot{slice.counters.version, slice.weight.share(), slice.weight.size()};
    if (worker >= 0 && rules_->staleness->needs_pulled()) slice.pulled[worker] = snapshot;
    return snapshot;
  }

  static Snapshot encoded(Slice& slice, const std::shared_ptr<const Codec>& codec) REQUIRES(slice.mutex) {
    std::erase_if(slice.latest, [&](const Snapshot& snapshot) { return snapshot.version != slice.counters.version; });
    const auto known = std::find_if(slice.latest.begin(), slice.latest.end(),
                                    [&](const Snapshot& snapshot) { return snapshot.codec == codec; });
    if (known != slice.latest.end()) return *known;
    std::shared_ptr<std::byte[]> copy = detail::allocate_host(codec->max_bytes(slice.count()));
    const std::span values(reinterpret_cast<const float*>(slice.weight.data()), static_cast<std::size_t>(slice.count()));
    const std::size_t bytes = codec->encode(values, {}, {}, copy.get());
    slice.latest.push_back({slice.counters.version, std::move(copy), bytes, codec});
    return slice.latest.back();
  }

  // Needs rules_mutex_.
  void install(std::shared_ptr<Rules> rules) {
    rules->use(own_);
    const std::shared_ptr<Rules> old = std::exchange(rules_, std::move(rules));
    if (!old) return;
    const bool same_optimizer = std::ranges::equal(old->optimizer_names(), rules_->optimizer_names());
    const bool same_policy = std::ranges::equal(old->policy_names(), rules_->policy_names());
    for (const auto& slice : slices_) {
      Lock lock(slice->mutex);
      if (!same_optimizer) {
        for (const std::string& name : old->optimizer_names()) slice->state.erase(name);
        slice->counters.optimizer_updates = 0;
      }
      if (!same_policy) {
        for (const std::string& name : old->policy_names()) slice->state.erase(name);
        slice->counters.policy_updates = 0;
      }
    }
  }

  static bool has_all(const Slice& slice, std::span<const std::string> names) REQUIRES(slice.mutex) {
    return std::ranges::all_of(names, [&](const std::string& name) { return slice.state.count(name) > 0; });
  }

  StaleContext context_of(const Slice& slice, std::int64_t examples) const REQUIRES(slice.mutex) {
    StaleContext context;
    context.learning_rate = rules_->rate.at(slice.counters.examples);
    context.peak_rate = rules_->rate.base();
    context.step_size = rules_->optimizer->step_size();
    context.count = slice.counters.policy_updates;
    context.examples = examples;
    context.workers = workers_;
    return context;
  }

  // The weights of `version` that `worker` pulled, if they are what it pulled last.
  static Snapshot find_pulled(const Slice& slice, int worker, std::uint64_t version) REQUIRES(slice.mutex) {
    const auto found = slice.pulled.find(worker);
    return found == slice.pulled.end() || found->second.version != version ? Snapshot{} : found->second;
  }

  static void add_delay(Slice& slice, int worker, std::int64_t delay) REQUIRES(slice.mutex) {
    if (worker < 0) return;
    if (slice.delays.size() <= static_cast<std::size_t>(worker)) slice.delays.resize(static_cast<std::size_t>(worker) + 1);
    slice.delays[static_cast<std::size_t>(worker)].add(delay);
  }

  static std::uint64_t count_update(Slice& slice, std::int64_t examples) REQUIRES(slice.mutex) {
    slice.counters.examples += examples;
    ++slice.counters.optimizer_updates;
    ++slice.counters.policy_updates;
    return ++slice.counters.version;
  }

  // Calls fill(offset, count, scratch) to get each tile's gradient, then runs the rules over it.
  template <class T, class Fill>
  void update_tiles(Slice& slice, const Snapshot& pulled, const StaleContext& context, Fill fill, T* copy = nullptr)
      REQUIRES(slice.mutex) {
    std::vector<T*> arrays;
    for (const std::string& name : rules_->state_names) {
      Bytes& bytes = slice.state[name];
      bytes.resize(slice.weight.size());
      arrays.push_back(reinterpret_cast<T*>(bytes.data()));
    }
    const UpdateStep step{context.learning_rate, slice.counters.optimizer_updates + 1};
    alignas(64) std::array<T, static_cast<std::size_t>(Tile<T>::kElements)> scratch, pulled_scratch;
    const std::shared_ptr<std::byte[]> written = slice.weight.writable();
    const T* before = reinterpret_cast<const T*>(slice.weight.data());
    T* weight = reinterpret_cast<T*>(written.get());
    const std::int64_t count = slice.count();
    for (std::int64_t begin = 0; begin < count; begin += Tile<T>::kElements) {
      Tile<T> tile;
      tile.count = std::min(Tile<T>::kElements, count - begin);
      tile.gradient = scratch.data();
      tile.weight = weight + begin;
      const std::span own(pulled_scratch.data(), static_cast<std::size_t>(tile.count));
      tile.pulled = pulled_tile(pulled, count, begin, own);
      if (weight != before) std::copy_n(before + begin, tile.count, tile.weight);
      fill(begin, tile.count, scratch.data());
      rules_->preparation.apply(tile.gradient, tile.weight, tile.count);
      tile.state = arrays.data() + rules_->optimizer_states;
      rules_->staleness->correct(tile, context);
      tile.state = arrays.data();
      rules_->optimizer->update(tile, step);
      if (copy) stream_copy(tile.weight, copy + begin, static_cast<std::size_t>(tile.count) * sizeof(T));
      for (T*& array : arrays) array += tile.count;
    }
    if (copy) stream_end();
    slice.weight.set(written);
  }

  template <class T>
  static const T* pulled_tile(const Snapshot& pulled, std::int64_t count, std::int64_t begin, std::span<T> scratch) {
    if (!pulled.data) return nullptr;
    if constexpr (std::is_same_v<T, float>) {
      if (pulled.codec) {
        pulled.codec->decode({pulled.data.get(), pulled.bytes}, count, begin, scratch);
        return scratch.data();
      }
    }
    return reinterpret_cast<const T*>(pulled.data.get()) + begin;
  }

  // The gradient of a tile, decoded into `scratch` where it is encoded.
  template <class T>
  static const T* gradient_tile(const Contribution& contribution, std::int64_t count, std::int64_t begin,
                                std::span<T> scratch) {
    if constexpr (std::is_same_v<T, float>) {
      if (contribution.codec) {
        const EncodedBytes bytes(static_cast<const std::byte*>(contribution.gradient), contribution.bytes);
        contribution.codec->decode(bytes, count, begin, scratch);
        return scratch.data();
      }
    }
    return static_cast<const T*>(contribution.gradient) + begin;
  }

  template <class T>
  void update(Slice& slice, const Contribution& contribution, const Snapshot& pulled, const StaleContext& context)
      REQUIRES(slice.mutex) {
    const std::int64_t whole = slice.count();
    update_tiles<T>(slice, pulled, context, [&, whole](std::int64_t begin, std::int64_t count, T* scratch) {
      const T* source = gradient_tile<T>(contribution, whole, begin, {scratch, static_cast<std::size_t>(count)});
      if (source != scratch) std::copy_n(source, count, scratch);
    });
  }

  template <class T>
  void update_mean(Slice& slice, const std::vector<Contribution>& contributions, std::int64_t examples,
                   const StaleContext& context, const RoundCopies& copies) REQUIRES(slice.mutex) {
    const std::int64_t whole = slice.count();
    const bool votes = std::all_of(contributions.begin(), contributions.end(), [](const Contribution& contribution) {
      return contribution.codec && contribution.codec->votes();
    });
    std::array<T, static_cast<std::size_t>(Tile<T>::kElements)> decoded;
    const auto fill = [&, whole](std::int64_t begin, std::int64_t count, T* __restrict mean) {
      bool first = true;
      for (const Contribution& contribution : contributions) {
        const T share = votes           ? T(1)
                        : examples == 0 ? T(1) / static_cast<T>(contributions.size())
                                        : static_cast<T>(contribution.examples) / static_cast<T>(examples);
        const T* __restrict source =
            gradient_tile<T>(contribution, whole, begin, {decoded.data(), static_cast<std::size_t>(count)});
        // Sums begin at 0, not at the first summand: that makes -0 a 0.
        if (std::exchange(first, false))
          for (std::int64_t i = 0; i < count; ++i) mean[i] = T(0) + share * source[i];
        else
          for (std::int64_t i = 0; i < count; ++i) mean[i] += share * source[i];
      }
      if (votes)
        for (std::int64_t i = 0; i < count; ++i) mean[i] = static_cast<T>((mean[i] > 0) - (mean[i] < 0));
      if (copies.mean) std::copy_n(mean, count, static_cast<T*>(copies.mean) + begin);
    };
    update_tiles<T>(slice, {}, context, fill, static_cast<T*>(copies.weight));
  }

  // The weight of an average slice is the mean of what the workers said last.
  static void average(Slice& slice, const std::vector<Contribution>& contributions) REQUIRES(slice.mutex) {
    for (const Contribution& contribution : contributions) {
      const auto* bytes = static_cast<const std::byte*>(contribution.gradient);
      slice.averaged[contribution.worker].assign(bytes, bytes + slice.weight.size());
    }
    const auto mean = [&slice]<class T>(T*) {
      const std::shared_ptr<std::byte[]> written = slice.weight.writable();
      T* weight = reinterpret_cast<T*>(written.get());
      std::fill_n(weight, slice.count(), T(0));
      for (const auto& [worker, bytes] : slice.averaged) {
        const T* value = reinterpret_cast<const T*>(bytes.data());
        for (std::int64_t i = 0; i < slice.count(); ++i) weight[i] += value[i] / static_cast<T>(slice.averaged.size());
      }
      slice.weight.set(written);
    };
    if (slice.info.dtype == DType::kFloat32)
      mean(static_cast<float*>(nullptr));
    else
      mean(static_cast<double*>(nullptr));
  }

  static NDArray to_array(const Slice& slice, const Bytes& bytes) {
    auto owner = std::make_shared<Bytes>(bytes);
    void* data = owner->data();
    return NDArray::wrap(data, Shape{slice.count()}, slice.info.dtype, std::move(owner));
  }

  mutable std::shared_mutex rules_mutex_;  // shared by every use of a slice, exclusive to change rules or the list
  std::shared_ptr<Rules> rules_;
  std::shared_ptr<const Staleness> own_;  // the user's policy
  std::vector<std::unique_ptr<Slice>> slices_;
  int workers_ = 1;
};

}  // namespace

std::unique_ptr<Updater> make_updater() { return std::make_unique<UpdaterImpl>(); }

std::uint64_t hash_key(const std::string& name) {
  // FNV-1a, 64 bits; a collision between two names is found when the second is initialised.
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

}  // namespace paceline
