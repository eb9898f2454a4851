#pragma once
// Trainer: forward, backward, push, pull. The same program runs alone and distributed: the store decides.
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
#include <paceline/load_weights.h>  // IWYU pragma: export
#include <paceline/loss.h>
#include <paceline/metric.h>
#include <paceline/module.h>
#include <paceline/progress.h>
#include <paceline/row_sparse.h>

#include <functional>
#include <iosfwd>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::nn {

// How workers share an epoch. kEven: in equal parts. kDynamic: each asks for more when it is done, so a slow worker
// delivers less. Each record is delivered once either way, but under kDynamic it depends on their speeds who delivers
// it. So a run does not repeat bit by bit, in `dist_sync` neither. Workers make different numbers of steps in an epoch,
// so collective functions (Trainer::checkpoint(), evaluate() and synchronize(), KVStore::barrier()) come between
// epochs.
enum class Balance : std::uint8_t { kEven, kDynamic };
Balance parse_balance(std::string_view name);  // "even", "dynamic"; throws InvalidArgument

// All workers need the same.
struct SharingOptions {
  Balance balance = Balance::kEven;  // in equal parts, or by speed
  double piece_seconds = 1;  // kDynamic: a worker asks for what it gets done in this time, and gets less near the end
};

// A source that shares an epoch out over the live workers of the store, and takes over what lost workers left.
std::shared_ptr<Source> shared_source(std::shared_ptr<KVStore> store, SharingOptions options = {});

// Gradients by the names of their parameters.
using NamedGradients = std::vector<std::pair<std::string, Gradient>>;

// What happens where a loss or gradients are not finite. kWarn and kStop find it by the loss, `steps_ahead` steps
// later: kWarn logs it once, with the step and the first parameter that is not finite, and kStop throws Error. Under
// kStop, checkpoint() throws Error if a weight, a row of a table or a statistic is not finite. Frozen ones do not
// count. kSkip waits for the gradients of each step, and leaves the step out as under float16.
enum class OnNan : std::uint8_t { kWarn, kStop, kSkip, kIgnore };

// How a Trainer trains. Its batches are those of one worker: in synchronous modes N workers make steps of N batches.
struct TrainerOptions {
  std::uint64_t seed = 1;  // of initial weights, for which rank 0's counts, and of dropout
  Device device = {};      // where batches go, and layers without a place (Module::to())
  int steps_ahead = 2;     // steps that may be queued before step() waits for the oldest
  // Forward and backward run over so many parts of a batch, one after the other, and gradients are added up: a large
  // batch in the memory of a small one. Batch norm sees the parts. The gradient of a part counts by its share of the
  // examples. So a loss that is a mean over other numbers, as cross_entropy() with ignored labels or weights of
  // classes, is another one with parts.
  int micro_batches = 1;
  // bfloat16 or float16: steps in mixed precision (Context::compute); evaluate() is in float32. Weights, pushed
  // gradients, the store and checkpoints stay float32, so a checkpoint fits every precision.
  //
  // Under float16 the loss is scaled: by 2^16 at first, by twice as much after 2,000 good steps. Where a gradient is
  // not finite, the scale is halved and this worker leaves the step out: it pushes nothing, ends the step, and pulls. A
  // synchronous mode closes the round over the other workers, or changes nothing, so all hold the same weights again.
  // Each worker has its own scale, as pushed gradients are not scaled; a checkpoint holds that of the worker that
  // writes it. step() waits for the gradients, and throws Error where they are not finite at a scale of 1.
  DType precision = DType::kFloat32;
  bool channels_last = false;  // Context::channels_last
  double clip_norm = 0;  // limits the norm of this worker's gradients before the push (clip_global_norm()); 0: off
  // Captures forward and backward on one device and replays them, with the same numbers (capture.h). The first step's
  // loss is then the loss of every step. Not with row-sparse tables.
  bool captured = false;
  // Sees this worker's gradients by name, after clip_norm and kSkip, and may overwrite them before the push. Arrays are
  // asynchronous. A row of a table that a batch names several times has its gradient at one place, and zeros at the
  // others.
  std::function<void(const NamedGradients& gradients)> on_gradients = nullptr;
  OnNan on_nan = OnNan::kWarn;  // what to do about a loss that is not finite
  // Go into each checkpoint, for checkpoint_notes() and resume_if_present(). In a job they are those of the worker that
  // writes it. checkpoint() throws InvalidArgument where names or values are not UTF-8.
  Notes notes = {};
};

// What this worker did since its last report. The loss is the mean over the examples; a step with accumulate() counts
// the sum of its losses.
struct TrainerReport {
  std::int64_t epoch = 0;                                 // of the latest step, from 0
  std::int64_t steps = 0;                                 // of the whole run so far
  std::int64_t examples = 0;                              // this worker's own
  std::int64_t left_out = 0;                              // steps under float16 and kSkip; their examples do not count
  double seconds = 0, loss = 0, examples_per_second = 0;  // since the last report
  double waited_for_data = 0;                             // of these seconds; DataIterator::timing() says why
};
// Prints "epoch 1  step 300  loss 0.0931  9120 examples/s", where the first epoch is 1, the steps left out, and how
// much of the time was spent on waiting for data, where that is 1 % or more.
std::ostream& operator<<(std::ostream& out, const TrainerReport& report);

