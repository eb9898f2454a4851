#include <paceline/op.h>
#include <paceline/parallel.h>

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

}  // namespace

NDArray to_device(const NDArray& x, Device device) {
  return x.device() == device ? x : invoke(to_device_operator(), {x}, CrossingAttributes{x.device(), device});
}

}  // namespace paceline::nn
