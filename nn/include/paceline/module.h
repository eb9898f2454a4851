#pragma once
// Networks: modules with parameters. Sizes of inputs are inferred at the first call. Parameters are named by structure:
// "0.weight", "3.bias".

#include <paceline/initializer.h>
#include <paceline/ndarray.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace paceline::nn {

// A weight and its gradient, which are made at the first call.
struct Parameter {
  std::string name;        // in the network, "0.weight"
  NDArray value;           // the weight
  NDArray gradient;        // of the same shape and type; none for statistics and row-sparse tables
  bool statistic = false;  // as of batch norm: averaged over the workers instead of trained
  bool frozen = false;     // keeps its value: see Module::freeze()
  // Is it the table of an Embedding with sparse_grad? See Tape::watch_sparse().
  bool is_row_sparse() const { return !statistic && gradient.is_none(); }
};

class CastWeights;

// Fills `rows` with the rows of a table that have these numbers, int64 (n), where a store keeps the table.
using RowSource = std::function<void(const Parameter& table, const NDArray& numbers, const NDArray& rows)>;

// What a layer is told about the call it is part of.
struct Context {
  bool training = false;   // dropout and batch norm ask
  std::uint64_t seed = 0;  // dropout and initializers derive theirs from it
  // Counts the layers that were called with this context, so that each gets its own seed. Null: all use `seed`.
  std::shared_ptr<std::uint64_t> calls = nullptr;
  // The number of this call, one int64: dropout draws other masks for each. None: the network counts its calls.
  NDArray call = {};
  Device device = {};        // where it runs: the layer's own device, or that of its input
  bool recomputing = false;  // a second forward pass for the gradients, which must not update statistics again
  // Mixed precision. Where this is bfloat16 or float16, weights stay float32. Then
  //
  // - Dense, Conv1d to Conv3d, TransposedConv, SelfAttention, Rnn, Gru, Lstm, ColumnParallelDense and RowParallelDense
  //   take their input and weights in this type, cast from float32, and give it;
  // - LayerNorm takes and gives float32; Embedding gives float32;
  // - BatchNorm gives what it takes; its weights, statistics and sums are float32;
  // - Residual and PositionalEmbedding add in float32 where either side is float32;
  // - all others (activations, pools, Dropout, Flatten, Lambda) give what they take.
  //
  // Operators sum in float32. On the CPU, attention, softmax and recurrent cells do all their arithmetic in float32. A
  // Trainer hands the loss its input in float32. float64 stays float64.
  DType compute = DType::kFloat32;
  // Convolutions take their input with the channels last in memory (copy.h), which is fastest on GPUs in half types,
  // and only costs a copy on the CPU. Shapes stay (n, channels, sizes...), and numbers stay the same up to rounding.
  bool channels_last = false;
  std::shared_ptr<CastWeights> casts = nullptr;  // weights that were cast in this step already; null: not kept
  // Where rows of row-sparse parameters come from; null: from their values.
  std::shared_ptr<const RowSource> rows = nullptr;
};

// What layers hand on: one array, or, between layers that are spread over devices (parallel.h), its parts along the
// last axis, each on another device.
using Parts = std::vector<NDArray>;

// The base of layers, also of your own: make parameters by parameter() in forward(), and call children by
// (*child)(x, context). Only one thread at a time may use a network.
class Layer {
 public:
  virtual ~Layer() = default;

  // Runs the layer on its device. A layer without one runs on the device of x, and keeps that device once it has
  // parameters. Arrays of other devices are copied there, and their gradients back.
  Parts operator()(const Parts& x, const Context& context);
  NDArray operator()(const NDArray& x, const Context& context);

  // Computes the result, by operators.
  virtual NDArray forward(const NDArray& x, const Context& context) = 0;
  // The same for parts. Unless a layer overrides it, several parts throw InvalidArgument.
  virtual Parts forward_parts(const Parts& x, const Context& context);
  virtual std::string kind() const = 0;  // "Dense"

  virtual void place(Device device);                               // see Module::to()
  const std::optional<Device>& device() const { return device_; }  // its place; none: where its input is

  // Parameters, with the names that this layer gave them.
  using OwnParameters = std::vector<std::pair<std::string, std::shared_ptr<Parameter>>>;
  const OwnParameters& own_parameters() const { return parameters_; }
  void tie(const std::string& name, Layer& other, const std::string& other_name);  // see nn::tie()
  // Layers that this one calls, with the names that it gave them.
  const std::vector<std::pair<std::string, std::shared_ptr<Layer>>>& children() const { return children_; }

