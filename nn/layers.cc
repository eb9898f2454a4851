#include <paceline/layers.h>
#include <paceline/log.h>
#include <paceline/ops.h>
#include <paceline/parallel.h>

#include <span>
#include <utility>

#include "precision.h"
#include "row_gradients.h"

namespace paceline::nn {
namespace {

class SequentialLayer final : public Layer {
 public:
  explicit SequentialLayer(std::span<const Module> modules) {
    for (const Module& module : modules) add_child(std::to_string(children().size()), module.layer());
  }
  NDArray forward(const NDArray& x, const Context& context) override { return (*this)(x, context); }
  Parts forward_parts(const Parts& x, const Context& context) override {
    Parts result = x;
    for (const auto& [name, child] : children()) result = (*child)(result, context);
    return result;
  }
  std::string kind() const override { return "Sequential"; }
};

class ResidualLayer final : public Layer {
 public:
  ResidualLayer(const Module& body, const Module* shortcut) {
    add_child("body", body.layer());
    if (shortcut) add_child("shortcut", shortcut->layer());
  }
  NDArray forward(const NDArray& x, const Context& context) override {
    const NDArray body = (*children()[0].second)(x, context);
    const NDArray shortcut = to_device(children().size() > 1 ? (*children()[1].second)(x, context) : x, body.device());
    require(body.shape() == shortcut.shape(), "[Residual] the body makes ", body.shape(), " of ", x.shape(),
            ", the shortcut ", shortcut.shape());
    return body.dtype() == shortcut.dtype() ? body + shortcut : in_float(body) + in_float(shortcut);
  }
  std::string kind() const override { return "Residual"; }
};

class DenseLayer final : public Layer {
 public:
  DenseLayer(std::int64_t outputs, const DenseOptions& options) : outputs_(outputs), options_(options) {
    require(outputs > 0, "[Dense] has ", outputs, " outputs, expected at least 1");
  }
  NDArray forward(const NDArray& x, const Context& context) override {
    require(x.ndim() >= 2, "[Dense] the input has shape ", x.shape(), ", expected (examples, ...)");
    const std::int64_t inputs = options_.flatten && x.size(0) > 0 ? x.size() / x.size(0) : x.size(-1);
    const NDArray kernel = weight("weight", {outputs_, inputs}, options_.weight, context, x.dtype());
    const NDArray bias = options_.bias ? weight("bias", {outputs_}, constant(0), context, x.dtype()) : NDArray();
    return dense(in_compute_type(x, context), kernel, bias, options_.flatten, options_.activation);
  }
  std::string kind() const override { return "Dense"; }

 private:
  std::int64_t outputs_;
  DenseOptions options_;
};

// `number` for each axis behind the channels of x.
Shape for_each_axis(const NDArray& x, std::int64_t number) {
  Shape result;
  for (int i = 2; i < x.ndim(); ++i) result.push_back(number);
  return result;
}

ConvolutionAttributes steps(const NDArray& x, const ConvOptions& options) {
  return {for_each_axis(x, options.stride), for_each_axis(x, options.padding), for_each_axis(x, options.dilation),
          options.groups};
}

// What both kinds of convolution share: `axes` is 0 where any number will do.
class ConvLayer : public Layer {
 public:
  ConvLayer(std::string kind, int axes, std::int64_t channels, std::int64_t kernel, const ConvOptions& options)
      : options_(options), channels_(channels), kind_(std::move(kind)), axes_(axes), kernel_(kernel) {
    require(channels > 0 && kernel > 0 && options.groups > 0, "[", kind_,
            "] channels, kernel and groups must be positive");
  }
  std::string kind() const override { return kind_; }

 protected:
  NDArray kernel(const NDArray& x, std::int64_t first, std::int64_t second, const Context& context) {
    Shape shape{first, second};
    for (const std::int64_t size : for_each_axis(x, kernel_)) shape.push_back(size);
    return weight("weight", shape, options_.weight, context, x.dtype());
  }
  NDArray bias(const NDArray& x, const Context& context) {
    return options_.bias ? weight("bias", {channels_}, constant(0), context, x.dtype()) : NDArray();
  }
  void check(const NDArray& x) const {
    require(axes_ == 0 ? x.ndim() >= 3 && x.ndim() <= 5 : x.ndim() == 2 + axes_, "[", kind_, "] the input has shape ",
            x.shape(), ", expected (examples, channels) and ", axes_ == 0 ? "1 to 3" : std::to_string(axes_), " sizes");
  }

  static NDArray in_order(const NDArray& x, const Context& context) {
    return context.channels_last ? paceline::channels_last(x) : x;
  }

