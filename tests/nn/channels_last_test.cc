// Arrays whose channels are last in memory: the same numbers, and what CUDA kernels make of them lies so, too.
#include <paceline/autograd.h>
#include <paceline/nn.h>
#include <paceline/ops.h>
#include <support/operator_case.h>
#include <support/tolerance.h>

#include <gtest/gtest.h>

#include <functional>

namespace paceline::test {
namespace {

NDArray normal(const Shape& shape, std::uint64_t seed, DType dtype, Device device) {
  const NDArray numbers(shape);
  kernels::fill_normal(numbers, 0.5, 1, seed);
  return numbers.cast(dtype).to(device);
}

bool lies_last(const NDArray& x) {
  std::vector<int> order{0};
  for (int i = 2; i < x.ndim(); ++i) order.push_back(i);
  order.push_back(1);
  return !x.is_contiguous() && x.permute(order).is_contiguous();
}

struct Layer {
  const char* name;
  std::vector<Shape> inputs;  // the images, then what else is differentiated
  std::function<NDArray(const std::vector<NDArray>&)> run;
  bool wide = false;  // arrays of one axis are float32 beside halves
};

NDArray norm(const std::vector<NDArray>& in, bool training) {
  const Shape channels = in[1].shape();
  const NDArray mean = NDArray::full(channels, 0.25, in[1].dtype(), in[0].device());
  const NDArray variance = NDArray::full(channels, 2, in[1].dtype(), in[0].device());
  const NDArray y = batch_norm(in[0], in[1], in[2], mean, variance, {.training = training});
  return y + mean.view({1, channels[0], 1, 1}).cast(y.dtype()) * variance.view({1, channels[0], 1, 1}).cast(y.dtype());
}

const std::vector<Layer> kLayers{
    {"convolution",
     {{2, 5, 7, 6}, {8, 5, 3, 3}, {8}},
     [](const auto& in) {
       return convolution(in[0], in[1], in[2], {.stride = {2, 1}, .padding = {1, 0}});
     }},
    {"groups, dilation",
     {{2, 6, 9, 8}, {4, 3, 3, 2}, {4}},
     [](const auto& in) {
       return convolution(in[0], in[1], in[2], {.dilation = {2, 3}, .groups = 2});
     }},
    {"depthwise",
     {{3, 8, 5, 5}, {8, 1, 3, 3}},
     [](const auto& in) {
       return convolution(in[0], in[1], NDArray(), {.padding = {1, 1}, .groups = 8});
     }},
    {"one channel", {{2, 1, 5, 5}, {4, 1, 3, 3}}, [](const auto& in) { return convolution(in[0], in[1], NDArray()); }},
    {"pointwise", {{2, 16, 3, 3}, {8, 16, 1, 1}}, [](const auto& in) { return convolution(in[0], in[1], NDArray()); }},
    {"line", {{2, 4, 9}, {3, 4, 3}, {3}}, [](const auto& in) { return convolution(in[0], in[1], in[2]); }},
    {"volume", {{1, 3, 4, 5, 4}, {2, 3, 2, 3, 2}}, [](const auto& in) { return convolution(in[0], in[1], NDArray()); }},
    {"transposed",
     {{2, 4, 3, 4}, {4, 3, 3, 3}, {3}},
     [](const auto& in) {
       return transposed_convolution(in[0], in[1], in[2], {{.stride = {2, 2}}, {1, 0}});
     }},
    {"max_pool",
     {{2, 5, 7, 7}},
     [](const auto& in) {
       return max_pool(in[0], {.kernel = {3, 3}, .stride = {2, 2}, .padding = {1, 1}});
     }},
    {"average_pool",
     {{2, 8, 6, 7}},
     [](const auto& in) {
       return average_pool(in[0], {.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 0}});
     }},
    {"global_average_pool", {{3, 8, 5, 4}}, [](const auto& in) { return global_average_pool(in[0]); }},
    {"batch_norm", {{4, 8, 9, 11}, {8}, {8}}, [](const auto& in) { return norm(in, true); }, true},
    {"batch_norm of odd channels", {{3, 5, 3, 3}, {5}, {5}}, [](const auto& in) { return norm(in, true); }, true},
    {"batch_norm of many channels",
     {{2, 300, 9, 9}, {300}, {300}},
     [](const auto& in) { return norm(in, true); },
     true},
    {"batch_norm as learned", {{2, 8, 3, 3}, {8}, {8}}, [](const auto& in) { return norm(in, false); }, true},
    {"block",
     {{2, 8, 6, 6}, {8, 8, 3, 3}, {8}, {8}},
     [](const auto& in) {
       const NDArray made = convolution(in[0], in[1], NDArray(), {.padding = {1, 1}});
       return relu(norm({made, in[2], in[3]}, true) + in[0]);
     },
     true}};

struct Result {
  NDArray y;
  std::vector<NDArray> gradients;
};

Result run(const Layer& layer, DType dtype, Device device, bool last) {
  std::vector<NDArray> inputs;
  Result result;
  for (std::size_t i = 0; i < layer.inputs.size(); ++i) {
    const bool wide = layer.wide && layer.inputs[i].ndim() == 1 && size_of(dtype) < 4;
    inputs.push_back(normal(layer.inputs[i], i + 1, wide ? DType::kFloat32 : dtype, device));
    if (i == 0 && last) inputs[0] = channels_last(inputs[0]);
    result.gradients.push_back(NDArray(inputs[i].shape(), inputs[i].dtype(), device));
  }
  Tape tape;
  for (std::size_t i = 0; i < inputs.size(); ++i) tape.watch(inputs[i], result.gradients[i]);
  result.y = layer.run(inputs);
  NDArray weights = normal(result.y.shape(), 9, dtype, device);
  tape.backward(sum(result.y * (last && weights.ndim() > 2 ? channels_last(weights) : weights)));
  return result;
}

TEST(ChannelsLast, GiveTheNumbersOfTheOtherOrder) {
  std::vector<Device> devices{Device()};
  if (device_count(DeviceKind::kCuda) > 0) devices.emplace_back("cuda:0");
  for (const Device device : devices) {
    for (const DType dtype : {DType::kFloat64, DType::kFloat32, DType::kBfloat16}) {
      for (const Layer& layer : kLayers) {
        SCOPED_TRACE(str(layer.name, " on ", device.name(), ", ", name_of(dtype)));
        const Result there = run(layer, dtype, device, true), here = run(layer, dtype, Device(), false);
        const double near = 16 * tolerance_of(dtype);
        EXPECT_TRUE(all_near(there.y.to(Device()).to_vector<double>(), here.y.to_vector<double>(), near));
        for (std::size_t i = 0; i < here.gradients.size(); ++i)
          EXPECT_TRUE(all_near(there.gradients[i].to(Device()).to_vector<double>(),
                               here.gradients[i].to_vector<double>(), near))
              << "gradient " << i;
      }
    }
  }
}

TEST(ChannelsLast, StayLastFromKernelToKernelOnCuda) {
  if (device_count(DeviceKind::kCuda) == 0) GTEST_SKIP() << "no CUDA device here";
  for (const Layer& layer : kLayers) {
    const NDArray y = run(layer, DType::kBfloat16, Device("cuda:0"), true).y;
    // One channel, or one place, lies either way.
    bool either = layer.inputs[0][1] == 1;
    if (y.ndim() > 2 && y.shape().size() == y.size(0) * y.size(1)) either = true;
    EXPECT_TRUE(lies_last(y) || either) << layer.name << " made strides " << y.strides();
  }
  const NDArray x = channels_last(normal({2, 3, 4, 5}, 1, DType::kFloat32, Device("cuda:0")));
  EXPECT_TRUE(lies_last(cast(x, DType::kBfloat16)));
  EXPECT_TRUE(channels_last(x).shares_memory_with(x));
}

// Else each operator before would copy what it is given.
TEST(ChannelsLast, AGradientLiesAsItsValue) {
  std::vector<Device> devices{Device()};
  if (device_count(DeviceKind::kCuda) > 0) devices.emplace_back("cuda:0");
  const auto gradient_of = [](const NDArray& x, const NDArray& gradient, const auto& run) {
    Tape tape;
    tape.watch_sparse(x);
    tape.backward(run(x), gradient);
    return tape.sparse_gradient(x).dense;
  };
  for (const Device device : devices) {
    SCOPED_TRACE(device.name());
    const NDArray rows = normal({2, 3, 4, 5}, 1, DType::kFloat32, device), x = channels_last(rows);
    EXPECT_TRUE(lies_last(gradient_of(x, x, [](const NDArray& y) { return relu(y) + square(y); })));
    EXPECT_TRUE(gradient_of(rows, rows, [](const NDArray& y) { return relu(y) + square(y); }).is_contiguous());
    if (device.is_cpu()) continue;
    EXPECT_TRUE(lies_last(gradient_of(x, rows, [](const NDArray& y) { return relu(y); })));
    // The gradient of one place for each channel lies either way.
    const NDArray weight = normal({3, 3, 3, 3}, 2, DType::kFloat32, device);
    const NDArray means = global_average_pool(x);
    EXPECT_TRUE(lies_last(gradient_of(x, means, [&](const NDArray& y) {
      return global_average_pool(relu(convolution(y, weight, NDArray(), {.padding = {1, 1}}) + y));
    })));
  }
}

TEST(ChannelsLast, AnEmptyBatchLeavesStatisticsAlone) {
  std::vector<Device> devices{Device()};
  if (device_count(DeviceKind::kCuda) > 0) devices.emplace_back("cuda:0");
  for (const Device device : devices) {
    const NDArray x = channels_last(normal({2, 4, 3, 3}, 1, DType::kFloat32, device)).narrow(0, 0, 0);
    const NDArray one = NDArray::full({4}, 1, DType::kFloat32, device);
    const NDArray mean = one * 3, variance = one * 2;
    EXPECT_EQ(batch_norm(x, one, one, mean, variance, {.training = true}).shape(), x.shape());
    EXPECT_EQ(mean.to(Device()).to_vector<float>(), std::vector<float>(4, 3)) << device.name();
    EXPECT_EQ(variance.to(Device()).to_vector<float>(), std::vector<float>(4, 2)) << device.name();
  }
}

TEST(ChannelsLast, OtherOrdersBecomeRowMajor) {
  const NDArray x = normal({2, 3, 4}, 1, DType::kFloat32, Device()).permute({0, 2, 1});
  EXPECT_TRUE(cast(x, DType::kFloat64).is_contiguous());
  EXPECT_TRUE((x + normal({3}, 2, DType::kFloat32, Device())).is_contiguous());
}

// A network in float32 and in bfloat16, eager and captured: the weights after two steps.
TEST(ChannelsLast, TrainAsOtherwise) {
  const Device device = device_count(DeviceKind::kCuda) > 0 ? Device("cuda:0") : Device();
  Batch batch;
  batch.data = normal({4, 3, 8, 8}, 1, DType::kFloat32, Device());
  batch.label = NDArray::from(std::vector<std::int32_t>{0, 1, 2, 1}, {4});
  batch.examples = 4;
  const auto weights_after = [&](bool last, bool captured, DType precision) {
    nn::Trainer trainer(
        nn::Sequential(nn::Conv2d(8, 3, {.padding = 1, .bias = false}), nn::BatchNorm(), nn::Relu(),
                       nn::Residual(nn::Sequential(nn::Conv2d(8, 3, {.padding = 1}), nn::BatchNorm(), nn::Relu())),
                       nn::MaxPool(2), nn::GlobalAveragePool(), nn::Dense(3)),
        optim::SGD{.lr = 0.05, .momentum = 0.9}, KVStore::create("local"),
        {.device = device, .precision = precision, .channels_last = last, .captured = captured});
    for (int step = 0; step < 2; ++step) trainer.step(batch, nn::softmax_ce);
    std::vector<double> all;
    for (const auto& parameter : trainer.net().parameters()) {
      const std::vector<double> values = parameter->value.to(Device()).to_vector<double>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  for (const DType precision : {DType::kFloat32, DType::kBfloat16}) {
    const std::vector<double> expected = weights_after(false, false, precision);
    for (const bool captured : {false, true})
      EXPECT_TRUE(all_near(weights_after(true, captured, precision), expected, 4 * tolerance_of(precision)))
          << name_of(precision) << (captured ? ", captured" : "");
  }
}

}  // namespace
}  // namespace paceline::test
