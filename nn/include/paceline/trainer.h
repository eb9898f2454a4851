#pragma once
// Trainer: forward, backward, push, pull. The same program runs alone and distributed; the store decides.
//
//   auto kv = KVStore::create(mode);
//   RecordLoader data("train.manifest", {.batch = 64, .shuffle = 1, .source = nn::shared_source(kv)});
//   nn::Trainer trainer(net, optim::SGD{.lr = 0.05, .momentum = 0.9}, kv);
//   trainer.resume_if_present("ckpt");
//   for (int e = trainer.epoch(); e < epochs; e = trainer.epoch()) {
//     for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
//     trainer.checkpoint("ckpt");
//   }

#include <paceline/capture.h>
#include <paceline/data_iterator.h>
#include <paceline/kvstore.h>
#include <paceline/loss.h>
#include <paceline/metric.h>
#include <paceline/module.h>
#include <paceline/progress.h>
#include <paceline/row_sparse.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

namespace paceline::nn {

// Positions from the store: parts over the live workers, takes over what lost workers left.
std::shared_ptr<Source> shared_source(std::shared_ptr<KVStore> store);

using NamedGradients = std::vector<std::pair<std::string, Gradient>>;

// What a step does whose loss or gradients are not finite. kWarn and kStop find it `steps_ahead` steps later, by the
// loss; kWarn says so once, with the step and the first parameter that is not finite, kStop throws Error. kSkip waits
// for the gradients of each step, and leaves the step out as under float16.
enum class OnNan : std::uint8_t { kWarn, kStop, kSkip, kIgnore };

// A batch is that of one worker: N workers make steps of N batches in the synchronous modes.
struct TrainerOptions {
  std::uint64_t seed = 1;  // of initial weights (rank 0's count) and dropout
  Device device = {};      // where batches go, and what has no place of its own (Module::to)
  int steps_ahead = 2;     // steps that may be queued before step() waits for the oldest
  // Forward and backward run over this many parts of a batch, one after the other, and their gradients are added up: a
  // large batch in the memory of a small one. Batch norm sees the parts.
  int micro_batches = 1;
  // bfloat16, float16: steps in mixed precision (Context::compute in module.h); evaluate() is in float32. Weights, the
  // gradients that are pushed, the store and checkpoints stay float32, so that a checkpoint fits every precision.
  //
  // Under float16 the loss is scaled: by 2^16 at first, by twice as much after 2,000 good steps. When a gradient is not
  // finite, the scale is halved and this worker leaves the step out: it pushes nothing, not even statistics, ends the
  // step, and pulls. So a synchronous mode closes the round over the others, or changes nothing where nobody pushed,
  // and all workers hold the same weights again. Each has a scale of its own, for what is pushed is not scaled; a
  // checkpoint holds that of the worker that writes it. step() waits for the gradients, and throws Error where they are
  // not finite at a scale of 1.
  DType precision = DType::kFloat32;
  bool channels_last = false;  // Context::channels_last
  double clip_norm =
      0;  // this worker's gradients are scaled to a norm of at most this before the push (autograd.h); 0: off
  // Forward and backward, on one device, are captured (capture.h) and replayed, with the same numbers. The first step's
  // loss is then the loss of every step. Not with row-sparse tables.
  bool captured = false;
  // Sees this worker's gradients by name, as clip_norm left them, and may overwrite them before the push. Arrays are
  // asynchronous. Of a table, a row that a batch names several times has its gradient in one place and zeros in the
  // others. kSkip looked at them before.
  std::function<void(const NamedGradients& gradients)> on_gradients = nullptr;
  OnNan on_nan = OnNan::kWarn;
};

// What this worker did since its last report; `examples` counts its own. `loss` is the mean over them, where that of a
// step with accumulate() is the sum of its losses.
struct TrainerReport {
  std::int64_t epoch = 0;  // of the latest step, from 0
  std::int64_t steps = 0;  // of the whole run so far
  std::int64_t examples = 0;
  std::int64_t left_out = 0;  // steps, under float16 and OnNan::kSkip; their examples and losses are not counted
  double seconds = 0, loss = 0, examples_per_second = 0;
};
// "epoch 1  step 300  loss 0.0931  9120 examples/s"; the first epoch is 1 here. Steps left out are named behind it.
std::ostream& operator<<(std::ostream& out, const TrainerReport& report);

// Not thread-safe: one thread trains.
//
// Weights of Embedding's sparse_grad are row-sparse tables of the store (row_tables.h), named as the parameter. A step
// pulls the rows that its batch names when the layer is reached, and pushes their gradients: what it costs does not
// depend on the table's size. Updates are lazy, as MXNet's lazy_update: momentum, moments and weight decay of a row
// move when it is pushed and only then, and Adam counts the row's own updates. The network's own array of the weight is
// written by synchronize(), evaluate(), checkpoint() and the end of an epoch, whole, where rows changed since it was.
// clip_norm and loss scaling see these gradients, micro-batches add them up. Steps are not captured. Modes whose store
// holds no tables (KVStore::holds_tables()) train such a weight like others.
class Trainer {
 public:
  // Sets the optimizer on the store. Parameters are created and initialised collectively at the first step.
  Trainer(Module net, const Spec& optimizer, std::shared_ptr<KVStore> store, const TrainerOptions& options = {});
  ~Trainer();