// Trains a network. One thread uses it. "Collective": every live worker calls the function. In a job of several
// workers, call collective functions between epochs: within one, a worker may have a batch more than another. A call
// that waits for a worker at the end of its epoch throws InvalidArgument.
//
// The weight of an Embedding with sparse_grad is a row-sparse table of the store (row_tables.h), named as the
// parameter. A step pulls the rows that its batch names when the layer is reached, and pushes their gradients, so its
// cost does not depend on the table's size. Updates are lazy, as MXNet's lazy_update: momentum, moments and weight
// decay of a row move only when it is pushed, and Adam counts the row's own updates. synchronize(), evaluate(),
// checkpoint() and the end of an epoch write the network's whole array of the weight, where rows have changed.
// clip_norm, loss scaling and micro-batches work on these gradients, too; steps are not captured. Modes that hold no
// tables (KVStore::holds_tables()) train such a weight like others.
class Trainer {
 public:
  // Sets the optimizer on the store. The first step is collective: it makes and initialises the parameters.
  Trainer(Module net, const Spec& optimizer, std::shared_ptr<KVStore> store, const TrainerOptions& options = {});
  ~Trainer();

  // One step: forward, backward, push_pull, step_end. Returns the loss without waiting for it. Throws what the step of
  // `steps_ahead` calls ago threw. Commits the positions of the loop's batch once its push is acknowledged. Layers go
  // to the store in groups of about 1 MB, the first with the highest priority: the last layers' gradients travel while
  // others are computed, and the next step begins once the first layers' weights are there.
  NDArray step(const Batch& batch, const Loss& loss);
  // Forward and backward alone: the next step() pushes the sum of its gradients and these, and commits both batches.
  // For a mean over k batches of one size, divide each loss by k. Where no step() follows, the end of the loop over the
  // epoch pushes them as a step. Throws InvalidArgument with captured steps and under float16.
  NDArray accumulate(const Batch& batch, const Loss& loss);

  // The current epoch of `data`, from where a resumed checkpoint stopped. When the loop over it ends, the epoch is
  // over: all its steps are acknowledged, and epoch() is one more. A batch without a step, or whose step threw, counts
  // as used once the loop goes on. With several workers `data` needs a Source: shared_source(), or fixed_source() where
  // each worker has its own records. Throws InvalidArgument otherwise.
  class Epoch;
  Epoch epoch_of(DataIterator& data);
  std::int64_t epoch() const;       // the current one, from 0
  double loss_scale() const;        // of the next step; 1 but for float16
  const CapturePlan* plan() const;  // what capturing did to the step; null while steps are eager

  bool every(std::int64_t steps) const;  // is this step's number a multiple?
  TrainerReport report();                // of the steps that are finished

  // Collective. Waits for the steps and for the other workers, and fetches the present weights.
  void synchronize();

  // Collective: each worker runs its part of `data`, made with shared_source(store), and takes over what lost ones
  // left. Gives every worker the accuracy over all of it, with the present weights. Throws InvalidArgument before the
  // first step, where `data` has another source or is the iterator of the running loop, and where labels are no class
  // numbers (metric.h).
  double evaluate(DataIterator& data);
  // The same for any labels, with a loss that is a mean over the examples of a batch.
  Evaluation evaluate(DataIterator& data, const Loss& loss);

  // Collective. The worker that leads writes DIR/checkpoint.safetensors: weights, state of the optimizer, epoch, steps,
  // position in the data, versions. The old file stays whole until the new one is complete. Returns the path. A failure
  // to write throws in every worker: IoError where it happened, Error elsewhere. DIR may be s3://BUCKET/FOLDER.
  std::string checkpoint(const std::string& directory);
  // Collective, once, before the first step. Rank 0 reads, and its network has the checkpoint's weights at once. False
  // where there is none. A worker that comes to a running job takes up the job's weights and epoch instead, and waits
  // for nobody. Throws in every worker where the file is damaged, of another optimizer, or of another network
  // (InvalidArgument: other names, shapes or types). The first step refuses weights that were written after this call.
  // The rate of KVStore::set_learning_rate() is not in the checkpoint: set it again. Rank 0 hands the checkpoint's
  // notes to `check` before it takes anything; what that throws is thrown there, and Error in the other workers.
  bool resume_if_present(const std::string& directory, const CheckNotes& check = nullptr);

  const Module& net() const;  // as the constructor got them
  KVStore& store();           // likewise

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// For a range-based for loop over the batches of an epoch. A batch is valid until the next one.
class Trainer::Epoch {
 public:
  // What the loop needs: a place in the epoch and its end. They throw what DataIterator::next() and the steps throw.
  struct End {};
  class Iterator {
   public:
    // As for any input iterator.
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
  // The first batch, and what is behind the last.
  Iterator begin() { return Iterator(*this); }
  End end() const { return {}; }
  // Waits for the steps of a loop that was left early. epoch() stays, and a later epoch_of() goes on behind them.
  // Where one of the steps failed, the next call of the Trainer throws; without such a call, the log says it when the
  // Trainer ends. An exception that leaves the loop drops what was accumulated.
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

}  // namespace paceline::nn
