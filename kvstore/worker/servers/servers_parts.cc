// Transfers of large keys between an accelerator and the servers. While one part is on the wire, the next part is
// copied.
#include <paceline/detail/array_builder.h>

#include <array>

#include "servers/servers.h"

namespace paceline {
namespace {

constexpr std::size_t kPart = std::size_t{1} << 20;  // bytes

// Returns the elements of `part` in `array`, which is the whole key, and a host array to copy these elements to or
// from.
std::pair<NDArray, NDArray> part_of(const NDArray& array, const RemotePart& part) {
  const NDArray there = array.view({-1}).narrow(0, part.slices.front().begin, part.slices.back().end);
  return {there, ArrayBuilder::host_side(there.shape(), there.dtype(), there.device(), array.engine())};
}

}  // namespace

bool ServersBackend::goes_in_parts(const RemoteKey& key, const NDArray* gradient, const NDArray* out) const {
  if (static_cast<std::size_t>(key.info.shape.size()) * size_of(key.info.dtype) < 2 * kPart) return false;
  if (rule_ || compressor_) return false;
  for (const NDArray* array : {gradient, out})
    if (array && (array->device().is_cpu() || !array->is_contiguous())) return false;
  return true;
}

void ServersBackend::transfer_parts(RemoteKey& key, const NDArray* gradient, const NDArray* out, const PartCall& call,
                                    Copies* copies) {
  const bool first_use = key.parts.empty();
  for (std::span<RemoteSlice> rest = first_use ? key.slices : std::span<RemoteSlice>(); !rest.empty();) {
    const auto room = static_cast<std::int64_t>(kPart / size_of(key.info.dtype));
    std::size_t count = 1;
    while (count < rest.size() && rest[count].end - rest.front().begin <= room) ++count;
    key.parts.push_back({rest.first(count), engine_.new_variable()});
    rest = rest.subspan(count);
  }
  if (first_use) {
    // The tasks of the parts come after earlier tasks of the whole key, and fail if those have failed.
    std::vector<Variable> orders;
    key.add_orders(&orders);
    engine_.push({"store.parts", {}, Lane::kCommunication, call.priority}, std::array{key.order}, orders,
                 [](TaskContext&) {});
  }
  for (RemotePart& part : key.parts) {
    Transfer::Item item{&key, {}, {}, call.need};
    item.part = &part;
    if (gradient) {
      const auto [there, here] = part_of(*gradient, part);
      here.copy_from(there, call.priority);
      item.gradient = Transfer::Bytes::of(here);
      pushed_in_step_ = true;
    }
    if (out) {
      copies->push_back(part_of(*out, part));
      item.out = Transfer::Bytes::of(copies->back().second);
    }
    launch(call.task, {std::move(item)}, call.examples, call.priority);
  }
  if (out) key.weight = out->view(key.info.shape);
}

}  // namespace paceline
