#pragma once
// The state of a Trainer: what the store knows of the network, and the steps that are not finished.

#include <paceline/autograd.h>
#include <paceline/progress.h>
#include <paceline/trainer.h>

#include <chrono>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "batch_gradients.h"
#include "loss_scale.h"
#include "row_gradients.h"

namespace paceline::nn {

struct Trainer::Impl {
  using Clock = std::chrono::steady_clock;

  // What the store takes in one call: few enough bytes that the last layers' go out, and the first layers' come back,
  // while the rest of the step is computed; enough that a call costs little.
  struct Group {
    static constexpr std::size_t kBytes = std::size_t{1} << 20;
    std::string last_layer;
    std::vector<PushItem> pushes;
    std::vector<PullItem> pulls;
    std::size_t bytes = 0;
  };

  struct PendingStep {
    std::optional<Variable> done = {};  // written once all weights of the step have arrived; none: there was no step
    std::int64_t number = 0, epoch = 0;
    std::vector<NDArray> losses = {};  // their sum is the step's
    Batch batch = {};                  // examples and positions
    DataIterator* data = nullptr;
    bool left_out = false;
  };

  Impl(Module trained, const Spec& spec, std::shared_ptr<KVStore> kv, const TrainerOptions& given);

  Module net;
  TrainerOptions options;
  std::shared_ptr<KVStore> store;
  Progress progress;
  Multipliers multipliers;  // of the optimizer

  bool ready = false, begun = false;  // begun: the store has been told of some keys
  std::exception_ptr failure;         // of a step that nobody waits for any more
  bool failure_thrown = false;        // by a call of the Trainer
  std::string input;                  // Checkpoint::input
  std::vector<Group> groups;          // in the order of the layers
  std::vector<PullItem> pulls, frozen;
  std::vector<NDArray> values;
  std::vector<std::shared_ptr<Parameter>> tables;  // in the store, by rows
  // As the whole network names them: parameters() of a part of it gives them names of that part.
  std::map<const Parameter*, std::string> names;
  std::vector<std::shared_ptr<Parameter>> kept;                               // frozen ones
  std::vector<std::pair<std::shared_ptr<Parameter>, std::uint64_t>> resumed;  // as a checkpoint left them, and writes
  std::optional<std::int64_t> tables_whole;  // in the network, after so many changes of rows
  std::optional<BatchGradients> gradients;
  std::optional<LossScale> scale;  // under float16

  std::int64_t evaluations = 0;  // since the epoch began
  DataIterator* data = nullptr;
  std::optional<Batch> delivered;   // the loop's batch that no step has used yet; its positions
  PendingStep next;                 // batches that are accumulated for it
  std::int64_t accumulated = 0;     // and how many these are
  std::deque<PendingStep> pending;  // and batches without a step, among which positions are committed in order
  bool told_of_nan = false;

  std::optional<Captured> captured;
  NDArray call;  // its number: one array, written anew in each step

  TrainerReport sums;
  std::optional<std::int64_t> finished_epoch;  // of the latest step that is finished
  Clock::time_point report_start = Clock::now();

  void throw_failure();
  void require_same_frozen() const;
  void prepare(const Shape& data_shape, DType dtype);
  TableSpec spec_of(const Parameter& table) const;
  std::shared_ptr<const RowSource> row_source();
  // The store gives back what it resumed, and would undo it without a word.
  void require_weights_as_resumed() const;
  void finish_oldest();
  void found_nan(std::int64_t step, double loss);
  void require_finite_weights() const;
  std::vector<NDArray> inputs_of(const Batch& batch);
  void add_to_next(const Batch& batch, const NDArray& loss);
  // Positions of which no step came, or none that worked, count as used when the loop goes on: the epoch could not end.
  void commit_without_step(Batch batch);
  // Its positions are delivered and without a step again.
  void forget_accumulated();
  // Is this step to be left out, because its gradients are not finite? Waits where it has to look.
  bool leaves_out(const std::vector<NDArray>& results, const std::vector<NDArray>& losses);
  void show_gradients();
  // Pushes the gradients, those that were accumulated before among them.
  void end_step(const std::vector<NDArray>& results);
  // What was accumulated and no step followed is a step.
  void push_accumulated();
  void finish_steps();
  // Runs a part of a step. Where it throws, the epoch can go on behind it.
  template <class Work>
  auto working(const Work& work) try {
    return work();
  } catch (...) {
    forget_accumulated();
    throw;
  }

  // The last layers' gradients come first; the first layers' weights are wanted first.
  void push_pull(std::int64_t examples);
  // While this worker waited, others may have gone on: the next gradient is to be of the weights there are now.
  void pull();
  // Updates of rows by any worker, and loads: while there are none, a table is what it was.
  std::int64_t row_changes();
  // Tables too, in pieces of about 1 MB, of which steps take the rows they need.
  void pull_all();
  void pull_tables();
};

}  // namespace paceline::nn
