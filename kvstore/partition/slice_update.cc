#include "slice_update.h"

#include <paceline/detail/elementwise.h>
#include <paceline/detail/host_memory.h>
#include <paceline/error.h>
#include <paceline/mutex.h>
#include <paceline/tile.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>

#include "round_factors.h"
#include "stream_copy.h"

namespace paceline {
namespace {

template <class T>
const T* pulled_tile(const Snapshot& pulled, std::int64_t count, std::int64_t begin, std::span<T> scratch) {
  if (!pulled.data) return nullptr;
  if constexpr (std::is_same_v<T, float>) {
    if (pulled.codec) {
      pulled.codec->decode({pulled.data.get(), pulled.bytes}, count, begin, scratch);
      return scratch.data();
    }
  }
  return reinterpret_cast<const T*>(pulled.data.get()) + begin;
}

// The gradient of a tile. An encoded gradient is decoded into `scratch`.
template <class T>
const T* gradient_tile(const Contribution& contribution, std::int64_t count, std::int64_t begin, std::span<T> scratch) {
  if constexpr (std::is_same_v<T, float>) {
    if (contribution.codec) {
      const EncodedBytes bytes(static_cast<const std::byte*>(contribution.gradient), contribution.bytes);
      contribution.codec->decode(bytes, count, begin, scratch);
      return scratch.data();
    }
  }
  return static_cast<const T*>(contribution.gradient) + begin;
}

// Where the new weights are copied to, and whether the copy goes past the caches. `to` null: no copy.
template <class T>
struct Copy {
  T* to = nullptr;
  bool past_caches = false;
};

// Runs the rules on each tile. fill(begin, count, scratch) returns the address of the tile's gradient. The thread team
// of the caller shares the tiles. If `place` is not null, the new weights are written there and stay there.
template <class T, class Fill>
void update_tiles(Slice& slice, const SliceRules& slice_rules, const Snapshot& pulled, Fill fill, const Copy<T>& copy,
                  const std::shared_ptr<std::byte[]>& place = nullptr) PACELINE_REQUIRES(slice.mutex) {
  const Rules& rules = slice_rules.rules;
  const StaleContext& context = slice_rules.context;
  std::vector<T*> arrays;
  const std::size_t states = rules.state_names.size();
  for (std::size_t i = 0; i < states; ++i)
    arrays.push_back(reinterpret_cast<T*>(slice.extras().states.add(i, slice.bytes(), states)));
  const UpdateStep step{context.learning_rate, slice.counters().optimizer_updates + 1, slice_rules.decay_factor};
  Preparation preparation = rules.preparation;
  preparation.weight_decay *= step.decay_factor;
  Weights::Next written = place ? Weights::Next{place.get(), nullptr} : slice.weight.writable(slice.bytes());
  const T* before = reinterpret_cast<const T*>(slice.weight.data());
  T* weight = reinterpret_cast<T*>(written.bytes);
  const std::int64_t count = slice.count();
  const bool corrects = rules.staleness->corrects(context);
  // Do the rules read the old weights?
  const bool keeps = !rules.optimizer->replaces() || preparation.weight_decay != 0 || corrects;
  // Can the optimizer read the gradient and the weights in place? It can if no other rule takes part.
  const bool one_pass = rules.optimizer->in_one_pass() && !preparation.changes() && !corrects;
  const auto update_range = [&](std::int64_t first, std::int64_t last) {
    alignas(64) std::array<T, static_cast<std::size_t>(Tile<T>::kElements)> scratch, pulled_scratch;
    std::vector<T*> state = arrays;
    for (T*& array : state) array += first * Tile<T>::kElements;
    const std::int64_t end = std::min(count, last * Tile<T>::kElements);
    for (std::int64_t begin = first * Tile<T>::kElements; begin < end; begin += Tile<T>::kElements) {
      Tile<T> tile;
      tile.count = std::min(Tile<T>::kElements, end - begin);
      tile.weight = weight + begin;
      const std::span own(pulled_scratch.data(), static_cast<std::size_t>(tile.count));
      tile.pulled = pulled_tile(pulled, count, begin, own);
      const T* gradient = fill(begin, tile.count, scratch.data());
      if (one_pass) {
        tile.gradient = const_cast<T*>(gradient);  // the optimizer only reads it
        if (weight != before) tile.before = before + begin;
      } else {
        tile.gradient = scratch.data();
        if (gradient != scratch.data()) std::copy_n(gradient, tile.count, scratch.data());
        if (weight != before && keeps) std::copy_n(before + begin, tile.count, tile.weight);
        preparation.apply(tile.gradient, tile.weight, tile.count);
        tile.state = state.data() + rules.optimizer_states;
        rules.staleness->correct(tile, context);
      }
      tile.state = state.data();
      rules.optimizer->update(tile, step);
      if (copy.to && copy.past_caches)
        stream_copy(tile.weight, copy.to + begin, static_cast<std::size_t>(tile.count) * sizeof(T));
      else if (copy.to)
        std::copy_n(tile.weight, tile.count, copy.to + begin);
      for (T*& array : state) array += tile.count;
    }
    if (copy.past_caches) stream_end();
  };
  constexpr std::int64_t kTilesPerThread = 16;
  const std::int64_t tiles = (count + Tile<T>::kElements - 1) / Tile<T>::kElements;
  // The user's own rules may throw. No exception may leave a thread of the team.
  Mutex mutex;
  std::exception_ptr failed;
  detail::parallel_ranges(tiles, kTilesPerThread, [&](std::int64_t first, std::int64_t last) {
    try {
      update_range(first, last);
    } catch (...) {
      const Lock lock(mutex);
      failed = std::current_exception();
    }
  });
  if (failed) std::rethrow_exception(failed);
  if (place)
    slice.weight.keep_at(place);
  else
    slice.weight.set(std::move(written));
}

template <class T>
void update_one(Slice& slice, const SliceRules& rules, const Contribution& contribution, const Snapshot& pulled,
                T* copy) PACELINE_REQUIRES(slice.mutex) {
  const std::int64_t whole = slice.count();
  const auto fill = [&, whole](std::int64_t begin, std::int64_t count, T* scratch) {
    return gradient_tile<T>(contribution, whole, begin, {scratch, static_cast<std::size_t>(count)});
  };
  update_tiles<T>(slice, rules, pulled, fill, {copy, slice.bytes() >= kFillsCaches});
}

// Computes the sum, mean or majority vote of contributions to `whole` elements, tile by tile.
template <class T>
class Together {
 public:
  Together(const std::vector<Contribution>& contributions, Aggregate aggregate, std::int64_t whole)
      : contributions_(contributions),
        whole_(whole),
        votes_(std::all_of(
            contributions.begin(), contributions.end(),
            [](const Contribution& contribution) { return contribution.codec && contribution.codec->votes(); })),
        factors_(contributions, votes_ ? Aggregate::kSum : aggregate, &Contribution::examples) {}

