#include "local/in_place_weights.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/elementwise.h>
#include <paceline/kernel.h>
#include <paceline/tile.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

namespace paceline {

struct InPlaceWeights::Rules {
  explicit Rules(const Spec& spec)
      : optimizer(make_optimizer(spec)),
        preparation(Preparation::parse(spec.options, *optimizer)),
        rate(LearningRate::parse(spec.options)),
        multipliers(Multipliers::parse(spec.options)),
        names(optimizer->state_names()) {}

  std::shared_ptr<const Optimizer> optimizer;
  Preparation preparation;
  LearningRate rate;
  Multipliers multipliers;
  std::vector<std::string> names;
};

namespace {

struct UpdateCall {
  std::shared_ptr<const InPlaceWeights::Rules> rules;
  std::vector<InPlaceKey*> keys;
  std::int64_t examples = 0;  // of each gradient

  std::size_t states() const { return rules->names.size(); }  // of each key
};

UpdateStep count_update(const UpdateCall& call, InPlaceKey& key) {
  SliceCounters& counters = key.counters;
  const UpdateStep step{call.rules->rate.at(counters.examples) * key.factors.learning_rate,
                        ++counters.optimizer_updates, key.factors.weight_decay};
  ++counters.version;
  ++counters.policy_updates;
  counters.examples += call.examples;
  ++key.updates;
  return step;
}

// Counts the updates. `in`: the keys' gradients; on accelerators the arrays of `out` follow. `out`: each key's weight
// and states. `pointers` receives the pointers to the states, and must outlive the result.
std::vector<DeviceUpdate> updates_of(const UpdateCall& call, std::span<const Tensor> in, std::span<const Tensor> out,
                                     std::vector<float*>& pointers) {
  const std::size_t arrays = 1 + call.states();
  std::vector<DeviceUpdate> updates;
  pointers.reserve(out.size());
  for (std::size_t i = 0; i < call.keys.size(); ++i) {
    const std::span<const Tensor> changed = out.subspan(i * arrays, arrays);
    float** const states = pointers.data() + pointers.size();
    for (const Tensor& state : changed.subspan(1)) pointers.push_back(state.as<float>());
    updates.push_back(
        {{.count = changed[0].size(), .gradient = in[i].as<float>(), .weight = changed[0].as<float>(), .state = states},
         count_update(call, *call.keys[i])});
  }
  return updates;
}

// Updates tiles [first, last).
void update_tiles(const UpdateCall& call, const DeviceUpdate& update, std::int64_t first, std::int64_t last) {
  constexpr std::int64_t kTile = Tile<float>::kElements;
  const Tile<float>& whole = update.arrays;
  const Optimizer& optimizer = *call.rules->optimizer;
  Preparation preparation = call.rules->preparation;
  preparation.weight_decay *= update.step.decay_factor;
  const bool one_pass = optimizer.in_one_pass() && !preparation.changes();
  alignas(64) std::array<float, static_cast<std::size_t>(kTile)> scratch;
  std::vector<float*> state(whole.state, whole.state + call.states());
  for (float*& array : state) array += first * kTile;
  const std::int64_t end = std::min(whole.count, last * kTile);
  for (std::int64_t begin = first * kTile; begin < end; begin += kTile) {
    Tile<float> tile{.count = std::min(kTile, end - begin),
                     .gradient = whole.gradient + begin,
                     .weight = whole.weight + begin,
                     .state = state.data()};
    if (!one_pass) {
      std::copy_n(tile.gradient, tile.count, scratch.data());
      tile.gradient = scratch.data();
      preparation.apply(tile.gradient, tile.weight, tile.count);
    }
    optimizer.update(tile, update.step);
    for (float*& array : state) array += tile.count;
  }
}

void update_on_host(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                    const void* attributes) {
  constexpr std::int64_t kTilesPerThread = 16;
  const auto& call = *static_cast<const UpdateCall*>(attributes);
  std::vector<float*> pointers;
  for (const DeviceUpdate& update : updates_of(call, in, out, pointers)) {
    const std::int64_t tiles = (update.arrays.count + Tile<float>::kElements - 1) / Tile<float>::kElements;
    detail::parallel_ranges(tiles, kTilesPerThread,
                            [&](std::int64_t first, std::int64_t last) { update_tiles(call, update, first, last); });
  }
}

void update_on_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                    const void* attributes) {
  const auto& call = *static_cast<const UpdateCall*>(attributes);
  std::vector<float*> pointers;
  call.rules->optimizer->update_cuda(updates_of(call, in, out, pointers), call.rules->preparation, context.device,
                                     context.native_stream);
}

constexpr Kernel kUpdate{"store.update", update_on_host, update_on_cuda};

// Copies an array to the host, as an array of `engine`. A saved state outlives the engine of its store, and a loaded
// state comes from another engine.
NDArray here_of(const NDArray& array, Engine& engine) {
  const NDArray here = array.device() == Device{} ? array.clone() : array.to(Device{});
  here.wait();
  return ArrayBuilder::wrap(const_cast<void*>(here.data()), here.shape(), here.dtype(), Device{},
                            std::make_shared<NDArray>(here), engine);
}

}  // namespace

