#include <paceline/detail/elementwise.h>
#include <paceline/updater.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <map>
#include <shared_mutex>
#include <span>
#include <utility>

#include "slice_update.h"
#include "staleness_histogram.h"
#include "stream_copy.h"

namespace paceline {
namespace {

class UpdaterImpl final : public Updater {
 public:
  UpdaterImpl() { set_rules(Spec{"sgd", {}}, "none", {}, {}); }

  void set_rules(const Spec& optimizer, const std::string& staleness, const Options& staleness_options,
                 const Extensions& own) override {
    auto rules = std::make_shared<Rules>();
    rules->optimizer = make_optimizer(optimizer);
    rules->staleness = make_staleness(staleness, staleness_options, own);
    rules->rate = LearningRate::parse(optimizer.options);
    rules->multipliers = Multipliers::parse(optimizer.options);
    if (has_part(staleness, "dana")) {
      require(rules->optimizer->worker_momentum() >= 0,
              "staleness policy 'dana' keeps the optimizer's momentum at the "
              "workers, which optimizer '",
              optimizer.name, "' cannot give up; use gap_aware with it");
      rules->optimizer = make_optimizer(Spec{"sgd", {}});
    } else {
      rules->preparation = Preparation::parse(optimizer.options, *rules->optimizer);
    }
    std::unique_lock lock(rules_mutex_);
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

  int add_slices(std::span<const std::pair<SliceInfo, const void*>> slices) override {
    std::unique_lock lock(rules_mutex_);
    const int first = static_cast<int>(slices_.size());
    std::size_t small = 0;
    for (const auto& [info, initial] : slices) {
      const std::size_t bytes = static_cast<std::size_t>(info.end - info.begin) * size_of(info.dtype);
      if (bytes <= Slab::kMost) small += (bytes + 15) / 16 * 16;
    }
    slab_.expect(small);
    for (const auto& [info, initial] : slices) add(info, initial);
    return first;
  }

  SliceInfo info(int index) const override {
    std::shared_lock lock(rules_mutex_);
    const Slice& slice = at(index);
    return {key_of(index), slice.begin, slice.end, slice.dtype(),
            slice.is_average() ? SliceInfo::Kind::kAverage : SliceInfo::Kind::kGradient};
  }

  Applied apply(int index, const Contribution& contribution, void* copy) override {
    std::shared_lock rules_lock(rules_mutex_);
    StalenessHistogram::Row delays(delays_);
    return apply(index, contribution, delays, copy);
  }

  int apply_all(std::span<SliceContribution> contributions) override {
    std::shared_lock rules_lock(rules_mutex_);
    StalenessHistogram::Row delays(delays_);
    int refused = 0;
    std::exception_ptr failure;
    for (std::size_t i = 0; i < contributions.size(); ++i) {
      prefetch(contributions, i);
      Contribution& contribution = contributions[i].contribution;
      try {
        const Applied applied = apply(contributions[i].slice, contribution, delays, nullptr);
        contribution.scalars = applied.scalars;
        refused += applied.refused;
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
    return refused;
  }

  Applied apply_round(int index, const std::vector<Contribution>& contributions, const RoundCopies& copies,
                      const ResolvedScalars& scalars, Aggregate aggregate) override {
    require(!contributions.empty(), "a round without contributions");
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    const SliceLock lock(slice.mutex);
    std::int64_t examples = 0;
    for (const Contribution& contribution : contributions) examples += contribution.examples;
    const KeyFactors factors = factors_of(index);
    const StaleContext context = context_of(slice, factors, examples, 0, scalars);
    if (slice.is_average()) {
      average(slice, contributions);
      for (void* copy : {copies.gradient, copies.weight, static_cast<void*>(copies.place.get())})
        if (copy) copy_weights(slice, copy);
      return {++slice.version, 0, false};
    }
    update_by_round(slice, {*rules_, context, factors.weight_decay}, contributions, aggregate, copies);
    if (copies.place) copy_weights(slice, copies.place.get());
    StalenessHistogram::Row delays(delays_);
    for (const Contribution& contribution : contributions) delays.add(contribution.worker, 0);
    return {count_update(slice, examples), 0, false, {context.learning_rate, context.factor}};
  }

  bool only_weights() const override {
    std::shared_lock rules_lock(rules_mutex_);
    return rules_->state_names.empty();
  }

  Applied take_round(int index, std::shared_ptr<const std::byte[]> weights, std::int64_t examples, int worker,
                     void* copy) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    const SliceLock lock(slice.mutex);
    if (copy) {
      stream_copy(weights.get(), copy, slice.bytes());
      stream_end();
    }
    // Adopting a small slice would keep a large message alive.
    constexpr std::size_t kKept = std::size_t{256} << 10;
    if (slice.bytes() >= kKept)
      slice.weight.adopt(std::move(weights));
    else
      slice.weight.assign(weights.get(), slice.bytes());
    StalenessHistogram::Row(delays_).add(worker, 0);
    return {count_update(slice, examples), 0, false};
  }

  Snapshot pull(int index, int worker, const std::shared_ptr<const Codec>& codec) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    const SliceLock lock(slice.mutex);
    return take_snapshot(slice, worker, codec);
  }

  std::uint64_t read(int index, int worker, void* out) override {
    std::shared_lock rules_lock(rules_mutex_);
    return read(at(index), worker, out);
  }

  void read_all(std::span<SliceRead> reads) override {
    std::shared_lock rules_lock(rules_mutex_);
    for (std::size_t i = 0; i < reads.size(); ++i) {
      prefetch(reads, i);
      reads[i].version = read(at(reads[i].slice), reads[i].worker, reads[i].out);
    }
  }

  Snapshot pulled(int index, int worker) const override {
    std::shared_lock rules_lock(rules_mutex_);
    const Slice& slice = at(index);
    const SliceLock lock(slice.mutex);
    return find_pulled(slice, worker);
  }

  void change(int index, const std::function<void(void*)>& action) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    const SliceLock lock(slice.mutex);
    if (slice.bytes() == 0) return;
    Weights::Next written = slice.weight.writable(slice.bytes());
    if (written.bytes != slice.weight.data()) std::memcpy(written.bytes, slice.weight.data(), slice.bytes());
    action(written.bytes);
    slice.weight.set(std::move(written));
    slice.forget_encoded();
  }

