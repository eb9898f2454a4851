#pragma once
// Optimizers: the update rule runs where the weights live (a server, or this process in `local`). Chosen by a spec, for
// instance `sgd:lr=0.05,momentum=0.9`; typed forms are in namespace optim. Nothing that can become code crosses the
// wire.

#include <paceline/catalog.h>
#include <paceline/device.h>
#include <paceline/options.h>
#include <paceline/tile.h>

#include <memory>
#include <span>
#include <string>
#include <vector>

namespace paceline {

// Keys that every optimizer knows: lr (0.01), weight_decay (0), rescale (1), clip_gradient (0 = off, by value), and
// schedule (constant | linear | step | cosine, counted in examples) with schedule_examples, schedule_end (0),
// schedule_warmup, schedule_every, schedule_factor (0.1).
class LearningRate {
 public:
  static LearningRate parse(const Options& options);
  // The rate after `examples` examples of the whole job were applied; the same for one worker and for eight.
  double at(std::int64_t examples) const;
  double base() const { return base_; }
  void set_base(double rate) { base_ = rate; }

 private:
  enum class Form { kConstant, kLinear, kStep, kCosine };
  double base_ = 0.01;
  Form form_ = Form::kConstant;
  std::int64_t examples_ = 0, warmup_ = 0, every_ = 0;
  double end_ = 0, factor_ = 0.1;
};

class Optimizer;

// What is done to a gradient before any rule sees it: g = clip(rescale * g) + weight_decay * w.
struct Preparation {
  double rescale = 1;
  double clip_gradient = 0;
  double weight_decay = 0;

  static Preparation parse(const Options& options);
  // For an optimizer: without the weight decay where it is the optimizer's own.
  static Preparation parse(const Options& options, const Optimizer& optimizer);
  bool changes() const { return rescale != 1 || clip_gradient > 0 || weight_decay != 0; }
  template <class T>
  void apply(T* gradient, const T* weight, std::int64_t count) const;
};

// What an optimizer sees of one update, the same for every element of a slice.
struct UpdateStep {
  double learning_rate = 0;
  std::int64_t count = 0;  // updates this slice has taken, this one included (Adam's t)
};

// How far one update moves a weight: learning rate times `gain` times a typical gradient, or, where `normalised`, times
// 1. Momentum's gain is that for gradients that know nothing of each other: sqrt(1 + m^2 + m^4 + ...).
struct StepSize {
  double gain = 1;
  bool normalised = false;
};

// One key of update_cuda(): whole arrays.
struct DeviceUpdate {
  Tile<float> arrays;
  UpdateStep step;
};

// Update rule over tiles. The Preparation is already in tile.gradient. Thread-safe (constant).
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  // Names of the per-element state arrays, in the order of Tile::state: {"momentum"}. The slice owns them; they are
  // saved, moved and replicated with it. They start as zeros.
  virtual std::vector<std::string> state_names() const = 0;
  virtual void update(const Tile<float>& tile, const UpdateStep& step) const = 0;
  virtual void update(const Tile<double>& tile, const UpdateStep& step) const = 0;
  // The same, after the Preparation, for many whole arrays in the memory of a CUDA device, issued to `stream` (a
  // cudaStream_t) in one launch for dozens of them; gradients stay as they are. Throws NotAvailable where the optimizer
  // has no kernel.
  virtual void update_cuda(std::span<const DeviceUpdate> updates, const Preparation& preparation, Device device,
                           void* stream) const;
  virtual StepSize step_size() const { return {}; }
  // The new weights do not depend on the old ones: what update() finds in tile.weight is of no meaning.
  virtual bool replaces() const { return false; }
  // update() leaves tile.gradient as it is, and takes the weights from tile.before unless that is null: where no other
  // rule has a part in it, it reads both where they lie.
  virtual bool in_one_pass() const { return false; }
  // The option weight_decay is the rule's: the Preparation leaves it out.
  virtual bool decays_weights() const { return false; }
  // The momentum that a WorkerRule (dana) can take over, the server then running plain SGD; -1: it cannot.
  virtual double worker_momentum() const { return -1; }
};

// Throws InvalidArgument on an unknown name or key, listing the known ones.
std::unique_ptr<Optimizer> make_optimizer(const Spec& spec);
const Catalog<std::unique_ptr<Optimizer> (*)(const Options&)>& optimizer_catalog();

namespace optim {

struct Schedule {
  std::string form = "constant";
  std::int64_t examples = 0;  // linear, cosine: until here
  double end = 0;             // the rate there, as a fraction of lr
  std::int64_t warmup = 0;    // linear from 0, any form
  std::int64_t every = 0;     // step: multiply by factor each time
  double factor = 0.1;
};

// Spec `sgd`, `momentum` or `nesterov`. mom = momentum * mom + g; w -= lr * mom; with nesterov:
// w -= lr * (g + momentum * mom).
struct SGD {
  double lr = 0.01;
  double momentum = 0;
  bool nesterov = false;
  double weight_decay = 0;
  double clip_gradient = 0;
  Schedule schedule = {};
  operator Spec() const;
};

// Spec `assign`. The weights become the gradient, which in synchronous modes is the mean of the workers': the store is
// an all-reduce.
struct Assign {
  operator Spec() const;
};

// Spec `adam`. Kingma & Ba 2015, with bias correction. With moments m and v after t updates,
//   w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + epsilon),
// so epsilon stands beside the uncorrected root, as in MXNet. PyTorch adds it to the corrected one, sqrt(v / (1 -
// beta2^t)): its epsilon is this one divided by sqrt(1 - beta2^t), which matters only in the first steps.
struct Adam {
  double lr = 0.001;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0;
  double clip_gradient = 0;
  Schedule schedule = {};
  operator Spec() const;
};

// Spec `adamw`. Adam with decoupled weight decay (Loshchilov & Hutter 2019): w shrinks by lr * weight_decay * w beside
// Adam's step, which does not see it.
struct AdamW {
  double lr = 0.001;
  double beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  double weight_decay = 0.01;
  double clip_gradient = 0;
  Schedule schedule = {};
  operator Spec() const;
};

}  // namespace optim
}  // namespace paceline
