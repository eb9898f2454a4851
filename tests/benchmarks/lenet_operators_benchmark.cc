// LeNet-5 (61,706 parameters) on MNIST-sized images, batch 64, from operators alone: one training step without
// autograd, store or data, and each operator by itself, forward and backward. PACELINE_NUM_THREADS limits the team.
#include <paceline/cores.h>
#include <paceline/ops.h>

#include <support/every_call.h>

#include <benchmark/benchmark.h>

#include <algorithm>

namespace paceline {
namespace {

constexpr std::int64_t kBatch = 64;

// The calls of a chain of operators, in order.
using Chain = test::EveryCall;

NDArray normal(const Shape& shape, double deviation, std::uint64_t seed) {
  NDArray x(shape);
  kernels::fill_normal(x, 0, deviation, seed);
  return x;
}

struct LeNet {
  std::vector<NDArray> weights{
      normal({6, 1, 5, 5}, 0.2, 1), NDArray::zeros({6}),   normal({16, 6, 5, 5}, 0.08, 2), NDArray::zeros({16}),
      normal({120, 400}, 0.05, 3),  NDArray::zeros({120}), normal({84, 120}, 0.09, 4),     NDArray::zeros({84}),
      normal({10, 84}, 0.1, 5),     NDArray::zeros({10})};

  NDArray loss(const NDArray& x, const NDArray& labels) const {
    const auto& w = weights;
    NDArray h = max_pool(tanh(convolution(x, w[0], w[1], {.padding = {2, 2}})), {.kernel = {2, 2}});
    h = flatten(max_pool(tanh(convolution(h, w[2], w[3])), {.kernel = {2, 2}}));
    h = tanh(dense(h, w[4], w[5]));
    h = tanh(dense(h, w[6], w[7]));
    return softmax_cross_entropy(dense(h, w[8], w[9]), labels);
  }

  // The gradients of the weights in the order of `weights`.
  static std::vector<NDArray> backward(Chain& chain) {
    std::vector<NDArray> found;
    NDArray gradient = NDArray::full({}, 1);
    chain.calls.front().wants = {false, true, true};
    for (auto call = chain.calls.rbegin(); call != chain.calls.rend(); ++call) {
      // flatten() gives a view, and is no call.
      for (const NDArray& output : call->outputs)
        if (output.size() == gradient.size()) gradient = reshape(gradient, output.shape());
      const std::vector<Gradient> all = call->op->gradient_rule()(*call, {gradient});
      gradient = all[0].dense;
      for (std::size_t i = all.size(); i-- > 1;)
        if (!all[i].is_none()) found.push_back(all[i].dense);
    }
    std::reverse(found.begin(), found.end());
    return found;
  }
};

NDArray labels_of(std::int64_t count) {
  std::vector<std::int32_t> labels;
  for (std::int64_t i = 0; i < count; ++i) labels.push_back(static_cast<std::int32_t>(i * 7 % 10));
  return NDArray::from(labels, {count});
}

void count_images(benchmark::State& state) {
  state.counters["images/s"] =
      benchmark::Counter(static_cast<double>(state.iterations() * kBatch), benchmark::Counter::kIsRate);
}

void lenet_training_step(benchmark::State& state) {
  const LeNet net;
  const NDArray images = normal({kBatch, 1, 28, 28}, 1, 9);
  const NDArray labels = labels_of(kBatch);
  for (auto _ : state) {
    Chain chain;
    {
      RecordingScope recording(&chain);
      net.loss(images, labels);
    }
    const std::vector<NDArray> gradients = LeNet::backward(chain);
    for (std::size_t i = 0; i < gradients.size(); ++i) kernels::axpy(-0.01, gradients[i], net.weights[i]);
    net.weights[0].wait();
  }
  count_images(state);
}
BENCHMARK(lenet_training_step)->MeasureProcessCPUTime()->UseRealTime();

void lenet_inference(benchmark::State& state) {
  const LeNet net;
  const NDArray images = normal({kBatch, 1, 28, 28}, 1, 9);
  const NDArray labels = labels_of(kBatch);
  for (auto _ : state) net.loss(images, labels).wait();
  count_images(state);
}
BENCHMARK(lenet_inference)->MeasureProcessCPUTime()->UseRealTime();

// One operator: forward, or the gradient rule of a recorded call.
void operator_benchmark(benchmark::State& state, NDArray (*call)(const std::vector<NDArray>&),
                        const std::vector<Shape>& shapes, bool backward, const std::vector<bool>& wants) {
  std::vector<NDArray> inputs;
  for (const Shape& shape : shapes) inputs.push_back(normal(shape, 1, 7));
  Chain chain;
  NDArray y;
  {
    RecordingScope recording(&chain);
    y = call(inputs);
  }
  chain.calls.front().wants = wants;
  const NDArray gradient = normal(y.shape(), 1, 8);
  gradient.wait();
  y.wait();
  for (auto _ : state) {
    if (!backward) {
      call(inputs).wait();
      continue;
    }
    const OpCall& recorded = chain.calls.front();
    for (const Gradient& result : recorded.op->gradient_rule()(recorded, {gradient}))
      if (!result.is_none()) result.dense.wait();
  }
}

void add(const std::string& name, NDArray (*call)(const std::vector<NDArray>&), const std::vector<Shape>& shapes,
         const std::vector<bool>& wants = {}) {
  for (const bool backward : {false, true})
    benchmark::RegisterBenchmark((name + (backward ? "/backward" : "/forward")).c_str(), operator_benchmark, call,
                                 shapes, backward, wants)
        ->MeasureProcessCPUTime()
        ->UseRealTime();
}

using Inputs = std::vector<NDArray>;

void register_operators() {
  add("conv2d_1_to_6",
      [](const Inputs& x) {
        return convolution(x[0], x[1], x[2], {.padding = {2, 2}});
      },
      {{kBatch, 1, 28, 28}, {6, 1, 5, 5}, {6}}, {false, true, true});
  add("conv2d_6_to_16", [](const Inputs& x) { return convolution(x[0], x[1], x[2]); },
      {{kBatch, 6, 14, 14}, {16, 6, 5, 5}, {16}});
  add("tanh_301056", [](const Inputs& x) { return tanh(x[0]); }, {{kBatch, 6, 28, 28}});
  add("max_pool2d_301056", [](const Inputs& x) { return max_pool(x[0], {.kernel = {2, 2}}); }, {{kBatch, 6, 28, 28}});
  add("dense_400_to_120", [](const Inputs& x) { return dense(x[0], x[1], x[2]); }, {{kBatch, 400}, {120, 400}, {120}});
  add("dense_84_to_10", [](const Inputs& x) { return dense(x[0], x[1], x[2]); }, {{kBatch, 84}, {10, 84}, {10}});
  add("softmax_cross_entropy", [](const Inputs& x) { return softmax_cross_entropy(x[0], labels_of(kBatch)); },
      {{kBatch, 10}});
  add("batch_norm_2097152", [](const Inputs& x) { return batch_norm(x[0], x[1], x[2], x[3], x[4]); },
      {{128, 16, 32, 32}, {16}, {16}, {16}, {16}});
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  paceline::use_passive_waiting(argv);
  benchmark::Initialize(&argc, argv);
  paceline::register_operators();
  benchmark::RunSpecifiedBenchmarks();
}
