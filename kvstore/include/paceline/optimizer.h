#pragma once
// Optimizers. The update rule runs where the weights are: on a server, or in this process in `local`. A spec names it,
// such as `sgd:lr=0.05,momentum=0.9`; namespace optim has typed forms. Servers take no code from the network.

#include <paceline/catalog.h>
#include <paceline/device.h>
#include <paceline/options.h>
#include <paceline/tile.h>

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// The learning rate over time. Every optimizer knows these keys: lr (0.01), weight_decay (0), rescale (1),
// clip_gradient (by value; 0: off), lr_mult and decay_mult (see Multipliers), and schedule (constant, linear, step or
// cosine) with schedule_examples, schedule_end (0), schedule_warmup, schedule_every and schedule_factor (0.1), as
// optim::Schedule explains them.
class LearningRate {
 public:
  // Reads lr and the keys of the schedule. Throws InvalidArgument on values out of range.
  static LearningRate parse(const Options& options);
  // The rate when `examples` examples of the whole job are applied. It does not depend on the number of workers.
  double at(std::int64_t examples) const;
  // The rate that the schedule changes.
  double base() const { return base_; }
  void set_base(double rate) { base_ = rate; }

 private:
  enum class Form { kConstant, kLinear, kStep, kCosine };
  double base_ = 0.01;
  Form form_ = Form::kConstant;
  std::int64_t examples_ = 0, warmup_ = 0, every_ = 0;
  double end_ = 0, factor_ = 0.1;
};

// A factor for the keys whose names fit a pattern, in which '*' stands for any run of characters and '?' for one.
struct Multiplier {
  std::string pattern;  // of names
  double factor = 1;    // finite, at least 0
};

// What the multipliers make of one key.
struct KeyFactors {
  double learning_rate = 1;  // of its rate
  double weight_decay = 1;   // of its decay
};

// The options lr_mult and decay_mult: factors of learning rate and weight decay for single keys, as
// `lr_mult=*embedding*:0.1+head*:10,decay_mult=*bias*:0`. The first pattern that fits the name of a key or table
// counts. Where none fits, the factor is 1. A rate of factor 0 keeps the weights; the optimizer's state moves on.
// `assign` has no rate.
class Multipliers {
 public:
  // Reads both options. Throws InvalidArgument on a factor that is no finite number of at least 0.
  static Multipliers parse(const Options& options);
  // The factors of a key or table.
  KeyFactors of(std::string_view key) const;
  // True: every key has the factors 1.
  bool empty() const { return rate_.empty() && decay_.empty(); }
  // The patterns that fit none of these names, as "lr_mult=PATTERN". Leaves out the patterns of
  // optim::no_decay_on_biases_and_norms(): a network may have no norms.
  std::vector<std::string> unused(std::span<const std::string> keys) const;

 private:
  std::vector<Multiplier> rate_, decay_;
};

class Optimizer;

// The step before every update rule: g = clip(rescale * g) + weight_decay * w.
struct Preparation {
  double rescale = 1;        // factor of the gradient
  double clip_gradient = 0;  // each element is clipped to this magnitude; 0: off
  double weight_decay = 0;   // factor of the weight that is added

  // Reads the options with these names, but not weight_decay if the optimizer itself handles it.
  static Preparation parse(const Options& options);
  static Preparation parse(const Options& options, const Optimizer& optimizer);
  // Would it change any gradient?
  bool changes() const { return rescale != 1 || clip_gradient > 0 || weight_decay != 0; }
  // Changes `count` elements of the gradient in place. T is float or double.
  template <class T>
  void apply(T* gradient, const T* weight, std::int64_t count) const;
};

// What an optimizer knows about one update. It is the same for every element of a slice.
struct UpdateStep {
  double learning_rate = 0;  // at this update, the key's factor included
  std::int64_t count = 0;    // updates that the slice has taken, this one included (Adam's t)
  double decay_factor = 1;   // of the key's weight decay; an optimizer that decays_weights() applies it
};

// How far one update moves a weight: learning rate * gain * typical gradient. If `normalised`, learning rate * gain.
// The gain of momentum m, for gradients that are independent of each other, is sqrt(1 + m^2 + m^4 + ...).
struct StepSize {
  double gain = 1;          // a factor
  bool normalised = false;  // the size of gradients does not matter, as with Adam
};

// One key of Optimizer::update_cuda().
struct DeviceUpdate {
  Tile<float> arrays;  // whole arrays, in the device's memory
  UpdateStep step;     // of that key
};

