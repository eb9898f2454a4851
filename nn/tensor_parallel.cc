#include <paceline/ops.h>
#include <paceline/parallel.h>

namespace paceline::nn {
namespace {

// A Dense whose weight is cut into one part for each device. The whole weight stays on the host, where the store and
// files have it: a place is that of inputs and results.
class ParallelDenseLayer : public Layer {
 public:
  ParallelDenseLayer(std::string kind, std::int64_t outputs, const std::vector<Device>& devices,
                     const DenseOptions& options)
      : kind_(std::move(kind)), outputs_(outputs), devices_(devices), options_(options) {
    require(outputs > 0, "[", kind_, "] has ", outputs, " outputs, expected at least 1");
    require(!devices.empty(), "[", kind_, "] has no devices");
  }
  NDArray forward(const NDArray& x, const Context& context) override { return (*this)(x, context); }
  void place(Device device) override { device_ = device; }
  std::string kind() const override {
    std::string names;
    for (const Device& device : devices_) names += (names.empty() ? "" : " ") + device.name();
    return kind_ + " over " + names;
  }

 protected:
  // As Dense has them; bias is none where there is none.
  std::pair<NDArray, NDArray> weights(std::int64_t inputs, DType dtype, const Context& context) {
    Context host = context;
    host.device = Device();
    const NDArray by = weight("weight", {outputs_, inputs}, options_.weight, host, dtype);
    return {by, options_.bias ? weight("bias", {outputs_}, constant(0), host, dtype) : NDArray()};
  }
  // (examples, inputs) where the layer flattens.
  NDArray rows(const NDArray& x) const {
    require(x.ndim() >= 2, "[", kind_, "] the input has shape ", x.shape(), ", expected (examples, ...)");
    return options_.flatten ? flatten(x) : x;
  }
  void check_size(const char* what, std::int64_t size) const {
    require(size >= static_cast<std::int64_t>(devices_.size()), "[", kind_, "] has ", size, " ", what, " for ",
            devices_.size(), " devices, expected at least one for each");
  }

  const std::string kind_;
  const std::int64_t outputs_;
  const std::vector<Device> devices_;
  const DenseOptions options_;
};

class ColumnParallelLayer final : public ParallelDenseLayer {
 public:
  ColumnParallelLayer(std::int64_t outputs, const std::vector<Device>& devices, const DenseOptions& options,
                      bool gather_output)
      : ParallelDenseLayer("ColumnParallelDense", outputs, devices, options), gather_output_(gather_output) {
    check_size("outputs", outputs);
  }
  Parts forward_parts(const Parts& x, const Context& context) override {
    require(x.size() == 1, "[", kind_, "] got its input in ", x.size(),
            " parts and needs it whole; let the layer before it gather it");
    const NDArray input = in_compute_type(rows(x[0]), context);
    const auto [weight, bias] = weights(input.size(-1), x[0].dtype(), context);
    const Parts weight_parts = scatter(weight, 0, devices_);
    const Parts bias_parts = bias.is_none() ? Parts(devices_.size()) : scatter(bias, 0, devices_);
    Parts outputs;
    for (std::size_t i = 0; i < devices_.size(); ++i)
      outputs.push_back(
          dense(to_device(input, devices_[i]), weight_parts[i], bias_parts[i], false, options_.activation));
    if (!gather_output_) return outputs;
    for (NDArray& output : outputs) output = to_device(output, context.device);
    return {concat(outputs, -1)};
  }

 private:
  const bool gather_output_;
};

class RowParallelLayer final : public ParallelDenseLayer {
 public:
  RowParallelLayer(std::int64_t outputs, const std::vector<Device>& devices, const DenseOptions& options)
      : ParallelDenseLayer("RowParallelDense", outputs, devices, options) {}
  Parts forward_parts(const Parts& x, const Context& context) override {
    Parts inputs = x;
    if (x.size() == 1) {
      const NDArray input = rows(x[0]);
      check_size("inputs", input.size(-1));
      inputs = scatter(input, input.ndim() - 1, devices_);
    }
    require(inputs.size() == devices_.size(), "[", kind_, "] got its input in ", inputs.size(), " parts for ",
            devices_.size(), " devices");
    std::int64_t width = 0;
    for (NDArray& input : inputs) {
      input = in_compute_type(input, context);
      require(input.ndim() == 2 || !options_.flatten, "[", kind_, "] the input has parts of shape ", input.shape(),
              ", which cannot be flattened; set flatten = false");
      width += input.size(-1);
    }
    const auto [weight, bias] = weights(width, x[0].dtype(), context);
    const Parts weight_parts = scatter(weight, 1, devices_);
    NDArray sum;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      const NDArray part = dense(to_device(inputs[i], devices_[i]), weight_parts[i], {}, false);
      const NDArray here = to_device(part, context.device);
      sum = i == 0 ? here : sum + here;
    }
    const NDArray result = bias.is_none() ? sum : sum + to_device(bias, context.device);
    if (options_.activation == Activation::kNone) return {result};
    return {options_.activation == Activation::kRelu ? relu(result) : gelu_tanh(result)};
  }
};

}  // namespace

ColumnParallelDense::ColumnParallelDense(std::int64_t outputs, const std::vector<Device>& devices,
                                         const DenseOptions& options, bool gather_output)
    : Module(std::make_shared<ColumnParallelLayer>(outputs, devices, options, gather_output)) {}
RowParallelDense::RowParallelDense(std::int64_t outputs, const std::vector<Device>& devices,
                                   const DenseOptions& options)
    : Module(std::make_shared<RowParallelLayer>(outputs, devices, options)) {}

}  // namespace paceline::nn
