#pragma once
// Networks: modules with parameters, whose input sizes are inferred at the first call. A Module is a handle; copies
// name the same layer. Parameters are named by structure: "0.weight", "3.bias".

#include <paceline/initializer.h>
#include <paceline/ndarray.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace paceline::nn {

// A weight and its gradient; both are allocated at the first call. Statistics (batch norm) have no gradient.
struct Parameter {
  std::string name;
  NDArray value;
  NDArray gradient;
  bool statistic = false;  // averaged over the workers instead of trained
  bool frozen = false;     // keeps its value: see Module::freeze()
  // A table of Embedding's sparse_grad: it has no array for its gradient either, see Tape::watch_sparse().
  bool is_row_sparse() const { return !statistic && gradient.is_none(); }
};

class CastWeights;

// Fills `rows` with those of a table that have these numbers, int64 (n), where others than the network keep it.
using RowSource = std::function<void(const Parameter& table, const NDArray& numbers, const NDArray& rows)>;

// What a layer is told about the call it is part of.
struct Context {
  bool training = false;
  std::uint64_t seed = 0;  // dropout and initializers derive theirs from it
  // How many layers were called with this context so far: each gets a seed of its own. Null: they get this one.
  std::shared_ptr<std::uint64_t> calls = nullptr;
  // One int64, the number of this call: dropout draws other masks for each. None: the network counts its own calls.
  NDArray call = {};
  Device device = {};        // where it runs: a layer is told that of its input, or its own
  bool recomputing = false;  // a second time, for the gradients: statistics were already updated
  // Mixed precision. Where this is bfloat16 or float16, weights stay float32, and
  //   Dense, Conv1d to Conv3d, TransposedConv, SelfAttention, Rnn, Gru, Lstm, ColumnParallelDense, RowParallelDense
  //                  take their input and weights in it (cast from float32) and give it;
  //   LayerNorm      takes and gives float32; Embedding gives float32;
  //   BatchNorm      gives what it takes; its weights, statistics and sums are float32;
  //   Residual, PositionalEmbedding   add in float32 where either side is;
  //   all others     (activations, pools, Dropout, Flatten, Lambda) give what they take.
  // Inside operators, sums of all of them are float32 (attention, softmax and recurrent cells on the CPU altogether).
  // A Trainer hands the loss its input in float32. float64 stays float64.
  DType compute = DType::kFloat32;
  // Convolutions take their input with the channels last in memory (copy.h), as GPUs compute them fastest in halves; on
  // the CPU it only costs a copy. The shapes stay (n, channels, sizes...), and so do all numbers up to rounding.
  bool channels_last = false;
  std::shared_ptr<CastWeights> casts = nullptr;  // those made in this step already, if they are kept
  // Where rows of row-sparse parameters come from; null: from their values.
  std::shared_ptr<const RowSource> rows = nullptr;
};

// What layers hand on: one array or, between layers that are spread over devices (parallel.h), its parts along the last
// axis, each on a device of its own.
using Parts = std::vector<NDArray>;

// Write a layer of your own by deriving from Layer: create parameters in forward() at the first call with parameter(),
// and call children with (*child)(x, context).
class Layer {
 public:
  virtual ~Layer() = default;

  // Runs the layer on its device, else on that of x; there it stays once it has parameters. What lies elsewhere is
  // copied there, and its gradient back.
  Parts operator()(const Parts& x, const Context& context);
  NDArray operator()(const NDArray& x, const Context& context);

  virtual NDArray forward(const NDArray& x, const Context& context) = 0;
  // Throws InvalidArgument for several parts where a layer does not say what it makes of them.
  virtual Parts forward_parts(const Parts& x, const Context& context);
  virtual std::string kind() const = 0;  // "Dense"

  // See Module::to().
  virtual void place(Device device);
  const std::optional<Device>& device() const { return device_; }

  // With the names that this layer gave them.
  using OwnParameters = std::vector<std::pair<std::string, std::shared_ptr<Parameter>>>;
  const OwnParameters& own_parameters() const { return parameters_; }
  // See nn::tie().
  void tie(const std::string& name, Layer& other, const std::string& other_name);
  const std::vector<std::pair<std::string, std::shared_ptr<Layer>>>& children() const { return children_; }