  std::uint64_t version(int index) const override {
    std::shared_lock rules_lock(rules_mutex_);
    const Slice& slice = at(index);
    const SliceLock lock(slice.mutex);
    return slice.version;
  }

  void load_slice(int index, const NamedArrays& state, const SliceCounters& counters) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    const auto& names = rules_->state_names;
    const std::string key = key_of(index);
    NDArray weight;
    SliceStates loaded;
    for (const auto& [name, array] : state) {
      const auto known = std::find(names.begin(), names.end(), name);
      require(name == "weight" || known != names.end(), "key '", key, "' has no state '", name, "' under these rules");
      require(array.dtype() == slice.dtype() && array.size() == slice.count(), "state '", name, "' of key '", key,
              "' is ", array.describe(), ", expected ", slice.count(), " elements of ", name_of(slice.dtype()));
      const NDArray dense = array.contiguous();
      dense.wait();
      const auto* bytes = static_cast<const std::byte*>(dense.data());
      if (name == "weight")
        weight = dense;
      else
        std::memcpy(loaded.add(static_cast<std::size_t>(known - names.begin()), slice.bytes(), names.size()), bytes,
                    dense.bytes());
    }
    require(!weight.is_none(), "a checkpoint without the weight of '", key, "'");
    const SliceLock lock(slice.mutex);
    slice.weight.assign(static_cast<const std::byte*>(weight.data()), weight.bytes());
    SliceCounters counted = counters;
    if (!loaded.has_all(0, rules_->optimizer_states)) counted.optimizer_updates = 0;
    if (!loaded.has_all(rules_->optimizer_states, names.size())) counted.policy_updates = 0;
    if (slice.extra || !names.empty()) {
      slice.extra = std::make_unique<Slice::Extra>();
      slice.extra->states = std::move(loaded);
    }
    slice.set_counters(counted);
  }