InPlaceWeights::InPlaceWeights() : rules_(std::make_shared<Rules>(Spec{"sgd", {}})) {}
InPlaceWeights::~InPlaceWeights() = default;

std::vector<NDArray> InPlaceWeights::zeros_for(const NDArray& weight) const {
  std::vector<NDArray> arrays;
  for (std::size_t i = 0; i < rules_->names.size(); ++i)
    arrays.push_back(NDArray::zeros(weight.shape(), weight.dtype(), weight.device(), weight.engine()));
  return arrays;
}

bool InPlaceWeights::takes(const InitValue& value) {
  const NDArray& array = value.value;
  const bool stays = !array.device().is_cpu() || (value.shared && !value.average && array.device() == Device{});
  return stays && array.dtype() == DType::kFloat32;
}

std::unique_ptr<InPlaceKey> InPlaceWeights::add(const InitValue& value) const {
  auto key = std::make_unique<InPlaceKey>();
  key->name = value.key;
  key->average = value.average;
  key->factors = rules_->multipliers.of(key->name);
  key->weight = value.shared && value.value.is_contiguous() ? value.value : value.value.clone();
  if (!value.average) key->state = zeros_for(key->weight);
  return key;
}

void InPlaceWeights::set_optimizer(const Spec& optimizer, std::span<InPlaceKey* const> keys) {
  auto rules = std::make_shared<const Rules>(optimizer);
  const bool same_state = rules->names == rules_->names;
  rules_ = std::move(rules);
  for (InPlaceKey* key : keys) key->factors = rules_->multipliers.of(key->name);
  if (same_state) return;
  for (InPlaceKey* key : keys) {
    if (key->average) continue;
    key->state = zeros_for(key->weight);
    key->counters.optimizer_updates = 0;
  }
}

void InPlaceWeights::set_learning_rate(double rate) {
  require(rate >= 0, "the learning rate is ", rate, ", expected at least 0");
  auto rules = std::make_shared<Rules>(*rules_);
  rules->rate.set_base(rate);
  rules_ = std::move(rules);
}

void InPlaceWeights::push(std::span<const Push> pushes, std::int64_t examples, int priority) {
  struct Call {
    std::vector<NDArray> inputs, outputs;
    std::vector<InPlaceKey*> keys;
  };
  // On the CPU each key has a task of its own, which names only the gradient as read. If the gradient has failed, the
  // weights stay as they are, and the next push goes on.
  std::map<std::pair<Device, const InPlaceKey*>, Call> calls;
  for (const auto& [key, gradient] : pushes) {
    if (key->average) {
      ++key->counters.version;
      key->weight.copy_from(gradient.view(key->weight.shape()), priority);
      continue;
    }
    const Device device = key->weight.device();
    Call& call = calls[{device, device.is_cpu() ? key : nullptr}];
    call.inputs.push_back(gradient);
    call.outputs.push_back(key->weight);
    call.outputs.insert(call.outputs.end(), key->state.begin(), key->state.end());
    call.keys.push_back(key);
  }
  for (auto& [place, call] : calls) {
    if (!place.first.is_cpu()) call.inputs.insert(call.inputs.end(), call.outputs.begin(), call.outputs.end());
    auto attributes = std::make_shared<UpdateCall>(UpdateCall{rules_, std::move(call.keys), examples});
    launch(kUpdate, call.inputs, call.outputs, std::move(attributes), {.priority = priority});
  }
}

SavedKey InPlaceWeights::save(const InPlaceKey& key) const {
  SavedKey saved;
  saved.weight = here_of(key.weight, default_engine());
  for (std::size_t i = 0; i < key.state.size(); ++i)
    saved.slots[rules_->names[i]] = here_of(key.state[i], default_engine());
  saved.counters = key.counters;
  return saved;
}

void InPlaceWeights::load(InPlaceKey& key, const SavedKey& saved) const {
  key.counters = saved.counters;
  key.weight.copy_from(here_of(saved.weight, key.weight.engine()));
  if (key.average) return;
  key.state = zeros_for(key.weight);
  for (std::size_t i = 0; i < key.state.size(); ++i) {
    const auto found = saved.slots.find(rules_->names[i]);
    if (found != saved.slots.end())
      key.state[i].copy_from(here_of(found->second, key.weight.engine()).view(key.weight.shape()));
    else
      key.counters.optimizer_updates = 0;
  }
}

}  // namespace paceline
