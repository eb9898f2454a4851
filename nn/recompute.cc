#include <paceline/autograd.h>
#include <paceline/layers.h>
#include <paceline/ops.h>
#include <paceline/parallel.h>

#include <algorithm>
#include <optional>

namespace paceline::nn {
namespace {

// The body as an operator: inputs are x and the body's weights. A tape's calls hold it.
class Recomputed {
 public:
  explicit Recomputed(const Module& body) : body_(body) {}

  const Module& body() const { return body_; }
  bool is_ready() const { return op_.has_value(); }
  const OpDef& op() const { return *op_; }
  // Each weight once, wherever the body uses it.
  std::vector<NDArray> weights() const {
    std::vector<NDArray> values;
    for (const auto& parameter : weights_) values.push_back(parameter->value);
    return values;
  }

  // Once the weights are there.
  void prepare() {
    std::vector<int> all{0};
    for (const auto& parameter : body_.parameters()) {
      if (parameter->statistic || std::find(weights_.begin(), weights_.end(), parameter) != weights_.end()) continue;
      weights_.push_back(parameter);
      all.push_back(static_cast<int>(all.size()));
    }
    op_.emplace(OpDef("recompute")
                    .variadic("inputs")
                    .saves_inputs(all)
                    .forward([this](const std::vector<NDArray>& inputs, const void* attributes) {
                      return std::vector{body_(inputs[0], static_cast<const Call*>(attributes)->context)};
                    })
                    .gradient([this](const OpCall& call, const std::vector<NDArray>& gradients) {
                      return gradient(call, gradients[0]);
                    }));
  }

  struct Call {
    Context context;
    std::shared_ptr<const Recomputed> operation;
    std::shared_ptr<const std::vector<NDArray>> rows;  // that the body took from Context::rows, in order
  };

 private:
  bool is_row_sparse(std::size_t input) const { return input > 0 && weights_[input - 1]->is_row_sparse(); }

  std::vector<Gradient> gradient(const OpCall& call, const NDArray& of_output) const {
    std::vector<Gradient> results(call.inputs.size());
    Context again = call.attributes<Call>().context;
    again.recomputing = true;
    if (again.rows)
      again.rows = std::make_shared<const RowSource>(
          [rows = call.attributes<Call>().rows, next = std::size_t{0}](
              const Parameter&, const NDArray&, const NDArray& out) mutable { out.copy_from(rows->at(next++)); });
    Tape tape;
    for (std::size_t i = 0; i < results.size(); ++i) {
      const NDArray& input = call.inputs[i];
      if (!call.wants_gradient(i)) continue;
      if (is_row_sparse(i)) {
        tape.watch_sparse(input);
        continue;
      }
      results[i] = NDArray(input.shape(), input.dtype(), input.device(), input.engine());
      tape.watch(input, results[i].dense);
    }
    tape.backward(body_(call.inputs[0], again), of_output);
    for (std::size_t i = 0; i < results.size(); ++i)
      if (call.wants_gradient(i) && is_row_sparse(i)) results[i] = tape.sparse_gradient(call.inputs[i]);
    return results;
  }

  Module body_;
  std::vector<std::shared_ptr<Parameter>> weights_;
  std::optional<OpDef> op_;
};

class RecomputeLayer final : public Layer {
 public:
  explicit RecomputeLayer(const Module& body) : operation_(std::make_shared<Recomputed>(body)) {
    add_child("body", body.layer());
  }

  NDArray forward(const NDArray& x, const Context& given) override {
    Context context = given;
    context.calls = nullptr;  // the body stands for this layer
    // The first call creates the weights, so there is nothing to name as inputs before it.
    if (!Recorder::current() || !operation_->is_ready()) {
      const NDArray y = operation_->body()(x, context);
      if (!operation_->is_ready()) operation_->prepare();
      return y;
    }
    std::vector<NDArray> inputs = operation_->weights();
    const Device place = inputs.empty() ? x.device() : inputs[0].device();
    for (const NDArray& weight : inputs)
      require(weight.device() == place, "[Recompute] the body has weights on ", place.name(), " and on ",
              weight.device().name(), "; recompute the part on each device by itself");
    inputs.insert(inputs.begin(), to_device(x, place));
    // Asked again, the store may give newer rows than the ones that the output was made of.
    const auto kept = std::make_shared<std::vector<NDArray>>();
    if (context.rows)
      context.rows = std::make_shared<const RowSource>(
          [source = given.rows, kept](const Parameter& table, const NDArray& numbers, const NDArray& rows) {
            (*source)(table, numbers, rows);
            kept->push_back(rows);
          });
    const auto call = std::make_shared<const Recomputed::Call>(Recomputed::Call{context, operation_, kept});
    return invoke(operation_->op(), inputs, std::shared_ptr<const void>(call))[0];
  }
  std::string kind() const override { return "Recompute"; }

 private:
  std::shared_ptr<Recomputed> operation_;
};

}  // namespace

Recompute::Recompute(const Module& body) : Module(std::make_shared<RecomputeLayer>(body)) {}

}  // namespace paceline::nn
