#include <paceline/layers.h>
#include <paceline/ops.h>

#include "precision.h"

namespace paceline::nn {
namespace {

void check_steps(const char* kind, const NDArray& x) {
  require(x.ndim() == 3, "[", kind, "] the input has shape ", x.shape(), ", expected (examples, steps, width)");
}

class LayerNormLayer final : public Layer {
 public:
  explicit LayerNormLayer(double epsilon) : epsilon_(epsilon) {}
  NDArray forward(const NDArray& x, const Context& context) override {
    const Shape shape{x.size(-1)};
    const NDArray gamma = parameter("gamma", shape, constant(1), context, x.dtype()).value;
    const NDArray beta = parameter("beta", shape, constant(0), context, x.dtype()).value;
    return layer_norm(is_half(context.compute) ? in_float(x) : x, gamma, beta, epsilon_);
  }
  std::string kind() const override { return "LayerNorm"; }

 private:
  double epsilon_;
};

class PositionalEmbeddingLayer final : public Layer {
 public:
  explicit PositionalEmbeddingLayer(const Initializer& weight) : weight_(weight) {}
  NDArray forward(const NDArray& x, const Context& context) override {
    check_steps("PositionalEmbedding", x);
    const NDArray weight = parameter("weight", {x.size(1), x.size(2)}, weight_, context, x.dtype()).value;
    require(x.size(1) <= weight.size(0), "[PositionalEmbedding] the input has ", x.size(1),
            " steps, more than the first one's ", weight.size(0));
    return (is_half(context.compute) ? in_float(x) : x) + slice(weight, 0, 0, x.size(1));
  }
  std::string kind() const override { return "PositionalEmbedding"; }

 private:
  Initializer weight_;
};

class SelfAttentionLayer final : public Layer {
 public:
  SelfAttentionLayer(int heads, const AttentionOptions& options) : heads_(heads), options_(options) {
    require(heads > 0, "[SelfAttention] has ", heads, " heads, expected at least 1");
  }
  NDArray forward(const NDArray& x, const Context& context) override {
    check_steps("SelfAttention", x);
    const std::int64_t width = x.size(2);
    require(width % heads_ == 0, "[SelfAttention] the width ", width, " is not divisible by ", heads_, " heads");
    const auto project = [&](const NDArray& from, const std::string& name, std::int64_t outputs) {
      const NDArray by = weight("weight_" + name, {outputs, width}, options_.weight, context, x.dtype());
      const NDArray bias =
          options_.bias ? weight("bias_" + name, {outputs}, constant(0), context, x.dtype()) : NDArray();
      return dense(in_compute_type(from, context), by, bias, false);
    };
    // (examples, steps, 3 width) -> three of (examples, heads, steps, width of a head)
    const std::vector<NDArray> parts =
        split(reshape(project(x, "in", 3 * width), {0, 0, 3, heads_, width / heads_}), 3, 2);
    const auto part = [&](std::size_t i) { return transpose(squeeze(parts[i], 2), {0, 2, 1, 3}); };
    const NDArray seen = attention(part(0), part(1), part(2), {}, {.causal = options_.causal});
    return project(reshape(transpose(seen, {0, 2, 1, 3}), x.shape()), "out", width);
  }
  std::string kind() const override { return "SelfAttention"; }

 private:
  std::int64_t heads_;
  AttentionOptions options_;
};

}  // namespace

LayerNorm::LayerNorm(double epsilon) : Module(std::make_shared<LayerNormLayer>(epsilon)) {}
PositionalEmbedding::PositionalEmbedding(const Initializer& weight)
    : Module(std::make_shared<PositionalEmbeddingLayer>(weight)) {}
SelfAttention::SelfAttention(int heads, const AttentionOptions& options)
    : Module(std::make_shared<SelfAttentionLayer>(heads, options)) {}

}  // namespace paceline::nn
