#include "checkpoint/slice_state.h"

namespace paceline {

void write_slice(Updater& updater, int slice, bool state, wire::WorkerSlices::Slice* part, PayloadWriter* payload) {
  SliceCounters counters;
  for (const auto& [name, array] : updater.save_slice(slice, &counters)) {
    if (!state && name != "weight") continue;
    part->add_names(name);
    payload->add(array.data(), array.bytes(), std::make_shared<NDArray>(array));
  }
  part->set_version(counters.version);
  part->set_examples(counters.examples);
  part->set_optimizer_updates(counters.optimizer_updates);
  part->set_policy_updates(counters.policy_updates);
}

NamedArrays read_slice(const wire::WorkerSlices::Slice& part, const Shape& shape, DType dtype, PayloadReader* payload,
                       const std::shared_ptr<void>& owner, SliceCounters* counters) {
  NamedArrays arrays;
  const auto bytes = static_cast<std::size_t>(shape.size()) * size_of(dtype);
  for (const std::string& name : part.names()) {
    const std::byte* data = payload->next(bytes);
    arrays.emplace_back(name, NDArray::wrap(const_cast<std::byte*>(data), shape, dtype, owner));
  }
  *counters = {part.version(), part.examples(), part.optimizer_updates(), part.policy_updates()};
  return arrays;
}

}  // namespace paceline