  // One step: forward, backward, push_pull, step_end. Returns the loss, not waited for. Throws what the step of
  // `steps_ahead` calls ago threw. Commits the positions of the loop's batch once its push is acknowledged. Layers go
  // to the store in groups of about 1 MB, the first with the highest priority: the last layers' gradients travel while
  // the others are computed, and the next step begins when the first layers' weights are there.
  NDArray step(const Batch& batch, const Loss& loss);
  // Forward and backward alone: the next step() pushes the sum of its gradients and these, and commits both batches.
  // A mean over k batches of a size needs each loss divided by k. What no step() follows is pushed as a step of its own
  // when the loop over the epoch ends. Throws InvalidArgument with captured steps and under float16.
  NDArray accumulate(const Batch& batch, const Loss& loss);

  // The current epoch of `data` from where a resumed checkpoint stopped; when the loop over it ends, the epoch is over:
  // all its steps are acknowledged and epoch() is one more. A batch without a step, or whose step threw, counts as used
  // once the loop goes on. With several workers `data` needs a Source:
  // shared_source(), or fixed_source() where each has records of its own; else InvalidArgument.
  class Epoch;
  Epoch epoch_of(DataIterator& data);
  std::int64_t epoch() const;

  double loss_scale() const;  // of the next step; 1 but for float16
  // What capturing did to the step; none while steps are eager.
  const CapturePlan* plan() const;

  bool every(std::int64_t steps) const;  // is this step's number a multiple?
  TrainerReport report();                // of the steps that are finished

  // Waits for the steps, meets the other workers and fetches the weights as they are now. For evaluation and the end.
  void synchronize();

  // Collective: each worker runs its part of `data` (made with shared_source(store)) and takes over what lost ones
  // left; gives every worker the accuracy over all of it, with the weights as they are now. After the first step;
  // throws InvalidArgument before it, where `data` has another source or is the iterator of the running loop, and where
  // labels are no class numbers (metric.h).
  double evaluate(DataIterator& data);
  // The same, of any labels, with a loss that is a mean over the examples of a batch.
  Evaluation evaluate(DataIterator& data, const Loss& loss);

  // Collective. The worker that leads writes DIR/checkpoint.safetensors: weights, optimizer state, epoch, steps, data
  // position, versions. The old file stays whole until the new one is complete. Returns the path. A failure to write
  // throws in every worker, IoError where it happened, Error elsewhere.
  std::string checkpoint(const std::string& directory);
  // Collective, rank 0 reads, and its network has the checkpoint's weights at once. False if there is none. A worker
  // that comes to a running job takes up the job's weights and epoch instead, and waits for nobody. Throws in every
  // worker where the file is damaged, of another optimizer, or of another network (InvalidArgument: other names, shapes
  // or types). Once, before the first step with the store; weights that are written between are refused by that step.
  bool resume_if_present(const std::string& directory);

  const Module& net() const;
  KVStore& store();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// For a range-based for loop over the batches of an epoch.
class Trainer::Epoch {
 public:
  struct End {};
  class Iterator {
   public:
    explicit Iterator(Epoch& epoch) : epoch_(epoch) { ++*this; }
    Batch& operator*() { return batch_; }
    Iterator& operator++() {
      more_ = epoch_.next(batch_);
      return *this;
    }
    bool operator!=(End) const { return more_; }

   private:
    Epoch& epoch_;
    Batch batch_;
    bool more_ = false;
  };
  Iterator begin() { return Iterator(*this); }
  End end() const { return {}; }
  // Of a loop that was left early: waits for its steps. epoch() stays; a later epoch_of() goes on behind them. Where
  // one of the steps failed, the next call of the Trainer throws; an exception that leaves the loop drops what was
  // accumulated.
  ~Epoch();
  Epoch(const Epoch&) = delete;
  Epoch& operator=(const Epoch&) = delete;

 private:
  friend class Trainer;
  Epoch(Trainer& trainer, DataIterator& data);
  bool next(Batch& batch);
  Trainer& trainer_;
  DataIterator& data_;
};

struct LoadOptions {
  // The network's name for a name in the file, without "arg:" and "aux:"; "" leaves the array out. None: the same.
  std::function<std::string(const std::string& name)> map = nullptr;
  // Of the network's weights, some are not in the file, or have another shape there: a new head is in `other_shape`.
  bool allow_missing = false;
  bool allow_extra = false;  // of the file's arrays, some are not in the network
};
struct LoadedWeights {
  std::vector<std::string> missing, extra;
  std::vector<std::string> other_shape;  // "0.weight (10, 5) instead of (10, 6)"
};
// Reads weights into an initialised network: from a checkpoint (the file or its folder), MXNet's `.params`, or a
// safetensors file, converting types. Throws IoError, Corrupt, NotAvailable (an array of the file, wanted or not, is of
// a type that arrays do not have), and InvalidArgument where something does not fit that the options do not allow; then
// the network is as it was. In a job: before the first step, which gives every worker the weights of rank 0. Later the
// store's weights overwrite what is loaded.
LoadedWeights load_weights(const Module& net, const std::string& place, const LoadOptions& options = {});

}  // namespace paceline::nn
