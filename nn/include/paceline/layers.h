#pragma once
// The layers. Each is a Module; sizes of inputs are inferred at the first call.

#include <paceline/module.h>
#include <paceline/ops/dense.h>

#include <initializer_list>

namespace paceline::nn {

// One after the other; children are named "0", "1", ...
struct Sequential : Module {
  Sequential(std::initializer_list<Module> modules);
  explicit Sequential(const std::vector<Module>& modules);
  template <class... Modules>
  explicit Sequential(const Module& first, const Modules&... rest)
      : Sequential({first, static_cast<const Module&>(rest)...}) {}
};

// body(x) + shortcut(x), of equal shapes; without a shortcut body(x) + x.
struct Residual : Module {
  explicit Residual(const Module& body);
  Residual(const Module& body, const Module& shortcut);
};

// The body, of which a Tape keeps the input only, and rows that came from a store: everything inside is computed again
// for the gradients (Chen et al., "Training deep nets with sublinear memory cost", 2016). With the same numbers, but
// for the rounding of a Dense with kGeluTanh on a CUDA device (dense.h): at first nothing inside is recorded. Less
// memory for a third more time.
struct Recompute : Module {
  explicit Recompute(const Module& body);
};

struct DenseOptions {
  bool bias = true;
  bool flatten = true;
  Initializer weight = lecun_uniform();
  Activation activation = Activation::kNone;  // of the result (ops/dense/dense.h)
};
struct Dense : Module {
  explicit Dense(std::int64_t outputs, const DenseOptions& options = {});
};

// Over one, two or three axes; numbers hold for each of them.
struct ConvOptions {
  std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;
  bool bias = true;
  Initializer weight = lecun_uniform();
};
struct Conv1d : Module {
  Conv1d(std::int64_t channels, std::int64_t kernel, const ConvOptions& options = {});
};
struct Conv2d : Module {
  Conv2d(std::int64_t channels, std::int64_t kernel, const ConvOptions& options = {});
};
struct Conv3d : Module {
  Conv3d(std::int64_t channels, std::int64_t kernel, const ConvOptions& options = {});
};
// The gradient of a convolution as a layer; over as many axes as the input has behind its channels.
struct TransposedConv : Module {
  TransposedConv(std::int64_t channels, std::int64_t kernel, const ConvOptions& options = {},
                 std::int64_t output_padding = 0);
};

// Over all axes behind the channels.
struct MaxPool : Module {
  explicit MaxPool(std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0);  // stride 0: the kernel
};
struct AveragePool : Module {
  explicit AveragePool(std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0);
};
struct GlobalAveragePool : Module {
  GlobalAveragePool();
};

struct BatchNormOptions {
  double momentum = 0.9, epsilon = 1e-5;
};
struct BatchNorm : Module {
  explicit BatchNorm(const BatchNormOptions& options = {});
};

// Over the last axis.
struct LayerNorm : Module {
  explicit LayerNorm(double epsilon = 1e-5);
};

struct Dropout : Module {
  explicit Dropout(double rate = 0.5);
};

// x: class numbers, of any type; gives vectors of `width`.
//
// With `sparse_grad` the gradient is of the rows in x alone, which a Tape must be asked for (watch_sparse()), and a
// Trainer trains them as a row-sparse table of its store.
struct EmbeddingOptions {
  Initializer weight = normal(0.01);
  bool sparse_grad = false;
  DType dtype = DType::kFloat32;  // or float64, without sparse_grad
};
struct Embedding : Module {
  Embedding(std::int64_t rows, std::int64_t width, const EmbeddingOptions& options = {});
};

// x (examples, steps, width); adds a vector of its own, which is trained, to each step.
struct PositionalEmbedding : Module {
  explicit PositionalEmbedding(const Initializer& weight = normal(0.01));
};

// x (examples, steps, width): every step looks at all steps, or, with `causal`, at those up to itself. The width is
// divided among the heads.
struct AttentionOptions {
  bool causal = false, bias = true;
  Initializer weight = xavier_uniform();
};
struct SelfAttention : Module {
  explicit SelfAttention(int heads, const AttentionOptions& options = {});
};

// x (steps, examples, width); gives the states (steps, examples, hidden) of the last layer, from zeros, with
// bidirectional those of both directions side by side.
struct RecurrentOptions {
  int layers = 1;
  bool bidirectional = false, bias = true;
};
struct Rnn : Module {
  explicit Rnn(std::int64_t hidden, const RecurrentOptions& options = {});
};
struct Gru : Module {
  explicit Gru(std::int64_t hidden, const RecurrentOptions& options = {});
};
struct Lstm : Module {
  explicit Lstm(std::int64_t hidden, const RecurrentOptions& options = {});
};

struct Flatten : Module {
  Flatten();
};
struct Relu : Module {
  Relu();
};
struct Tanh : Module {
  Tanh();
};
struct Sigmoid : Module {
  Sigmoid();
};
struct Gelu : Module {
  Gelu();
};

// A function as a layer: Lambda("Softmax", [](const NDArray& x) { return softmax(x); }).
struct Lambda : Module {
  Lambda(const std::string& kind, std::function<NDArray(const NDArray&)> function);
};

}  // namespace paceline::nn
