#pragma once
// Optimizers. An update rule runs where the weights are: on a server, or in this process in modes without servers. A
// spec such as `momentum:lr=0.05,momentum=0.9` names the rule; namespace optim has structs for the specs. Servers take
// no code from the network.

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

// The learning rate over time. Every optimizer knows these options: lr (0.01), weight_decay (0; adamw: 0.01), rescale
// (1), clip_gradient (by value; 0: off), lr_mult and decay_mult (see Multipliers), and schedule (constant, linear, step
// or cosine) with schedule_examples, schedule_end (0), schedule_warmup, schedule_every and schedule_factor (0.1).
// optim::Schedule explains the options of the schedule.
class LearningRate {
 public:
  // Reads lr and the options of the schedule. Throws InvalidArgument on values out of range.
  static LearningRate parse(const Options& options);
  // The rate after `examples` examples of the whole job. It does not depend on the number of workers.
  double at(std::int64_t examples) const;
  // The base rate, which the schedule scales.
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
  std::string pattern;  // pattern of key names
  double factor = 1;    // finite, at least 0
};

// The factors of one key.
struct KeyFactors {
  double learning_rate = 1;  // factor of the learning rate
  double weight_decay = 1;   // factor of the weight decay
};

// The options lr_mult and decay_mult: factors of learning rate and weight decay for single keys, as
// `lr_mult=*embedding*:0.1+head*:10,decay_mult=*bias*:0`. The first pattern that fits the name of a key or table
// counts. If no pattern fits, the factor is 1. With a rate factor of 0 the weights stay the same, but the optimizer's
// state still changes. `assign` ignores lr_mult.
class Multipliers {
 public:
  // Reads both options. Throws InvalidArgument unless each factor is a finite number of at least 0.
  static Multipliers parse(const Options& options);
  // The factors of a key or table.
  KeyFactors of(std::string_view key) const;
  // True: every key has the factors 1.
  bool empty() const { return rate_.empty() && decay_.empty(); }
  // The patterns that fit none of `keys`, as "lr_mult=PATTERN". Leaves out the patterns of
  // optim::no_decay_on_biases_and_norms(), because a network may have no norms.
  std::vector<std::string> unused(std::span<const std::string> keys) const;

 private:
  std::vector<Multiplier> rate_, decay_;
};

class Optimizer;

// The step before every update rule: g = clip(rescale * g) + weight_decay * w.
struct Preparation {
  double rescale = 1;        // factor of the gradient
  double clip_gradient = 0;  // each element is clipped to this magnitude; 0: off
  double weight_decay = 0;   // factor of the weight, which is added to the gradient

  // Reads the options with these names. Throws InvalidArgument for a number that is not finite, and for a clip_gradient
  // or weight_decay below 0. The second form leaves weight_decay at 0 if the optimizer decays_weights().
  static Preparation parse(const Options& options);
  static Preparation parse(const Options& options, const Optimizer& optimizer);
  // Does this preparation change any gradient?
  bool changes() const { return rescale != 1 || clip_gradient > 0 || weight_decay != 0; }
  // Changes `count` elements of the gradient in place. T is float or double.
  template <class T>
  void apply(T* gradient, const T* weight, std::int64_t count) const;
};

// What an optimizer knows about one update. The values are the same for every element of a slice.
struct UpdateStep {
  double learning_rate = 0;  // learning rate of this update, times the key's factor
  std::int64_t count = 0;    // updates since the optimizer's state began, this one included (Adam's t)
  double decay_factor = 1;   // key's factor of weight_decay; read by update_cuda(), and by update() if decays_weights()
};

// How far one update moves a weight: learning rate * gain * typical gradient, or learning rate * gain if `normalised`.
// The gain of momentum m, for gradients that are independent of each other, is sqrt(1 + m^2 + m^4 + ...).
struct StepSize {
  double gain = 1;          // a factor
  bool normalised = false;  // the size of gradients does not matter, as with Adam
};

// The update of one key in Optimizer::update_cuda().
struct DeviceUpdate {
  Tile<float> arrays;  // whole arrays, in the device's memory
  UpdateStep step;     // rate, count and decay factor of this key's update
};

