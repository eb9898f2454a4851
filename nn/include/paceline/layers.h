#pragma once
// The layers. Each is a Module. Sizes of inputs are inferred at the first call. Constructors and calls throw
// InvalidArgument for wrong sizes.

#include <paceline/module.h>
#include <paceline/ops/dense.h>

#include <initializer_list>

namespace paceline::nn {

// Modules one after the other. Children are named "0", "1", ...
struct Sequential : Module {
  Sequential(std::initializer_list<Module> modules);
  explicit Sequential(const std::vector<Module>& modules);
  template <class... Modules>
  explicit Sequential(const Module& first, const Modules&... rest)
      : Sequential({first, static_cast<const Module&>(rest)...}) {}
};

// body(x) + shortcut(x), of equal shapes. Without a shortcut it is body(x) + x.
struct Residual : Module {
  explicit Residual(const Module& body);
  Residual(const Module& body, const Module& shortcut);
};

// Computes the body again for the gradients (Chen et al., "Training deep nets with sublinear memory cost", 2016). A
// Tape keeps only the input, and rows that came from a store. This needs less memory and about a third more time. The
// first call creates the weights and records the body as usual. Later calls do not record the first pass of the body.
// Therefore a Dense with kGeluTanh may be rounded otherwise there on a CUDA device (dense.h). All other numbers are the
// same.
struct Recompute : Module {
  explicit Recompute(const Module& body);
};

// Options of Dense.
struct DenseOptions {
  bool bias = true;                      // adds a bias, which begins with 0
  bool flatten = true;                   // x of more than two axes becomes (n, rest); false: works on the last axis
  Initializer weight = lecun_uniform();  // of the weight
  Activation activation = Activation::kNone;  // is applied to the result (dense.h)
};
// Fully connected: gives `outputs` numbers for each example, or without `flatten` for each place of all axes but the
// last.
struct Dense : Module {
  explicit Dense(std::int64_t outputs, const DenseOptions& options = {});
};

// Options of convolutions. Stride, padding and dilation hold for each spatial axis.
struct ConvOptions {
  std::int64_t stride = 1, padding = 0, dilation = 1, groups = 1;  // as in convolution.h
  bool bias = true;                                                // adds a bias for each channel
  Initializer weight = lecun_uniform();                            // of the weight
};
// Convolutions over one, two or three spatial axes: x (n, in, sizes...) gives (n, channels, results...).
struct Conv1d : Module {
  Conv1d(std::int64_t channels, std::int64_t kernel, const ConvOptions& options = {});
};
struct Conv2d : Module {
  Conv2d(std::int64_t channels, std::int64_t kernel, const ConvOptions& options = {});
};
struct Conv3d : Module {
  Conv3d(std::int64_t channels, std::int64_t kernel, const ConvOptions& options = {});
};
// The gradient of a convolution as a layer (transposed_convolution()), over all axes behind the channels.
struct TransposedConv : Module {
  TransposedConv(std::int64_t channels, std::int64_t kernel, const ConvOptions& options = {},
                 std::int64_t output_padding = 0);
};

// Pooling over all axes behind the channels. A stride of 0 is the kernel's size.
struct MaxPool : Module {
  explicit MaxPool(std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0);
};
struct AveragePool : Module {
  explicit AveragePool(std::int64_t kernel, std::int64_t stride = 0, std::int64_t padding = 0);
};
struct GlobalAveragePool : Module {
  GlobalAveragePool();
};

// Options of BatchNorm.
struct BatchNormOptions {
  double momentum = 0.9, epsilon = 1e-5;  // as in batch_norm.h
};
// Batch normalisation of x (n, channels, ...) with a trained scale and shift (batch_norm()). Where a training step has
// one value per channel, the result is the shift; the log says so once.
struct BatchNorm : Module {
  explicit BatchNorm(const BatchNormOptions& options = {});
};

// Layer normalisation over the last axis, with a trained scale and shift.
struct LayerNorm : Module {
  explicit LayerNorm(double epsilon = 1e-5);
};

// In training, sets each element to 0 with probability `rate`, and multiplies the others by 1 / (1 - rate). Their
// expected values thus stay the same.
struct Dropout : Module {
  explicit Dropout(double rate = 0.5);
};

// Options of Embedding.
struct EmbeddingOptions {
  Initializer weight = normal(0.01);  // of the weight (rows, width)
  // The gradient holds only the rows that x names. Tape::watch_sparse() watches such a weight. A Trainer trains the
  // weight as a row-sparse table of its store.
  bool sparse_grad = false;
  DType dtype = DType::kFloat32;  // or float64, without sparse_grad
};
// Gives a trained vector of `width` numbers for each class number in x: x (...) gives (..., width). Numbers of other
// types than int32 and int64 are cast to int32.
struct Embedding : Module {
  Embedding(std::int64_t rows, std::int64_t width, const EmbeddingOptions& options = {});
};

// Adds a trained vector to each step of x (examples, steps, width).
struct PositionalEmbedding : Module {
  explicit PositionalEmbedding(const Initializer& weight = normal(0.01));
};

// Options of SelfAttention.
struct AttentionOptions {
  bool causal = false, bias = true;       // a step sees the steps up to itself only; projections add a bias
  Initializer weight = xavier_uniform();  // of the projections
};
// Attention among the steps of x (examples, steps, width). The width is divided among the heads.
struct SelfAttention : Module {
  explicit SelfAttention(int heads, const AttentionOptions& options = {});
};

// Options of recurrent layers.
struct RecurrentOptions {
  int layers = 1;                           // how many; each takes the states of the one before
  bool bidirectional = false, bias = true;  // runs over the steps in both directions; adds biases
};
// Recurrent networks: x (steps, examples, width) gives the states (steps, examples, hidden) of the last layer. The
// initial states are zeros. If bidirectional, the states of both directions stand side by side: (steps, examples, 2
// hidden).
struct Rnn : Module {
  explicit Rnn(std::int64_t hidden, const RecurrentOptions& options = {});
};
struct Gru : Module {
  explicit Gru(std::int64_t hidden, const RecurrentOptions& options = {});
};
struct Lstm : Module {
  explicit Lstm(std::int64_t hidden, const RecurrentOptions& options = {});
};

// x (n, ...) as (n, rest).
struct Flatten : Module {
  Flatten();
};
// Element-wise functions (unary.h).
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