  ConvOptions options_;
  std::int64_t channels_;

 private:
  std::string kind_;
  int axes_;
  std::int64_t kernel_;
};

class ConvolutionLayer final : public ConvLayer {
 public:
  using ConvLayer::ConvLayer;
  NDArray forward(const NDArray& x, const Context& context) override {
    check(x);
    const NDArray by = kernel(x, channels_, x.size(1) / options_.groups, context);
    return convolution(in_order(in_compute_type(x, context), context), by, bias(x, context), steps(x, options_));
  }
};

class TransposedConvLayer final : public ConvLayer {
 public:
  TransposedConvLayer(std::int64_t channels, std::int64_t kernel, const ConvOptions& options,
                      std::int64_t output_padding)
      : ConvLayer("TransposedConv", 0, channels, kernel, options), output_padding_(output_padding) {}
  NDArray forward(const NDArray& x, const Context& context) override {
    check(x);
    const NDArray by = kernel(x, x.size(1), channels_ / options_.groups, context);
    return transposed_convolution(in_order(in_compute_type(x, context), context), by, bias(x, context),
                                  {steps(x, options_), for_each_axis(x, output_padding_)});
  }

 private:
  std::int64_t output_padding_;
};

class BatchNormLayer final : public Layer {
 public:
  explicit BatchNormLayer(const BatchNormOptions& options) : options_(options) {}
  NDArray forward(const NDArray& x, const Context& context) override {
    const Shape shape{x.size(1)};
    const NDArray gamma = parameter("gamma", shape, constant(1), context, x.dtype()).value;
    const NDArray beta = parameter("beta", shape, constant(0), context, x.dtype()).value;
    bool frozen = false;
    const auto running = [&](const char* name, double start) {
      const Parameter& own = statistic(name, shape, start, context, x.dtype());
      frozen |= own.frozen;
      return context.recomputing ? own.value.clone() : own.value;
    };
    const NDArray mean = running("running_mean", 0), variance = running("running_var", 1);
    const bool training = context.training && !frozen;
    // No error: the last batch of an epoch, or what a lost worker left, may be one example.
    if (training && x.size(1) > 0 && x.size() == x.size(1) && !std::exchange(warned_, true))
      LOG(WARNING) << "[BatchNorm] got one value per channel in training, in the shape " << x.shape()
                   << ": its result does not depend on its input; use batches of more examples";
    return batch_norm(x, gamma, beta, mean, variance,
                      {.momentum = options_.momentum, .epsilon = options_.epsilon, .training = training});
  }
  std::string kind() const override { return "BatchNorm"; }

 private:
  BatchNormOptions options_;
  bool warned_ = false;
};

class DropoutLayer final : public Layer {
 public:
  explicit DropoutLayer(double rate) : rate_(rate) {
    require(rate >= 0 && rate < 1, "[Dropout] the rate is ", rate, ", expected 0 <= rate < 1");
  }
  NDArray forward(const NDArray& x, const Context& context) override {
    return context.training && rate_ > 0 ? dropout(x, rate_, context.seed, call(x, context)) : x;
  }
  std::string kind() const override { return "Dropout"; }

 private:
  static NDArray call(const NDArray& x, const Context& context) {
    return context.call.is_none() ? context.call : context.call.to(x.device());
  }

  double rate_;
};

class EmbeddingLayer final : public Layer {
 public:
  EmbeddingLayer(std::int64_t rows, std::int64_t width, const EmbeddingOptions& options)
      : rows_(rows), width_(width), options_(options) {
    require(!options.sparse_grad || options.dtype == DType::kFloat32,
            "[Embedding] a table of sparse_grad is float32, not ", name_of(options.dtype));
  }
  NDArray forward(const NDArray& x, const Context& context) override {
    const NDArray numbers = x.dtype() == DType::kInt32 || x.dtype() == DType::kInt64 ? x : x.cast(DType::kInt32);
    if (!options_.sparse_grad)
      return embedding(numbers, parameter("weight", {rows_, width_}, options_.weight, context, options_.dtype).value);
    const Parameter& weight = table("weight", {rows_, width_}, options_.weight, context);
    // A frozen table is no table of the store.
    return context.rows && !weight.frozen ? rows_from(*context.rows, weight, numbers)
                                          : embedding(numbers, weight.value, true);
  }
  std::string kind() const override { return "Embedding"; }

 private:
  std::int64_t rows_, width_;
  EmbeddingOptions options_;
};

class FunctionLayer : public Layer {
 public:
  FunctionLayer(std::string kind, std::function<NDArray(const NDArray&)> function)
      : kind_(std::move(kind)), function_(std::move(function)) {}
  NDArray forward(const NDArray& x, const Context&) override { return function_(x); }
  std::string kind() const override { return kind_; }