 protected:
  // The parameter `name`, made and initialised where it does not exist yet.
  Parameter& parameter(const std::string& name, const Shape& shape, const Initializer& initializer,
                       const Context& context, DType dtype = DType::kFloat32);
  // A statistic that starts with `value` everywhere. Its type is float64 where `dtype` is, else float32.
  Parameter& statistic(const std::string& name, const Shape& shape, double value, const Context& context,
                       DType dtype = DType::kFloat32);
  // A parameter whose gradient is row-sparse.
  Parameter& table(const std::string& name, const Shape& shape, const Initializer& initializer, const Context& context);
  // The value of parameter(). Where Context::compute is a half type, a float32 value is cast to it. A Tape follows the
  // cast.
  NDArray weight(const std::string& name, const Shape& shape, const Initializer& initializer, const Context& context,
                 DType dtype = DType::kFloat32);
  // Casts a float32 array to Context::compute where that is a half type.
  static NDArray in_compute_type(const NDArray& x, const Context& context);
  // Adds a layer that this one calls.
  void add_child(const std::string& name, std::shared_ptr<Layer> layer) {
    children_.emplace_back(name, std::move(layer));
  }

  std::optional<Device> device_;  // device()

 private:
  // Finds a parameter of this layer, or takes it over from a layer that it is tied to. Returns null without one.
  Parameter* find(const std::string& name, const Shape& shape);
  void require_what_is_tied() const;
  // Creates and initialises a parameter that has no gradient yet.
  Parameter& add(const std::string& name, const Shape& shape, const Initializer& initializer, const Context& context,
                 DType dtype);

  // A parameter of several layers, null until one of them has made it.
  using Shared = std::shared_ptr<std::shared_ptr<Parameter>>;

  OwnParameters parameters_;
  std::int64_t calls_made_ = 0;  // in training, as a whole network, without Context::call
  std::map<std::string, Shared> tied_;
  std::vector<std::pair<std::string, std::shared_ptr<Layer>>> children_;
};

// A network, or a part of one. A handle: copies name the same layer.
class Module {
 public:
  // A module of that layer, for layers of your own.
  explicit Module(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}

  // Runs the network. Asynchronous; a Tape of this thread records it. Only one thread at a time may call a network.
  NDArray operator()(const NDArray& x, const Context& context = {}) const { return (*layer_)(x, context); }

  // Makes the parameters for inputs of this shape, batch size included, by a call that no Tape records.
  void initialize(const Shape& input, std::uint64_t seed, Device device = {}, DType dtype = DType::kFloat32) const;

  // Places this module and all its parts on a device, and moves existing parameters. Call it before training begins. A
  // part may be placed elsewhere afterwards. What has no place runs where its input is. Returns *this.
  const Module& to(Device device) const;

  // All parameters in structural order; none before the first call. A parameter that occurs at several places is there
  // once, with the name of the first. The call sets Parameter::name to the name in this network: parameters() of a part
  // of it gives them the names that they have in that part.
  std::vector<std::shared_ptr<Parameter>> parameters() const;

  // Freezes all parameters whose name matches the pattern ("0.weight", "body.*", "*"; as fnmatch(3) does), or makes
  // them train again. A frozen parameter keeps its value: no gradient is computed, and nothing is sent to the KVStore
  // in a step. Layers before it that train get their gradients through it. BatchNorm uses frozen statistics as it does
  // outside of training. Call it after the parameters exist and before a Trainer's first step. Where the set of frozen
  // parameters changes later, the next step throws InvalidArgument. Throws InvalidArgument where no name matches.
  void freeze(const std::string& pattern = "*") const { set_frozen(pattern, true); }
  void unfreeze(const std::string& pattern = "*") const { set_frozen(pattern, false); }

  // "Sequential( 0 Conv2d (6, 1, 5, 5) ... 61706 parameters )", with devices where they are not all cpu
  std::string describe() const;
  // The number of elements in all parameters, frozen ones too, but not in statistics.
  std::int64_t parameter_count() const;

  // Writes the weights by name as MXNet's `.params`, and reads them by nn::load_weights(), without options. Both throw
  // InvalidArgument for a network that was neither called nor initialised.
  void save(const std::string& path) const;
  void load(const std::string& path) const;

  const std::shared_ptr<Layer>& layer() const { return layer_; }  // what the handle names

 private:
  void set_frozen(const std::string& pattern, bool frozen) const;

  std::shared_ptr<Layer> layer_;
};

// Makes one parameter of two: of that called `name_a` in `a` ("weight", "0.weight"), and of that called `name_b` in
// `b`. Its gradient is the sum of both; Trainer, save() and load() have it once. Throws InvalidArgument where both
// exist already. The first call of the network throws it where a layer has no such parameter, where shapes differ, and
// for a table of sparse_grad.
//
//   nn::Embedding words(50000, 256);
//   nn::Dense scores(50000, {.bias = false, .flatten = false});
//   nn::tie(words, "weight", scores, "weight");
void tie(const Module& a, const std::string& name_a, const Module& b, const std::string& name_b);

}  // namespace paceline::nn
