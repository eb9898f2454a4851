#include <paceline/layers.h>
#include <paceline/models.h>
#include <paceline/ops.h>

#include <array>

namespace paceline::nn::models {
namespace {

// Modules collected one by one.
class Chain {
 public:
  Chain& operator<<(const Module& module) {
    modules_.push_back(module);
    return *this;
  }
  operator Module() const { return Sequential(modules_); }

 private:
  std::vector<Module> modules_;
};

// A convolution that keeps the size (but for the stride), without the bias that the batch norm behind it has.
Module convolution(std::int64_t channels, std::int64_t kernel, std::int64_t stride = 1, std::int64_t groups = 1) {
  return Conv2d(channels, kernel,
                {.stride = stride, .padding = kernel / 2, .groups = groups, .bias = false, .weight = he_normal()});
}

Chain normalised(std::int64_t channels, std::int64_t kernel, std::int64_t stride = 1, std::int64_t groups = 1) {
  return Chain() << convolution(channels, kernel, stride, groups) << BatchNorm();
}

Module relu6() {
  return Lambda("Relu6", [](const NDArray& x) { return clip(x, 0, 6); });
}

// Every `stride`th place; channels that come new are zeros.
Module subsample(std::int64_t channels, std::int64_t stride) {
  return Lambda("Subsample", [=](const NDArray& x) {
    const NDArray places = average_pool(x, {.kernel = {1, 1}, .stride = {stride, stride}});
    return pad(places, {{0, 0}, {0, channels - x.size(1)}, {0, 0}, {0, 0}});
  });
}

Module basic_block(std::int64_t channels, std::int64_t stride) {
  const Module body = normalised(channels, 3, stride) << Relu() << convolution(channels, 3) << BatchNorm();
  return Sequential(stride == 1 ? Residual(body) : Residual(body, subsample(channels, stride)), Relu());
}

Module bottleneck(std::int64_t width, std::int64_t stride, bool first) {
  const Module body = normalised(width, 1) << Relu() << convolution(width, 3, stride) << BatchNorm() << Relu()
                                           << convolution(4 * width, 1) << BatchNorm();
  return Sequential(first ? Residual(body, normalised(4 * width, 1, stride)) : Residual(body), Relu());
}

Module inverted_residual(std::int64_t inputs, std::int64_t outputs, std::int64_t stride, std::int64_t expansion) {
  Chain body;
  const std::int64_t width = inputs * expansion;
  if (expansion > 1) body << convolution(width, 1) << BatchNorm() << relu6();
  body << convolution(width, 3, stride, width) << BatchNorm() << relu6() << convolution(outputs, 1) << BatchNorm();
  return stride == 1 && inputs == outputs ? Residual(body) : Module(body);
}

}  // namespace

Module mlp(std::int64_t classes) {
  return Sequential(Flatten(), Dense(512), Relu(), Dense(512), Relu(), Dense(classes));
}

Module lenet(std::int64_t classes) {
  return Sequential(Conv2d(6, 5, {.padding = 2}), Tanh(), MaxPool(2), Conv2d(16, 5), Tanh(), MaxPool(2), Flatten(),
                    Dense(120), Tanh(), Dense(84), Tanh(), Dense(classes));
}

Module resnet20(std::int64_t classes) {
  Chain net = normalised(16, 3) << Relu();
  for (const std::int64_t channels : {16, 32, 64})
    for (int block = 0; block < 3; ++block) net << basic_block(channels, channels > 16 && block == 0 ? 2 : 1);
  return net << GlobalAveragePool() << Dense(classes);
}

Module resnet50(std::int64_t classes) {
  constexpr std::array<int, 4> kBlocks{3, 4, 6, 3};
  Chain net = normalised(64, 7, 2) << Relu() << MaxPool(3, 2, 1);
  std::int64_t width = 64;
  for (const int blocks : kBlocks) {
    for (int block = 0; block < blocks; ++block) net << bottleneck(width, width > 64 && block == 0 ? 2 : 1, block == 0);
    width *= 2;
  }
  return net << GlobalAveragePool() << Dense(classes);
}

Module vgg16(std::int64_t classes) {
  constexpr struct {
    std::int64_t channels;
    int layers;
  } kStages[] = {{64, 2}, {128, 2}, {256, 3}, {512, 3}, {512, 3}};
  Chain net;
  for (const auto& [channels, layers] : kStages) {
    for (int i = 0; i < layers; ++i) net << Conv2d(channels, 3, {.padding = 1, .weight = he_normal()}) << Relu();
    net << MaxPool(2);
  }
  const DenseOptions hidden{.weight = he_normal()};
  return net << Dense(4096, hidden) << Relu() << Dropout(0.5) << Dense(4096, hidden) << Relu() << Dropout(0.5)
             << Dense(classes);
}

Module mobilenet_v2(std::int64_t classes) {
  constexpr struct {
    std::int64_t expansion, channels;
    int blocks;
    std::int64_t stride;
  } kStages[] = {{1, 16, 1, 1}, {6, 24, 2, 2},  {6, 32, 3, 2}, {6, 64, 4, 2},
                 {6, 96, 3, 1}, {6, 160, 3, 2}, {6, 320, 1, 1}};
  Chain net = normalised(32, 3, 2) << relu6();
  std::int64_t inputs = 32;
  for (const auto& [expansion, channels, blocks, stride] : kStages) {
    for (int block = 0; block < blocks; ++block) {
      net << inverted_residual(inputs, channels, block == 0 ? stride : 1, expansion);
      inputs = channels;
    }
  }
  return net << convolution(1280, 1) << BatchNorm() << relu6() << GlobalAveragePool() << Dropout(0.2) << Dense(classes);
}

Module causal_transformer(const LanguageModel& how) {
  const DenseOptions last{.flatten = false, .weight = xavier_uniform()};
  std::vector<Module> net{Embedding(how.symbols, how.width, {normal(0.02), how.sparse_grad}),
                          PositionalEmbedding(normal(0.02))};
  for (int i = 0; i < how.layers; ++i) {
    net.push_back(Residual(Sequential(LayerNorm(), SelfAttention(how.heads, {.causal = true}), Dropout(how.dropout))));
    net.push_back(Residual(
        Sequential(LayerNorm(), Dense(4 * how.width, last), Relu(), Dense(how.width, last), Dropout(how.dropout))));
  }
  net.push_back(LayerNorm());
  net.push_back(Dense(how.symbols, {.flatten = false}));
  return Sequential(net);
}

Module lstm_language_model(const LanguageModel& how) {
  // Recurrent layers have the steps first.
  const Module turn = Lambda("Turn", [](const NDArray& x) { return transpose(x, {1, 0, 2}); });
  return Sequential(Embedding(how.symbols, how.width, {normal(0.1), how.sparse_grad}), turn,
                    Lstm(how.width, {.layers = how.layers}), turn, Dropout(how.dropout),
                    Dense(how.symbols, {.flatten = false}));
}

const Catalog<Module (*)(std::int64_t)>& catalog() {
  static const Catalog<Module (*)(std::int64_t)> models("network", {{"mlp", mlp},
                                                                    {"lenet", lenet},
                                                                    {"resnet20", resnet20},
                                                                    {"resnet50", resnet50},
                                                                    {"vgg16", vgg16},
                                                                    {"mobilenet_v2", mobilenet_v2}});
  return models;
}

}  // namespace paceline::nn::models