 protected:
  // The parameter `name`, created and initialised when it does not exist yet.
  Parameter& parameter(const std::string& name, const Shape& shape, const Initializer& initializer,
                       const Context& context, DType dtype = DType::kFloat32);
  // Of float64 for that, else of float32.
  Parameter& statistic(const std::string& name, const Shape& shape, double value, const Context& context,
                       DType dtype = DType::kFloat32);
  // One whose gradient is row-sparse.
  Parameter& table(const std::string& name, const Shape& shape, const Initializer& initializer, const Context& context);
  // The value of parameter(), in Context::compute; likewise any other array. Recorded.
  NDArray weight(const std::string& name, const Shape& shape, const Initializer& initializer, const Context& context,
                 DType dtype = DType::kFloat32);
  static NDArray in_compute_type(const NDArray& x, const Context& context);
  void add_child(const std::string& name, std::shared_ptr<Layer> layer) {
    children_.emplace_back(name, std::move(layer));
  }

  std::optional<Device> device_;

 private:
  // One that this layer has, or takes over from a layer that it is tied to; null where there is none.
  Parameter* find(const std::string& name, const Shape& shape);
  void require_what_is_tied() const;
  // Without a gradient.
  Parameter& add(const std::string& name, const Shape& shape, const Initializer& initializer, const Context& context,
                 DType dtype);

  // A parameter of several layers, null until one of them has made it.
  using Shared = std::shared_ptr<std::shared_ptr<Parameter>>;

  OwnParameters parameters_;
  std::int64_t calls_made_ = 0;  // in training, as a whole network, without Context::call
  std::map<std::string, Shared> tied_;
  std::vector<std::pair<std::string, std::shared_ptr<Layer>>> children_;
};

class Module {
 public:
  explicit Module(std::shared_ptr<Layer> layer) : layer_(std::move(layer)) {}

  // Runs the network; records on the current Tape if there is one. Not thread-safe at the first call.
  NDArray operator()(const NDArray& x, const Context& context = {}) const { return (*layer_)(x, context); }

  // Creates the parameters for inputs of this shape (batch size included) by a call that nobody records.
  void initialize(const Shape& input, std::uint64_t seed, Device device = {}, DType dtype = DType::kFloat32) const;

  // Places this module, and all that it is made of, on a device; parameters that there are move. A part may be placed
  // elsewhere afterwards. What has no place runs where its input is. Before training begins. Returns *this.
  const Module& to(Device device) const;

  // All parameters in structural order, names complete. Empty before the first call. One that several layers have, or a
  // layer that stands at several places, is there once, with the name of its first place. Parameter::name is then the
  // name in this network: parameters() of a part of it gives its parameters the names that they have in the part.
  std::vector<std::shared_ptr<Parameter>> parameters() const;

  // Freezes all parameters whose name matches the pattern ("0.weight", "body.*", "*"; as fnmatch(3) does), or makes
  // them train again. What is frozen keeps its value: no gradient is computed for it, nor for layers before it of
  // which nothing trains, and nothing of it is pushed. Layers before it that train get their gradients through it.
  // BatchNorm with frozen statistics uses them as it does outside of training. Call it when the parameters are there
  // and before the first step of a Trainer, whose next step throws InvalidArgument after a change. Throws that where no
  // name matches.
  void freeze(const std::string& pattern = "*") const { set_frozen(pattern, true); }
  void unfreeze(const std::string& pattern = "*") const { set_frozen(pattern, false); }

  // "Sequential( 0 Conv2d (6, 1, 5, 5) ... 61706 parameters )", with devices where they are not all cpu
  std::string describe() const;
  // Numbers in all parameters, frozen ones too, but not in statistics.
  std::int64_t parameter_count() const;

  // Weights by name, as MXNet's `.params`. Both throw InvalidArgument for a network that was neither called nor
  // initialised. load() is load_weights() (trainer.h), to which the file has to fit.
  void save(const std::string& path) const;
  void load(const std::string& path) const;

  const std::shared_ptr<Layer>& layer() const { return layer_; }

 private:
  void set_frozen(const std::string& pattern, bool frozen) const;

  std::shared_ptr<Layer> layer_;
};

// Makes one parameter of two: that of `a` which is named `name_a` there ("weight", "0.weight"), and that of `b`. Its
// gradient is the sum of both; Trainer, save() and load() have it once. Before either exists, or after one of them
// does. Throws InvalidArgument where both do; the first call throws it where a layer has no parameter of the name,
// where the shapes differ, and where one is a table of sparse_grad.
//
//   nn::Embedding words(50000, 256);
//   nn::Dense scores(50000, {.bias = false, .flatten = false});
//   nn::tie(words, "weight", scores, "weight");
void tie(const Module& a, const std::string& name_a, const Module& b, const std::string& name_b);

}  // namespace paceline::nn