// An update rule over tiles. An optimizer never changes, so it is thread-safe. The slices own the state arrays, which
// change.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // The names of the state arrays, in the order of Tile::state, for instance {"momentum"}. Each array has one element
  // for each element of the slice. It begins with zeros, and is saved and loaded with the slice.
  virtual std::vector<std::string> state_names() const = 0;
  // Updates the weights of a tile in place. tile.gradient is already prepared (see Preparation).
  virtual void update(const Tile<float>& tile, const UpdateStep& step) const = 0;
  virtual void update(const Tile<double>& tile, const UpdateStep& step) const = 0;
  // Updates whole arrays in the memory of a CUDA device. Also applies the Preparation, with its weight_decay times the
  // decay_factor of the key's step. Leaves the gradients as they are. Launches kernels on `stream`, a cudaStream_t, and
  // does not wait for them. One launch updates up to a few hundred arrays. Throws NotAvailable if the optimizer has no
  // kernel.
  virtual void update_cuda(std::span<const DeviceUpdate> updates, const Preparation& preparation, Device device,
                           void* stream) const;
  // How far updates move weights; for staleness policies.
  virtual StepSize step_size() const { return {}; }
  // True: the new weights do not depend on the old ones. tile.weight need not be set before update().
  virtual bool replaces() const { return false; }
  // True: update() does not change tile.gradient, and reads the weights from tile.before unless that is null. If no
  // other rule takes part, update() then reads gradient and weights in place, without a copy.
  virtual bool in_one_pass() const { return false; }
  // True: the rule itself applies weight_decay, and the Preparation does not.
  virtual bool decays_weights() const { return false; }
  // The momentum that a WorkerRule (`dana`) or a codec can take over, so that the server runs plain SGD; -1: none can
  // be taken over.
  virtual double worker_momentum() const { return -1; }
};

// Makes the optimizer of a spec. For an unknown name or option, throws InvalidArgument listing the known ones.
std::unique_ptr<Optimizer> make_optimizer(const Spec& spec);
// Every optimizer by name.
const Catalog<std::unique_ptr<Optimizer> (*)(const Options&)>& optimizer_catalog();

// Optimizers as structs: each converts to its spec.
namespace optim {

// How the learning rate changes. All numbers of examples are those of the whole job.
struct Schedule {
  std::string form = "constant";  // constant, linear, step or cosine
  std::int64_t examples = 0;      // linear, cosine: the rate reaches its end after this many examples
  double end = 0;                 // linear, cosine: the rate at the end, as a fraction of lr
  std::int64_t warmup = 0;        // every form: the rate grows from 0 over this many examples
  std::int64_t every = 0;         // step: number of examples between two multiplications by `factor`
  double factor = 0.1;            // step: see `every`
};

// For `decay_mult`: turns weight decay off for the biases (*bias*), and for the scales and shifts of norms (*gamma,
// *beta), of the layers in namespace nn.
std::vector<Multiplier> no_decay_on_biases_and_norms();

// Spec `sgd`, `momentum` or `nesterov`. An update does mom = momentum * mom + g, then w -= lr * mom. With nesterov, the
// second part is w -= lr * (g + momentum * mom).
struct SGD {
  double lr = 0.01;                                       // learning rate
  double momentum = 0;                                    // 0: no momentum, and no state
  bool nesterov = false;                                  // see above; without momentum, InvalidArgument is thrown
  double weight_decay = 0;                                // see Preparation
  double clip_gradient = 0;                               // see Preparation
  Schedule schedule = {};                                 // schedule of the learning rate
  std::vector<Multiplier> lr_mult = {}, decay_mult = {};  // see Multipliers
  operator Spec() const;                                  // its spec
};

// Spec `assign`: the gradient becomes the weights. In synchronous modes, the mean of the workers' gradients becomes the
// weights, or their sum with aggregate=sum. The store is then an all-reduce.
struct Assign {
  operator Spec() const;  // its spec
};

// Spec `adam` (Kingma & Ba 2015), with bias correction. With moments m and v after t updates it does w -= lr * sqrt(1 -
// beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon). As in MXNet, epsilon is added to the uncorrected root sqrt(v).
// PyTorch adds epsilon to the corrected root, sqrt(v / (1 - beta2^t)). An epsilon here therefore acts like epsilon /
// sqrt(1 - beta2^t) in PyTorch. The difference matters only early in training.
struct Adam {
  double lr = 0.001;                                      // learning rate
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;      // see above
  double weight_decay = 0;                                // see Preparation
  double clip_gradient = 0;                               // see Preparation
  Schedule schedule = {};                                 // schedule of the learning rate
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
  Schedule schedule = {};                                 // schedule of the learning rate
  std::vector<Multiplier> lr_mult = {}, decay_mult = {};  // see Multipliers
  operator Spec() const;                                  // its spec
};

}  // namespace optim
}  // namespace paceline