  NamedArrays save_slice(int index, SliceCounters* counters) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    const SliceLock lock(slice.mutex);
    if (counters) *counters = slice.counters();
    NamedArrays arrays;
    arrays.emplace_back("weight", to_array(slice, slice.weight.data()));
    for (std::size_t i = 0; i < rules_->state_names.size(); ++i)
      if (slice.extra && slice.extra->states.has(i))
        arrays.emplace_back(rules_->state_names[i], to_array(slice, slice.extra->states.at(i, slice.bytes())));
    return arrays;
  }

  void drop_worker(int index, int worker) override {
    std::shared_lock rules_lock(rules_mutex_);
    Slice& slice = at(index);
    const SliceLock lock(slice.mutex);
    if (!slice.extra) return;
    std::erase_if(slice.extra->pulled, [worker](const auto& entry) { return entry.first == worker; });
    if (!slice.known_rare()) return;
    auto& averaged = slice.rare().averaged;
    auto part = averaged.extract(worker);
    if (part.empty()) return;
    if (averaged.empty()) {
      part.key() = Slice::Rare::kGone;
      averaged.insert(std::move(part));
      return;
    }
    average(slice, {});
    ++slice.version;
  }

  std::vector<Histogram> delays() const override { return delays_.all(); }

  std::int64_t refused() const override { return refused_; }

