#include <paceline/layers.h>
#include <paceline/ops.h>

#include "seed.h"

namespace paceline::nn {
namespace {

class SequentialLayer final : public Layer {
 public:
  explicit SequentialLayer(std::initializer_list<Module> modules) {
    for (const Module& module : modules) add_child(std::to_string(children().size()), module.layer());
  }
  NDArray forward(const NDArray& x, const Context& context) override {
    NDArray result = x;
    std::uint64_t index = 0;
    for (const auto& [name, child] : children()) {
      Context own = context;
      own.seed = mix(context.seed, index++);
      result = child->forward(result, own);
    }
    return result;
  }
  std::string kind() const override { return "Sequential"; }
};

class DenseLayer final : public Layer {
 public:
  DenseLayer(std::int64_t outputs, const DenseOptions& options) : outputs_(outputs), options_(options) {
    require(outputs > 0, "[Dense] has ", outputs, " outputs, expected at least 1");
  }
  NDArray forward(const NDArray& x, const Context& context) override {
    require(x.ndim() >= 2, "[Dense] the input has shape ", x.shape(), ", expected (examples, ...)");
    const std::int64_t inputs = options_.flatten && x.size(0) > 0 ? x.size() / x.size(0) : x.size(-1);
    const NDArray weight = parameter("weight", {outputs_, inputs}, options_.weight, context, x.dtype()).value;
    const NDArray bias = options_.bias ? parameter("bias", {outputs_}, constant(0), context, x.dtype()).value : NDArray();
    return dense(x, weight, bias, options_.flatten);
  }
  std::string kind() const override { return "Dense"; }

 private:
  std::int64_t outputs_;
  DenseOptions options_;
};

class Conv2dLayer final : public Layer {
 public:
  Conv2dLayer(std::int64_t channels, std::int64_t kernel, const Conv2dOptions& options)
      : channels_(channels), kernel_(kernel), options_(options) {
    require(channels > 0 && kernel > 0 && options.groups > 0, "[Conv2d] channels, kernel and groups must be positive");
  }
  NDArray forward(const NDArray& x, const Context& context) override {
    require(x.ndim() == 4, "[Conv2d] the input has shape ", x.shape(), ", expected (examples, channels, height, width)");
    const Shape shape{channels_, x.size(1) / options_.groups, kernel_, kernel_};
    const NDArray weight = parameter("weight", shape, options_.weight, context, x.dtype()).value;
    const NDArray bias = options_.bias ? parameter("bias", {channels_}, constant(0), context, x.dtype()).value : NDArray();
    return conv2d(x, weight, bias,
                  {.stride = {options_.stride, options_.stride},
                   .padding = {options_.padding, options_.padding},
                   .dilation = {options_.dilation, options_.dilation},
                   .groups = options_.groups});
  }
  std::string kind() const override { return "Conv2d"; }

 private:
  std::int64_t channels_, kernel_;
  Conv2dOptions options_;
};

class BatchNormLayer final : public Layer {
 public:
  explicit BatchNormLayer(const BatchNormOptions& options) : options_(options) {}
  NDArray forward(const NDArray& x, const Context& context) override {
    const Shape shape{x.size(1)};
    const NDArray gamma = parameter("gamma", shape, constant(1), context, x.dtype()).value;
    const NDArray beta = parameter("beta", shape, constant(0), context, x.dtype()).value;
    const NDArray mean = statistic("running_mean", shape, 0, context).value;
    const NDArray variance = statistic("running_var", shape, 1, context).value;
    return batch_norm(
        x, gamma, beta, mean, variance,
        {.momentum = options_.momentum, .epsilon = options_.epsilon, .training = context.training});
  }
  std::string kind() const override { return "BatchNorm"; }

 private:
  BatchNormOptions options_;
};

class DropoutLayer final : public Layer {
 public:
  explicit DropoutLayer(double rate) : rate_(rate) {
    require(rate >= 0 && rate < 1, "[Dropout] the rate is ", rate, ", expected 0 <= rate < 1");
  }
  NDArray forward(const NDArray& x, const Context& context) override {
    return context.training ? dropout(x, rate_, context.seed) : x;
  }
  std::string kind() const override { return "Dropout"; }

 private:
  double rate_;
};

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(std::int64_t rows, std::int64_t width, const Initializer& weight)
      : rows_(rows), width_(width), weight_(weight) {}
  NDArray forward(const NDArray& x, const Context& context) override {
    return embedding(x, parameter("weight", {rows_, width_}, weight_, context).value);
  }
  std::string kind() const override { return "Embedding"; }

 private:
  std::int64_t rows_, width_;
  Initializer weight_;
};

class FunctionLayer final : public Layer {
 public:
  FunctionLayer(std::string kind, std::function<NDArray(const NDArray&)> function)
      : kind_(std::move(kind)), function_(std::move(function)) {}
  NDArray forward(const NDArray& x, const Context&) override { return function_(x); }
  std::string kind() const override { return kind_; }

 private:
  std::string kind_;
  std::function<NDArray(const NDArray&)> function_;
};

Module function(const std::string& kind, std::function<NDArray(const NDArray&)> body) {
  return Module(std::make_shared<FunctionLayer>(kind, std::move(body)));
}

Pool2dAttributes window(std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return {.kernel = {kernel, kernel}, .stride = {stride, stride}, .padding = {padding, padding}};
}

}  // namespace

Sequential::Sequential(std::initializer_list<Module> modules) : Module(std::make_shared<SequentialLayer>(modules)) {}
Dense::Dense(std::int64_t outputs, const DenseOptions& options)
    : Module(std::make_shared<DenseLayer>(outputs, options)) {}
Conv2d::Conv2d(std::int64_t channels, std::int64_t kernel, const Conv2dOptions& options)
    : Module(std::make_shared<Conv2dLayer>(channels, kernel, options)) {}
MaxPool::MaxPool(std::int64_t kernel, std::int64_t stride, std::int64_t padding)
    : Module(function("MaxPool", [=](const NDArray& x) { return max_pool2d(x, window(kernel, stride, padding)); })) {}
AveragePool::AveragePool(std::int64_t kernel, std::int64_t stride, std::int64_t padding)
    : Module(function("AveragePool",
                      [=](const NDArray& x) { return average_pool2d(x, window(kernel, stride, padding)); })) {}
GlobalAveragePool::GlobalAveragePool()
    : Module(function("GlobalAveragePool", [](const NDArray& x) { return global_average_pool2d(x); })) {}
BatchNorm::BatchNorm(const BatchNormOptions& options) : Module(std::make_shared<BatchNormLayer>(options)) {}
Dropout::Dropout(double rate) : Module(std::make_shared<DropoutLayer>(rate)) {}
Embedding::Embedding(std::int64_t rows, std::int64_t width, const Initializer& weight)
    : Module(std::make_shared<EmbeddingLayer>(rows, width, weight)) {}
Flatten::Flatten() : Module(function("Flatten", [](const NDArray& x) { return flatten(x); })) {}
Relu::Relu() : Module(function("Relu", [](const NDArray& x) { return relu(x); })) {}
Tanh::Tanh() : Module(function("Tanh", [](const NDArray& x) { return paceline::tanh(x); })) {}
Sigmoid::Sigmoid() : Module(function("Sigmoid", [](const NDArray& x) { return sigmoid(x); })) {}
Gelu::Gelu() : Module(function("Gelu", [](const NDArray& x) { return gelu(x); })) {}
Lambda::Lambda(const std::string& kind, std::function<NDArray(const NDArray&)> body)
    : Module(function(kind, std::move(body))) {}

}  // namespace paceline::nn