// An update rule over tiles. Constant, and so thread-safe. The slices own the state arrays, which change.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // The names of the state arrays, in the order of Tile::state, for instance {"momentum"}. Each array has one element
  // for each element of the slice. It begins with zeros, and is saved and moved with the slice.
  virtual std::vector<std::string> state_names() const = 0;
  // Updates the weights of a tile in place. tile.gradient is already prepared (see Preparation).
  virtual void update(const Tile<float>& tile, const UpdateStep& step) const = 0;
  virtual void update(const Tile<double>& tile, const UpdateStep& step) const = 0;
  // The same for whole arrays in the memory of a CUDA device, the Preparation included, its weight_decay times the
  // step's decay_factor. Gradients stay as they are. Issues to `stream`, a cudaStream_t, one launch for dozens of
  // arrays. Throws NotAvailable where the optimizer has no kernel.
  virtual void update_cuda(std::span<const DeviceUpdate> updates, const Preparation& preparation, Device device,
                           void* stream) const;
  // How far updates move weights; for staleness policies.
  virtual StepSize step_size() const { return {}; }
  // True: the new weights do not depend on the old ones. tile.weight need not be set before update().
  virtual bool replaces() const { return false; }
  // True: update() does not change tile.gradient, and reads the weights from tile.before unless that is null. If no
  // other rule takes part, it can then read gradient and weights where they are, without a copy.
  virtual bool in_one_pass() const { return false; }
  // True: the rule itself applies weight_decay, and the Preparation does not.
  virtual bool decays_weights() const { return false; }
  // The momentum that a WorkerRule (dana) can take over, so that the server runs plain SGD; -1: none can be taken over.
  virtual double worker_momentum() const { return -1; }
};

// Makes the optimizer of a spec. For an unknown name or key, throws InvalidArgument listing the known ones.
std::unique_ptr<Optimizer> make_optimizer(const Spec& spec);
// Every optimizer by name.
const Catalog<std::unique_ptr<Optimizer> (*)(const Options&)>& optimizer_catalog();

// Optimizers as structs: each converts to its spec.
namespace optim {

// How the learning rate changes, counted in examples of the whole job.
struct Schedule {
  std::string form = "constant";  // constant, linear, step or cosine
  std::int64_t examples = 0;      // linear, cosine: the rate reaches its end here
  double end = 0;                 // linear, cosine: the rate there, as a fraction of lr
  std::int64_t warmup = 0;        // every form: the rate grows from 0 over so many
  std::int64_t every = 0;         // step: the rate is multiplied by `factor` each time
  double factor = 0.1;            // step: see `every`
};

// For `decay_mult`: weight decay for weights alone. The patterns fit the biases (*bias*) and the scales and shifts of
// norms (*gamma, *beta) of the layers in namespace nn.
std::vector<Multiplier> no_decay_on_biases_and_norms();

// Spec `sgd`, `momentum` or `nesterov`: mom = momentum * mom + g, w -= lr * mom. With nesterov the second is
// w -= lr * (g + momentum * mom).
struct SGD {
  double lr = 0.01;                                       // learning rate
  double momentum = 0;                                    // 0: none, and no state
  bool nesterov = false;                                  // Nesterov's form
  double weight_decay = 0;                                // see Preparation
  double clip_gradient = 0;                               // see Preparation
  Schedule schedule = {};                                 // of the learning rate
  std::vector<Multiplier> lr_mult = {}, decay_mult = {};  // see Multipliers
  operator Spec() const;                                  // its spec
};

// Spec `assign`: the gradient becomes the weights. In synchronous modes it is the mean of the workers' gradients, or
// their sum with aggregate=sum, so the store is an all-reduce.
struct Assign {
  operator Spec() const;  // its spec
};

// Spec `adam` (Kingma & Ba 2015), with bias correction. With moments m and v after t updates it does w -= lr * sqrt(1 -
// beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon). epsilon is added to the uncorrected root, as in MXNet. PyTorch
// adds epsilon to the corrected root, sqrt(v / (1 - beta2^t)). Its epsilon is therefore this one divided by sqrt(1 -
// beta2^t), which matters only in the first steps.
struct Adam {
  double lr = 0.001;                                      // learning rate
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;      // see above
  double weight_decay = 0;                                // see Preparation
  double clip_gradient = 0;                               // see Preparation
  Schedule schedule = {};                                 // of the learning rate
  std::vector<Multiplier> lr_mult = {}, decay_mult = {};  // see Multipliers
  operator Spec() const;                                  // its spec
};

// Spec `adamw`: Adam with decoupled weight decay (Loshchilov & Hutter 2019). w shrinks by lr * weight_decay * w. The
// moments of Adam do not contain this decay.
struct AdamW {
  double lr = 0.001;                                      // learning rate
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;      // as in Adam
  double weight_decay = 0.01;                             // see above
  double clip_gradient = 0;                               // see Preparation
  Schedule schedule = {};                                 // of the learning rate
  std::vector<Multiplier> lr_mult = {}, decay_mult = {};  // see Multipliers
  operator Spec() const;                                  // its spec
};

}  // namespace optim
}  // namespace paceline
