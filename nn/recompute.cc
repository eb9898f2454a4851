#include <paceline/autograd.h>
#include <paceline/layers.h>
#include <paceline/ops.h>

#include <optional>

namespace paceline::nn {
namespace {

// One call of the body as an operator: inputs are x and the body's weights, attributes the Context.
class RecomputeLayer final : public Layer {
 public:
  explicit RecomputeLayer(const Module& body) : body_(body) { add_child("body", body.layer()); }

  NDArray forward(const NDArray& x, const Context& context) override {
    // The first call creates the weights, so there is nothing to name as inputs before it.
    if (!Recorder::current() || !op_) {
      const NDArray y = body_(x, context);
      if (!op_) make_operator();
      return y;
    }
    std::vector<NDArray> inputs{x};
    for (const auto& parameter : trained_) inputs.push_back(parameter->value);
    return invoke(*op_, inputs, std::shared_ptr<const void>(std::make_shared<const Context>(context)))[0];
  }
  std::string kind() const override { return "Recompute"; }

 private:
  void make_operator() {
    std::vector<int> all{0};
    for (const auto& parameter : body_.parameters())
      if (!parameter->statistic) {
        trained_.push_back(parameter);
        all.push_back(static_cast<int>(all.size()));
      }
    op_.emplace(OpDef("recompute")
                    .variadic("inputs")
                    .saves_inputs(all)
                    .forward([this](const std::vector<NDArray>& inputs, const void* attributes) {
                      return std::vector{body_(inputs[0], *static_cast<const Context*>(attributes))};
                    })
                    .gradient([this](const OpCall& call, const std::vector<NDArray>& gradients) {
                      return gradient(call, gradients[0]);
                    }));
  }

  std::vector<Gradient> gradient(const OpCall& call, const NDArray& of_output) const {
    std::vector<Gradient> results(call.inputs.size());
    Context again = call.attributes<Context>();
    again.recomputing = true;
    Tape tape;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const NDArray& input = call.inputs[i];
      if (!call.wants_gradient(i)) continue;
      results[i] = NDArray(input.shape(), input.dtype(), input.device(), input.engine());
      tape.watch(input, results[i].dense);
    }
    // The gradient of this sum with respect to the output is `of_output`.
    tape.backward(sum(body_(call.inputs[0], again) * of_output));
    return results;
  }

  Module body_;
  std::vector<std::shared_ptr<Parameter>> trained_;
  std::optional<OpDef> op_;
};

}  // namespace

Recompute::Recompute(const Module& body) : Module(std::make_shared<RecomputeLayer>(body)) {}

}  // namespace paceline::nn