  std::size_t pulled_bytes() const override {
    std::size_t total = 0;
    std::shared_lock rules_lock(rules_mutex_);
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      const Slice& slice = slices_[i];
      const SliceLock lock(slice.mutex);
      if (!slice.extra) continue;
      std::map<const std::byte*, std::size_t> distinct;
      for (const auto& [worker, snapshot] : slice.extra->pulled) distinct[snapshot.data.get()] = snapshot.bytes;
      for (const auto& [data, bytes] : distinct) total += bytes;
    }
    return total;
  }

 private:
  const Slice& at(int index) const {
    require(index >= 0 && index < static_cast<int>(slices_.size()), "no slice ", index);
    return slices_[static_cast<std::size_t>(index)];
  }
  Slice& at(int index) { return const_cast<Slice&>(std::as_const(*this).at(index)); }

  std::string key_of(int index) const {
    const auto number = static_cast<std::size_t>(index);
    const std::size_t end = number + 1 < slices_.size() ? slices_[number + 1].name : names_.size();
    return {names_.begin() + at(index).name, names_.begin() + static_cast<std::ptrdiff_t>(end)};
  }

  // Prefetches for the slices after `begin`: the Slice three places ahead, and the weights one place ahead.
  template <class Use>
  void prefetch(std::span<Use> uses, std::size_t begin) const {
    constexpr std::size_t kLine = 64;
    if (begin + 3 < uses.size()) {
      const auto* bytes = reinterpret_cast<const std::byte*>(&slices_[static_cast<std::size_t>(uses[begin + 3].slice)]);
      for (std::size_t i = 0; i < sizeof(Slice); i += kLine) __builtin_prefetch(bytes + i);
    }
    if (begin + 1 < uses.size()) {
      const Slice& slice = slices_[static_cast<std::size_t>(uses[begin + 1].slice)];
      slice.prefetch_weight();
    }
  }

  Applied apply(int index, const Contribution& contribution, StalenessHistogram::Row& delays, void* copy) {
    Slice& slice = at(index);
    const SliceLock lock(slice.mutex);
    // The text is made only for an error, because a call may hold ten thousand keys.
    if (contribution.version > slice.version)
      throw InvalidArgument(str("a push for '", key_of(index), "' says it was computed from version ",
                                contribution.version, ", but the slice is at ", slice.version));
    if (slice.is_average()) {
      average(slice, {&contribution, 1});
      if (copy) copy_weights(slice, copy);
      return {++slice.version, 0, false};
    }
    const KeyFactors factors = factors_of(index);
    const StaleContext context =
        context_of(slice, factors, contribution.examples, slice.version - contribution.version, contribution.scalars);
    const ResolvedScalars scalars{context.learning_rate, context.factor};
    if (!rules_->staleness->accepts(context)) {
      ++refused_;
      if (copy) copy_weights(slice, copy);
      return {slice.version, context.delay, true, scalars};
    }
    Snapshot pulled = find_pulled(slice, contribution.worker);
    if (pulled.version != contribution.version) pulled = {};
    update(slice, {*rules_, context, factors.weight_decay}, contribution, pulled, copy);
    delays.add(contribution.worker, context.delay);
    return {count_update(slice, contribution.examples), context.delay, false, scalars};
  }

  std::uint64_t read(Slice& slice, int worker, void* out) const {
    const SliceLock lock(slice.mutex);
    if (worker >= 0 && rules_->needs_pulled) take_snapshot(slice, worker, nullptr);
    copy_weights(slice, out);
    return slice.version;
  }

  // The calling thread's team shares the work.
  static void copy_weights(const Slice& slice, void* out) PACELINE_REQUIRES(slice.mutex) {
    constexpr std::int64_t kBytesPerThread = 1 << 17;
    const std::byte* weight = slice.weight.data();
    if (out == weight) return;
    detail::parallel_ranges(
        static_cast<std::int64_t>(slice.bytes()), kBytesPerThread, [&](std::int64_t begin, std::int64_t end) {
          std::memcpy(static_cast<std::byte*>(out) + begin, weight + begin, static_cast<std::size_t>(end - begin));
        });
  }

  Snapshot take_snapshot(Slice& slice, int worker, const std::shared_ptr<const Codec>& codec) const
      PACELINE_REQUIRES(slice.mutex) {
    Snapshot snapshot;
    if (codec)
      snapshot = encoded_weights(slice, codec);
    else if (const Snapshot* same = pulled_copy(slice))
      snapshot = *same;
    else
      snapshot = {slice.version, slice.weight.share(slice.bytes()), slice.bytes()};
    if (worker < 0 || !rules_->needs_pulled) return snapshot;
    auto& pulled = slice.extras().pulled;
    const auto known =
        std::find_if(pulled.begin(), pulled.end(), [&](const auto& entry) { return entry.first == worker; });
    if (known != pulled.end())
      known->second = snapshot;
    else
      pulled.emplace_back(worker, snapshot);
    return snapshot;
  }

  // For small weights: a pulled copy that still equals the present weights; null if there is none.
  static const Snapshot* pulled_copy(const Slice& slice) PACELINE_REQUIRES(slice.mutex) {
    if (!slice.extra || slice.weight.is_large()) return nullptr;
    for (const auto& [worker, snapshot] : slice.extra->pulled)
      if (snapshot.version == slice.version && !snapshot.codec &&
          std::memcmp(snapshot.data.get(), slice.weight.data(), slice.bytes()) == 0)
        return &snapshot;
    return nullptr;
  }

  // The caller must hold rules_mutex_ exclusively.
  void add(const SliceInfo& info, const void* initial) {
    require(info.dtype == DType::kFloat32 || info.dtype == DType::kFloat64, "key '", info.name, "' is ",
            name_of(info.dtype), "; the store updates float32 and float64");
    require(info.begin <= info.end && info.begin >= 0, "key '", info.name, "' has an impossible slice");
    constexpr std::size_t kMostNames = std::numeric_limits<std::uint32_t>::max();
    require(info.name.size() <= kMostNames - names_.size(), "the names of all keys are longer than ", kMostNames);
    Slice& slice = slices_.emplace_back(info, static_cast<std::uint32_t>(names_.size()), slab_);
    names_.insert(names_.end(), info.name.begin(), info.name.end());
    if (!rules_->multipliers.empty()) rules_->factors.push_back(rules_->multipliers.of(info.name));
    const SliceLock slice_lock(slice.mutex);
    slice.weight.assign(static_cast<const std::byte*>(initial), slice.bytes());
  }

  // The caller must hold rules_mutex_ exclusively.
  void install(std::shared_ptr<Rules> rules) {
    rules->complete();
    rules->factors.clear();
    if (!rules->multipliers.empty())
      for (std::size_t i = 0; i < slices_.size(); ++i)
        rules->factors.push_back(rules->multipliers.of(key_of(static_cast<int>(i))));
    const std::shared_ptr<Rules> old = std::exchange(rules_, std::move(rules));
    if (!old) return;
    const auto optimizer_names = [](const Rules& r) { return std::span(r.state_names).first(r.optimizer_states); };
    const auto policy_names = [](const Rules& r) { return std::span(r.state_names).subspan(r.optimizer_states); };
    const bool same_optimizer = std::ranges::equal(optimizer_names(*old), optimizer_names(*rules_));
    const bool same_policy = std::ranges::equal(policy_names(*old), policy_names(*rules_));
    if (same_optimizer && same_policy) return;
    for (std::size_t i = 0; i < slices_.size(); ++i) {
      Slice& slice = slices_[i];
      const SliceLock lock(slice.mutex);
      SliceCounters counters = slice.counters();
      if (!same_optimizer) counters.optimizer_updates = 0;
      if (!same_policy) counters.policy_updates = 0;
      slice.set_counters(counters);
      if (!slice.extra) continue;
      const SliceStates before = std::exchange(slice.extra->states, {});
      const auto keep = [&](std::size_t begin, std::size_t end, std::size_t to) PACELINE_REQUIRES(slice.mutex) {
        for (; begin < end; ++begin, ++to)
          if (before.has(begin))
            std::memcpy(slice.extra->states.add(to, slice.bytes(), rules_->state_names.size()),
                        before.at(begin, slice.bytes()), slice.bytes());
      };
      if (same_optimizer) keep(0, old->optimizer_states, 0);
      if (same_policy) keep(old->optimizer_states, old->state_names.size(), rules_->optimizer_states);
    }
  }

  KeyFactors factors_of(int index) const {
    return rules_->factors.empty() ? KeyFactors() : rules_->factors[static_cast<std::size_t>(index)];
  }

  StaleContext context_of(const Slice& slice, const KeyFactors& factors, std::int64_t examples, std::uint64_t delay,
                          const ResolvedScalars& scalars) const PACELINE_REQUIRES(slice.mutex) {
    StaleContext context;
    context.delay = static_cast<std::int64_t>(delay);
    context.learning_rate =
        scalars.resolved() ? scalars.learning_rate : rules_->rate.at(slice.examples) * factors.learning_rate;
    context.peak_rate = rules_->rate.base() * factors.learning_rate;
    context.step_size = rules_->step_size;
    context.count = slice.counters().policy_updates;
    context.examples = examples;
    context.workers = workers_;
    context.factor = scalars.resolved() ? scalars.factor : rules_->staleness->factor(context);
    return context;
  }

  static Snapshot find_pulled(const Slice& slice, int worker) PACELINE_REQUIRES(slice.mutex) {
    if (!slice.extra) return {};
    for (const auto& [other, snapshot] : slice.extra->pulled)
      if (other == worker) return snapshot;
    return {};
  }

  static std::uint64_t count_update(Slice& slice, std::int64_t examples) PACELINE_REQUIRES(slice.mutex) {
    slice.examples += examples;
    return ++slice.version;
  }

  static NDArray to_array(const Slice& slice, const std::byte* bytes) {
    auto owner = std::make_shared<std::vector<std::byte>>(bytes, bytes + slice.bytes());
    void* data = owner->data();
    return NDArray::wrap(data, Shape{slice.count()}, slice.dtype(), std::move(owner));
  }

  mutable std::shared_mutex rules_mutex_;  // held shared to use slices, exclusively to change the rules or the list
  std::shared_ptr<Rules> rules_;
  Slab slab_;
  std::deque<Slice> slices_;  // elements never move
  std::deque<char> names_;    // key names of all slices, concatenated
  int workers_ = 1;
  StalenessHistogram delays_;
  std::atomic<std::int64_t> refused_{0};
};

}  // namespace

std::unique_ptr<Updater> make_updater() { return std::make_unique<UpdaterImpl>(); }

std::uint64_t hash_key(const std::string& name) {
  // FNV-1a, 64 bits.
  std::uint64_t hash = 14695981039346656037ull;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211ull;
  return hash;
}

}  // namespace paceline
