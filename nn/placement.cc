#include <paceline/op.h>
#include <paceline/parallel.h>

#include <algorithm>

namespace paceline::nn {
namespace {

struct CrossingAttributes {
  Device from, to;
};

const OpDef& to_device_operator() {
  static const OpDef& op =
      *new OpDef(OpDef("to_device")
                     .attributes<CrossingAttributes>()
                     .input("x")
                     .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
                       return std::vector{inputs[0].to(static_cast<const CrossingAttributes*>(attributes)->to)};
                     })
                     .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
                       return {gradients[0].to(call.attributes<CrossingAttributes>().from)};
                     }));
  return op;
}

struct ScatterAttributes {
  int axis = 0;
  Device from;
  std::vector<Device> devices;
};

// Calls function(part, begin, end) for each of so many parts of an axis.
template <class Function>
void for_each_part(std::int64_t size, std::size_t parts, const Function& function) {
  const auto count = static_cast<std::int64_t>(parts);
  for (std::int64_t i = 0; i < count; ++i)
    function(static_cast<std::size_t>(i), size * i / count, size * (i + 1) / count);
}

const OpDef& scatter_operator() {
  static const OpDef& op =
      *new OpDef(OpDef("scatter")
                     .attributes<ScatterAttributes>()
                     .input("x")
                     .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
                       const auto& [axis, from, devices] = *static_cast<const ScatterAttributes*>(attributes);
                       Parts parts;
                       for_each_part(inputs[0].size(axis), devices.size(), [&](auto i, auto begin, auto end) {
                         parts.push_back(inputs[0].narrow(axis, begin, end).to(devices[i]));
                       });
                       return parts;
                     })
                     .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
                       const auto& [axis, from, devices] = call.attributes<ScatterAttributes>();
                       const auto& [shape, dtype] = call.input_specs[0];
                       const auto given = std::find_if(gradients.begin(), gradients.end(),
                                                       [](const NDArray& part) { return !part.is_none(); });
                       const NDArray whole(shape, dtype, from, given->engine());
                       for_each_part(whole.size(axis), devices.size(), [&](auto i, auto begin, auto end) {
                         const NDArray part = whole.narrow(axis, begin, end);
                         gradients[i].is_none() ? part.fill(0) : part.copy_from(gradients[i]);
                       });
                       return {whole};
                     }));
  return op;
}

}  // namespace

NDArray to_device(const NDArray& x, Device device) {
  return x.device() == device ? x : invoke(to_device_operator(), {x}, CrossingAttributes{x.device(), device});
}

Parts scatter(const NDArray& x, int axis, const std::vector<Device>& devices) {
  const int place = normalize_axis(axis, x.ndim(), "scatter");
  require(!devices.empty() && x.size(place) >= static_cast<std::int64_t>(devices.size()), "[scatter] axis ", axis,
          " of x, ", x.describe(), ", cannot be cut into ", devices.size(), " parts");
  const ScatterAttributes attributes{place, x.device(), devices};
  return invoke(scatter_operator(), {x}, std::shared_ptr<const void>(std::make_shared<ScatterAttributes>(attributes)));
}

}  // namespace paceline::nn