  void tile(std::int64_t begin, std::int64_t count, T* __restrict sum) const {
    std::array<T, static_cast<std::size_t>(Tile<T>::kElements)> decoded;
    bool first = true;
    for (const Contribution& contribution : contributions_) {
      const T factor = static_cast<T>(factors_.of(contribution.examples));
      const T* __restrict source =
          gradient_tile<T>(contribution, whole_, begin, {decoded.data(), static_cast<std::size_t>(count)});
      // The sum begins at 0, not with the first summand, so that -0 becomes 0.
      if (std::exchange(first, false))
        for (std::int64_t i = 0; i < count; ++i) sum[i] = T(0) + factor * source[i];
      else
        for (std::int64_t i = 0; i < count; ++i) sum[i] += factor * source[i];
    }
    factors_.divide(sum, count);
    if (votes_)
      for (std::int64_t i = 0; i < count; ++i) sum[i] = static_cast<T>((sum[i] > 0) - (sum[i] < 0));
  }

 private:
  const std::vector<Contribution>& contributions_;
  const std::int64_t whole_;
  const bool votes_;
  const RoundFactors factors_;
};

template <class T>
void add_up(const std::vector<Contribution>& contributions, Aggregate aggregate, std::int64_t count, T* out) {
  const Together<T> together(contributions, aggregate, count);
  for (std::int64_t begin = 0; begin < count; begin += Tile<T>::kElements)
    together.tile(begin, std::min(Tile<T>::kElements, count - begin), out + begin);
}

template <class T>
void update_round(Slice& slice, const SliceRules& rules, const std::vector<Contribution>& contributions,
                  Aggregate aggregate, const RoundCopies& copies) PACELINE_REQUIRES(slice.mutex) {
  const Together<T> together(contributions, aggregate, slice.count());
  const auto fill = [&](std::int64_t begin, std::int64_t count, T* sum) {
    together.tile(begin, count, sum);
    if (copies.gradient) std::copy_n(sum, count, static_cast<T*>(copies.gradient) + begin);
    return sum;
  };
  update_tiles<T>(slice, rules, {}, fill, {static_cast<T*>(copies.weight), true},
                  slice.weight.is_large() ? copies.place : nullptr);
}

template <class T>
void average_of(Slice& slice) PACELINE_REQUIRES(slice.mutex) {
  Weights::Next written = slice.weight.writable(slice.bytes());
  T* weight = reinterpret_cast<T*>(written.bytes);
  std::fill_n(weight, slice.count(), T(0));
  const auto& averaged = slice.rare().averaged;
  for (const auto& [worker, bytes] : averaged) {
    const T* value = reinterpret_cast<const T*>(bytes.data());
    for (std::int64_t i = 0; i < slice.count(); ++i) weight[i] += value[i] / static_cast<T>(averaged.size());
  }
  slice.weight.set(std::move(written));
}

}  // namespace

void Rules::complete() {
  needs_pulled = staleness->needs_pulled();
  step_size = optimizer->step_size();
  state_names = optimizer->state_names();
  optimizer_states = state_names.size();
  for (const std::string& name : staleness->state_names()) state_names.push_back(name);
  require(state_names.size() <= SliceStates::kMost, "optimizer and staleness policy keep ", state_names.size(),
          " arrays of state, expected at most ", SliceStates::kMost);
}

void update(Slice& slice, const SliceRules& rules, const Contribution& contribution, const Snapshot& pulled,
            void* copy) {
  if (slice.dtype() == DType::kFloat32)
    update_one(slice, rules, contribution, pulled, static_cast<float*>(copy));
  else
    update_one(slice, rules, contribution, pulled, static_cast<double*>(copy));
}

void update_by_round(Slice& slice, const SliceRules& rules, const std::vector<Contribution>& contributions,
                     Aggregate aggregate, const RoundCopies& copies) {
  if (slice.dtype() == DType::kFloat32)
    update_round<float>(slice, rules, contributions, aggregate, copies);
  else
    update_round<double>(slice, rules, contributions, aggregate, copies);
}

void add_up_round(const std::vector<Contribution>& contributions, Aggregate aggregate, std::int64_t count, DType dtype,
                  void* out) {
  if (dtype == DType::kFloat32)
    add_up(contributions, aggregate, count, static_cast<float*>(out));
  else
    add_up(contributions, aggregate, count, static_cast<double*>(out));
}

void average(Slice& slice, std::span<const Contribution> contributions) {
  auto& averaged = slice.rare().averaged;
  for (const Contribution& contribution : contributions) {
    const auto* bytes = static_cast<const std::byte*>(contribution.gradient);
    averaged[std::max(contribution.worker, Slice::Rare::kGone)].assign(bytes, bytes + slice.bytes());
  }
  if (averaged.size() > 1) averaged.erase(Slice::Rare::kGone);
  if (slice.dtype() == DType::kFloat32)
    average_of<float>(slice);
  else
    average_of<double>(slice);
}

Snapshot encoded_weights(Slice& slice, const std::shared_ptr<const Codec>& codec) {
  std::vector<Snapshot>& latest = slice.rare().latest;
  std::erase_if(latest, [version = slice.version](const Snapshot& snapshot) { return snapshot.version != version; });
  const auto known =
      std::find_if(latest.begin(), latest.end(), [&](const Snapshot& snapshot) { return snapshot.codec == codec; });
  if (known != latest.end()) return *known;
  std::shared_ptr<std::byte[]> copy = detail::allocate_host(codec->max_bytes(slice.count()));
  const std::span values(reinterpret_cast<const float*>(slice.weight.data()), static_cast<std::size_t>(slice.count()));
  const std::size_t bytes = codec->encode(values, {}, {}, copy.get());
  latest.push_back({slice.version, std::move(copy), bytes, codec});
  return latest.back();
}

}  // namespace paceline