 private:
  std::string kind_;
  std::function<NDArray(const NDArray&)> function_;
};

// Place by place, so that parts are as good as the whole.
class ElementwiseLayer final : public FunctionLayer {
 public:
  using FunctionLayer::FunctionLayer;
  Parts forward_parts(const Parts& x, const Context& context) override {
    Parts results;
    for (const NDArray& part : x) results.push_back(forward(part, context));
    return results;
  }
};

Module function(const std::string& kind, std::function<NDArray(const NDArray&)> body) {
  return Module(std::make_shared<FunctionLayer>(kind, std::move(body)));
}

Module elementwise(const std::string& kind, std::function<NDArray(const NDArray&)> body) {
  return Module(std::make_shared<ElementwiseLayer>(kind, std::move(body)));
}

PoolAttributes window(const NDArray& x, std::int64_t kernel, std::int64_t stride, std::int64_t padding) {
  return {.kernel = for_each_axis(x, kernel),
          .stride = for_each_axis(x, stride == 0 ? kernel : stride),
          .padding = for_each_axis(x, padding)};
}

}  // namespace

Sequential::Sequential(std::initializer_list<Module> modules) : Module(std::make_shared<SequentialLayer>(modules)) {}
Sequential::Sequential(const std::vector<Module>& modules) : Module(std::make_shared<SequentialLayer>(modules)) {}
Residual::Residual(const Module& body) : Module(std::make_shared<ResidualLayer>(body, nullptr)) {}
Residual::Residual(const Module& body, const Module& shortcut)
    : Module(std::make_shared<ResidualLayer>(body, &shortcut)) {}
Dense::Dense(std::int64_t outputs, const DenseOptions& options)
    : Module(std::make_shared<DenseLayer>(outputs, options)) {}
Conv1d::Conv1d(std::int64_t channels, std::int64_t kernel, const ConvOptions& options)
    : Module(std::make_shared<ConvolutionLayer>("Conv1d", 1, channels, kernel, options)) {}
Conv2d::Conv2d(std::int64_t channels, std::int64_t kernel, const ConvOptions& options)
    : Module(std::make_shared<ConvolutionLayer>("Conv2d", 2, channels, kernel, options)) {}
Conv3d::Conv3d(std::int64_t channels, std::int64_t kernel, const ConvOptions& options)
    : Module(std::make_shared<ConvolutionLayer>("Conv3d", 3, channels, kernel, options)) {}
TransposedConv::TransposedConv(std::int64_t channels, std::int64_t kernel, const ConvOptions& options,
                               std::int64_t output_padding)
    : Module(std::make_shared<TransposedConvLayer>(channels, kernel, options, output_padding)) {}
MaxPool::MaxPool(std::int64_t kernel, std::int64_t stride, std::int64_t padding)
    : Module(function("MaxPool", [=](const NDArray& x) { return max_pool(x, window(x, kernel, stride, padding)); })) {}
AveragePool::AveragePool(std::int64_t kernel, std::int64_t stride, std::int64_t padding)
    : Module(function("AveragePool",
                      [=](const NDArray& x) { return average_pool(x, window(x, kernel, stride, padding)); })) {}
GlobalAveragePool::GlobalAveragePool()
    : Module(function("GlobalAveragePool", [](const NDArray& x) { return global_average_pool(x); })) {}
BatchNorm::BatchNorm(const BatchNormOptions& options) : Module(std::make_shared<BatchNormLayer>(options)) {}
Dropout::Dropout(double rate) : Module(std::make_shared<DropoutLayer>(rate)) {}
Embedding::Embedding(std::int64_t rows, std::int64_t width, const EmbeddingOptions& options)
    : Module(std::make_shared<EmbeddingLayer>(rows, width, options)) {}
Flatten::Flatten() : Module(function("Flatten", [](const NDArray& x) { return flatten(x); })) {}
Relu::Relu() : Module(elementwise("Relu", [](const NDArray& x) { return relu(x); })) {}
Tanh::Tanh() : Module(elementwise("Tanh", [](const NDArray& x) { return paceline::tanh(x); })) {}
Sigmoid::Sigmoid() : Module(elementwise("Sigmoid", [](const NDArray& x) { return sigmoid(x); })) {}
Gelu::Gelu() : Module(elementwise("Gelu", [](const NDArray& x) { return gelu(x); })) {}
Lambda::Lambda(const std::string& kind, std::function<NDArray(const NDArray&)> body)
    : Module(function(kind, std::move(body))) {}

}  // namespace paceline::nn
