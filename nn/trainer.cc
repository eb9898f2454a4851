#include <paceline/autograd.h>
#include <paceline/detail/layout.h>
#include <paceline/kernel.h>
#include <paceline/log.h>
#include <paceline/ops.h>
#include <paceline/progress.h>
#include <paceline/trainer.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <map>
#include <optional>
#include <ostream>
#include <utility>

#include "batch_gradients.h"
#include "checkpoint.h"
#include "evaluation.h"
#include "loss_scale.h"
#include "precision.h"
#include "row_gradients.h"

namespace paceline::nn {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Evaluations are epochs from here on.
constexpr std::int64_t kEvaluations = std::int64_t{1} << 40, kEvaluationsOfAnEpoch = std::int64_t{1} << 16;

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

TrainerOptions checked(const TrainerOptions& options) {
  require(options.micro_batches >= 1, "micro_batches is ", options.micro_batches, ", expected at least 1");
  require(options.clip_norm >= 0, "clip_norm is ", options.clip_norm, ", expected at least 0");
  require(options.steps_ahead >= 1, "steps_ahead is ", options.steps_ahead, ", expected at least 1");
  require(options.precision == DType::kFloat32 || is_half(options.precision), "precision is ",
          name_of(options.precision), ", expected float32, bfloat16 or float16");
  return options;
}

}  // namespace

struct Trainer::Impl {
  Impl(Module trained, const Spec& spec, std::shared_ptr<KVStore> kv, const TrainerOptions& given)
      : net(std::move(trained)),
        options(checked(given)),
        store(std::move(kv)),
        progress(store, spec),
        multipliers(Multipliers::parse(Spec(spec).options)) {}

  Module net;
  TrainerOptions options;
  std::shared_ptr<KVStore> store;
  Progress progress;
  Multipliers multipliers;  // of the optimizer

  bool ready = false, begun = false;  // begun: the store has been told of some keys
  std::exception_ptr failure;         // of a step that nobody waits for any more
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

  void require_same_frozen() const {
    const auto refuse = [&](const Parameter& parameter, const char* what) {
      throw InvalidArgument(str("'", names.at(&parameter), "' was ", what,
                                " after the first step, when a Trainer and its store know already what trains; save a "
                                "checkpoint, and load_weights() it where a new store and Trainer begin"));
    };
    for (const auto& [parameter, name] : names) {
      const bool was = std::ranges::any_of(kept, [&](const auto& one) { return one.get() == parameter; });
      if (parameter->frozen != was) refuse(*parameter, was ? "made to train" : "frozen");
    }
  }

  void prepare(const Shape& data_shape, DType dtype) {
    if (failure) std::rethrow_exception(failure);
    if (ready) return require_same_frozen();
    if (begun)
      throw Error("the first step failed before the store had all weights; begin with a new store and a new Trainer");
    require_weights_as_resumed();
    input = name_of(dtype);
    for (const std::int64_t size : data_shape) input += str(' ', size);
    Shape part = data_shape;  // what a layer sees at once
    if (part.ndim() > 0) part[0] = (part[0] + options.micro_batches - 1) / options.micro_batches;
    net.initialize(part, options.seed, options.device, dtype);
    require(std::ranges::any_of(net.parameters(), [](const auto& one) { return !one->frozen && !one->statistic; }),
            "every parameter of the network is frozen, so that nothing trains; unfreeze() some before the first step");
    begun = true;
    std::vector<InitValue> initial;
    for (const auto& parameter : net.parameters()) {
      names[parameter.get()] = parameter->name;
      if (parameter->frozen) kept.push_back(parameter);
      if (parameter->is_row_sparse() && !parameter->frozen) {
        if (store->holds_tables()) {
          tables.push_back(parameter);
          continue;
        }
        parameter->gradient =
            NDArray::zeros(parameter->value.shape(), parameter->value.dtype(), parameter->value.device());
      }
      initial.push_back({.key = parameter->name,
                         .value = parameter->value,
                         .average = parameter->statistic,
                         .shared = !parameter->statistic && !parameter->frozen});
      if (parameter->frozen) {
        frozen.push_back({parameter->name, parameter->value});
        continue;
      }
      const std::string layer = parameter->name.substr(0, parameter->name.rfind('.'));
      if (groups.empty() || (groups.back().bytes >= Group::kBytes && groups.back().last_layer != layer))
        groups.emplace_back();
      Group& group = groups.back();
      group.last_layer = layer;
      group.pushes.push_back({parameter->name, parameter->statistic ? parameter->value : parameter->gradient});
      group.pulls.push_back({parameter->name, parameter->value});
      group.bytes += parameter->value.bytes();
      pulls.push_back({parameter->name, parameter->value});
      values.push_back(parameter->value);
    }
    gradients.emplace(net, options, row_source());
    require(!options.captured || tables.empty(), "captured steps take no rows from the store, but '",
            tables.empty() ? "" : names.at(tables[0].get()), "' has a row-sparse gradient; set captured = false");
    require(!options.captured || gradients->devices().size() <= 1,
            "captured steps run on one device, but the network has weights on ", gradients->devices().size(),
            "; set captured = false");
    std::string all_names, frozen_names;
    std::vector<std::string> with_gradient;
    for (const auto& parameter : net.parameters()) {
      all_names += parameter->name + " ";
      if (!parameter->statistic) with_gradient.push_back(parameter->name);
      if (parameter->frozen) frozen_names += parameter->name + " ";
    }
    if (store->rank() == 0)
      for (const std::string& pattern : multipliers.unused(with_gradient))
        LOG(WARNING) << pattern
                     << " of the optimizer fits no parameter of the network; net.describe() shows their names";
    progress.tell_alike(all_names, frozen_names);
    if (!initial.empty()) store->init(initial);  // in all workers, which have told it before
    if (!progress.is_alike(all_names, frozen_names))
      throw InvalidArgument("the workers froze different parameters; those of this one: " +
                            (frozen_names.empty() ? "none" : frozen_names) + "; freeze the same in every worker");
    for (const auto& table : tables) store->init_table(spec_of(*table));
    // What is frozen stays as the network of rank 0 had it, which init() gave to all: a program may have moved it, and
    // the store's is as it was before its first step.
    std::vector<NDArray> unmoved;
    for (const PullItem& item : frozen)
      if (progress.resumes()) unmoved.push_back(item.out.clone());
    const bool loaded = progress.load();
    for (std::size_t i = 0; i < unmoved.size(); ++i) frozen[i].out.copy_from(unmoved[i]);
    if (store->backend().joined_late() && !frozen.empty()) store->backend().pull(frozen, 0);
    if (loaded)
      pull_all();
    else  // the tables begin with the network's values
      for (const auto& table : tables) store->init_table(spec_of(*table), table->value);
    ready = true;
  }

  TableSpec spec_of(const Parameter& table) const {
    return {.name = names.at(&table),
            .rows = table.value.size(0),
            .width = table.value.size(1),
            .dtype = table.value.dtype()};
  }

  std::shared_ptr<const RowSource> row_source() {
    if (tables.empty()) return nullptr;
    return std::make_shared<const RowSource>([kv = store, known = names, soonest = static_cast<int>(groups.size()) + 1](
                                                 const Parameter& table, const NDArray& numbers, const NDArray& rows) {
      kv->pull_rows({{known.at(&table), numbers, rows}}, soonest);
    });
  }

  // The store gives back what it resumed, and would undo it without a word.
  void require_weights_as_resumed() const {
    for (const auto& [parameter, writes] : resumed)
      require(parameter->frozen || parameter->statistic || detail::writes_to(parameter->value) == writes, "'",
              parameter->name,
              "' was written between resume_if_present() and the first step, which would put the checkpoint's weights "
              "back; load weights without resuming");
  }

  void finish_oldest() {
    PendingStep step = std::move(pending.front());
    pending.pop_front();
    if (step.done) default_engine().wait(*step.done);
    if (step.data) step.data->commit(step.batch);
    if (!step.done) return;
    finished_epoch = step.epoch;
    if (step.left_out) {
      ++sums.left_out;
    } else {
      double loss = 0;
      // Of its own type: another would be an array of its own, in every step.
      for (const NDArray& array : step.losses)
        loss += array.dtype() == DType::kFloat32 ? array.item<float>() : array.item<double>();
      if (!std::isfinite(loss)) found_nan(step.number, loss);
      sums.loss += loss * static_cast<double>(step.batch.examples);
      sums.examples += step.batch.examples;
    }
  }

  void found_nan(std::int64_t step, double loss) {
    if (options.on_nan == OnNan::kIgnore || (told_of_nan && options.on_nan != OnNan::kStop)) return;
    told_of_nan = true;
    std::string where = "; all gradients and weights are finite now";
    for (const auto& parameter : gradients->trained()) {
      const char* what = nullptr;
      if (!std::isfinite(global_norm({parameter->value}).item<double>()))
        what = "the weight";
      else if (!std::isfinite(global_norm({parameter->gradient}).item<double>()))
        what = "the gradient of";
      if (!what) continue;
      where = str("; the first that is not finite is ", what, " '", names.at(parameter.get()), "'");
      break;
    }
    const std::string text =
        str("the loss of step ", step, " is ", loss, where,
            "; lower the learning rate, set clip_norm, or choose TrainerOptions::on_nan (warn, stop, skip, ignore)");
    if (options.on_nan == OnNan::kStop) throw Error(text);
    LOG(WARNING) << text;
  }

  std::vector<NDArray> inputs_of(const Batch& batch) {
    const Device device = options.device;
    if (call.is_none()) call = NDArray({1}, DType::kInt64, device);
    constexpr std::int64_t kAccumulated = std::int64_t{1} << 40;
    call.fill(static_cast<double>(progress.steps() * store->size() + store->rank() + accumulated * kAccumulated));
    return {batch.data.to(device), batch.label.to(device), call};
  }

  void add_to_next(const Batch& batch, const NDArray& loss) {
    next.losses.push_back(loss);
    next.batch.examples += batch.examples;
    if (!delivered) return;  // of another iterator than the loop's, or another part of its batch
    next.batch.epoch = delivered->epoch;
    next.batch.positions.insert(next.batch.positions.end(), delivered->positions.begin(), delivered->positions.end());
    delivered.reset();
  }

  // Positions of which no step came, or none that worked, count as used when the loop goes on: the epoch could not end.
  void commit_without_step(Batch batch) {
    if (data && !batch.positions.empty()) pending.push_back({.batch = std::move(batch), .data = data});
  }

  // Its positions are delivered and without a step again.
  void forget_accumulated() {
    if (accumulated > 0)
      LOG(WARNING) << "the gradients of " << accumulated << " accumulated batches are lost with the step that failed";
    Batch lost = std::exchange(next, {}).batch;
    if (!lost.positions.empty()) {
      if (delivered)
        lost.positions.insert(lost.positions.end(), delivered->positions.begin(), delivered->positions.end());
      delivered = std::move(lost);
    }
    accumulated = 0;
  }

  // Is this step to be left out, because its gradients are not finite? Waits where it has to look.
  bool leaves_out(const std::vector<NDArray>& results, const std::vector<NDArray>& losses) {
    if (scale) return !scale->update(std::isfinite(results[1].item<double>()));
    if (options.on_nan != OnNan::kSkip) return false;
    std::vector<NDArray> all;
    for (const auto& parameter : gradients->trained()) all.push_back(parameter->gradient);
    for (const RowSparse& rows : gradients->of_tables())
      if (rows.values.size() > 0) all.push_back(rows.values);
    const bool finite =
        std::ranges::all_of(losses, [](const NDArray& loss) { return std::isfinite(loss.item<double>()); }) &&
        (all.empty() || std::isfinite(global_norm(all).item<double>()));
    if (!finite && !std::exchange(told_of_nan, true))
      LOG(WARNING) << "step " << progress.steps() + 1 << " is left out: its loss or gradients are not finite";
    return !finite;
  }

  void show_gradients() {
    if (!options.on_gradients) return;
    NamedGradients named;
    for (const auto& parameter : gradients->trained())
      named.emplace_back(names.at(parameter.get()), parameter->gradient);
    for (std::size_t i = 0; i < tables.size(); ++i)
      named.emplace_back(names.at(tables[i].get()), gradients->of_tables()[i]);
    options.on_gradients(named);
  }

  // Pushes the gradients, those that were accumulated before among them.
  void end_step(const std::vector<NDArray>& results) {
    PendingStep step = next;
    step.left_out = leaves_out(results, step.losses);
    if (!step.left_out) {
      show_gradients();
      push_pull(step.batch.examples);
    }
    store->step_end();
    // After the end of the step: the weights that the others' round made, and statistics as they were.
    if (step.left_out) pull();

    next = {};
    accumulated = 0;
    step.done = done_with(values);
    step.data = data;
    progress.count_step();
    step.number = progress.steps();
    step.epoch = progress.epoch();
    pending.push_back(std::move(step));
    // Never more than `steps_ahead` in flight: memory stays bounded, and a failure shows soon.
    while (pending.size() > static_cast<std::size_t>(options.steps_ahead)) finish_oldest();
  }

  // What was accumulated and no step followed is a step.
  void push_accumulated() {
    if (accumulated > 0) end_step(gradients->of_accumulated(next.losses.back()));
  }

  void finish_steps() {
    while (!pending.empty()) finish_oldest();
  }

  // Runs a part of a step. Where it throws, the epoch can go on behind it.
  template <class Work>
  auto working(const Work& work) try {
    return work();
  } catch (...) {
    forget_accumulated();
    throw;
  }

  // The last layers' gradients come first; the first layers' weights are wanted first.
  void push_pull(std::int64_t examples) {
    std::vector<RowPush> rows;
    for (std::size_t i = 0; i < tables.size(); ++i) {
      const RowSparse& gradient = gradients->of_tables()[i];
      rows.push_back({names.at(tables[i].get()), gradient.rows, gradient.values});
    }
    if (!rows.empty()) store->push_rows(rows, examples, static_cast<int>(groups.size()) + 1);
    for (std::size_t i = groups.size(); i-- > 0;)
      store->push_pull(groups[i].pushes, groups[i].pulls, examples, static_cast<int>(groups.size() - i));
  }

  // While this worker waited, others may have gone on: the next gradient is to be of the weights there are now.
  void pull() {
    if (ready) store->backend().pull(pulls, 0);
  }

  // Updates of rows by any worker, and loads: while there are none, a table is what it was.
  std::int64_t row_changes() {
    const StoreReport report = store->report();
    std::int64_t changes = report.loads;
    for (const Histogram& worker : report.row_delays) changes += worker.count();
    return changes;
  }

  // Tables too, in pieces of about 1 MB, of which steps take the rows they need.
  void pull_all() {
    store->backend().pull(pulls, 0);
    if (!tables.empty()) pull_tables();
  }

  void pull_tables() {
    // Counted before the rows are read: what comes in between is read again another time.
    const std::int64_t changes = row_changes();
    if (tables_whole == changes) return;
    tables_whole.reset();
    for (const auto& table : tables) {
      const NDArray& value = table->value;
      const auto width = value.size(1) * static_cast<std::int64_t>(size_of(value.dtype())),
                 piece = std::max<std::int64_t>(1, static_cast<std::int64_t>(Group::kBytes) / width);
      for (std::int64_t begin = 0; begin < value.size(0); begin += piece) {
        const std::int64_t end = std::min(begin + piece, value.size(0));
        store->pull_rows({{names.at(table.get()), row_numbers(begin, end), value.narrow(0, begin, end)}});
      }
    }
    tables_whole = changes;
  }
};

Trainer::Trainer(Module net, const Spec& optimizer, std::shared_ptr<KVStore> store, const TrainerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(net), optimizer, std::move(store), options)) {
  if (options.precision == DType::kFloat16) impl_->scale.emplace();
}

Trainer::~Trainer() = default;

NDArray Trainer::accumulate(const Batch& batch, const Loss& loss_function) {
  Impl& self = *impl_;
  require(!self.options.captured,
          "accumulate() is not for captured steps; set TrainerOptions::captured = false, or "
          "micro_batches in place of accumulate()");
  require(!self.scale,
          "accumulate() is not for steps in float16; set TrainerOptions::precision to bfloat16 or float32, "
          "or micro_batches in place of accumulate()");
  self.prepare(batch.data.shape(), batch.data.dtype());
  return self.working([&] {
    const NDArray loss = self.gradients->accumulate(self.inputs_of(batch), loss_function);
    ++self.accumulated;
    self.add_to_next(batch, loss);
    return loss;
  });
}

NDArray Trainer::step(const Batch& batch, const Loss& loss_function) {
  Impl& self = *impl_;
  self.prepare(batch.data.shape(), batch.data.dtype());
  std::vector<NDArray> inputs = self.inputs_of(batch);
  if (self.scale) inputs.push_back(NDArray::full({1}, self.scale->value(), DType::kFloat32, self.options.device));
  if (self.options.captured && !self.captured)
    self.captured.emplace(
        [&self, loss_function](const std::vector<NDArray>& in) { return (*self.gradients)(in, loss_function); });
  return self.working([&] {
    const std::vector<NDArray> results =
        self.captured ? (*self.captured)(inputs) : (*self.gradients)(inputs, loss_function);
    self.add_to_next(batch, results[0]);
    self.end_step(results);
    return results[0];
  });
}

double Trainer::loss_scale() const { return impl_->scale ? impl_->scale->value() : 1; }

const CapturePlan* Trainer::plan() const { return impl_->captured ? &impl_->captured->plan() : nullptr; }

bool Trainer::every(std::int64_t steps) const {
  require(steps >= 1, "every(", steps, ") asks for a multiple of less than 1");
  return impl_->progress.steps() % steps == 0;
}
std::int64_t Trainer::epoch() const { return impl_->progress.epoch(); }
const Module& Trainer::net() const { return impl_->net; }
KVStore& Trainer::store() { return *impl_->store; }

TrainerReport Trainer::report() {
  TrainerReport report = std::exchange(impl_->sums, {});
  report.epoch = impl_->finished_epoch.value_or(impl_->progress.epoch());
  report.steps = impl_->progress.steps();
  report.seconds = seconds_since(std::exchange(impl_->report_start, Clock::now()));
  if (report.examples > 0) report.loss /= static_cast<double>(report.examples);
  if (report.seconds > 0) report.examples_per_second = static_cast<double>(report.examples) / report.seconds;
  return report;
}

std::ostream& operator<<(std::ostream& out, const TrainerReport& report) {
  char text[128];
  std::snprintf(text, sizeof text, "epoch %lld  step %lld  loss %.4f  %.0f examples/s",
                static_cast<long long>(report.epoch + 1), static_cast<long long>(report.steps), report.loss,
                report.examples_per_second);
  out << text;
  if (report.left_out > 0) out << "  " << report.left_out << " steps left out";
  return out;
}

void Trainer::synchronize() {
  if (impl_->failure) std::rethrow_exception(impl_->failure);
  impl_->finish_steps();
  impl_->store->barrier();
  if (!impl_->ready) return;
  impl_->pull_all();
  for (const NDArray& value : impl_->values) value.wait();
  const auto whole = std::exchange(impl_->tables_whole, std::nullopt);  // unless a pull has failed
  for (const auto& table : impl_->tables) table->value.wait();
  impl_->tables_whole = whole;
}

Trainer::Epoch Trainer::epoch_of(DataIterator& data) { return Epoch(*this, data); }

Trainer::Epoch::Epoch(Trainer& trainer, DataIterator& data) : trainer_(trainer), data_(data) {
  require(trainer_.store().size() == 1 || data_.has_source(), "each of the ", trainer_.store().size(),
          " workers would train on every record of its iterator, which has no source: with .source = "
          "nn::shared_source(store) they share the records, with fixed_source() each keeps all of its own");
  data_.deliver_to(trainer_.impl_->options.device);
  data_.start(trainer_.epoch(), trainer_.impl_->progress.committed(trainer_.epoch()));
  trainer_.impl_->data = &data_;
}

Trainer::Epoch::~Epoch() {
  Impl& self = *trainer_.impl_;
  if (self.data == nullptr) return;
  const bool failed = std::uncaught_exceptions() > 0;
  try {
    if (!failed) self.push_accumulated();
    self.finish_steps();  // what is pushed is not to be trained on again
  } catch (const std::exception& error) {
    LOG(WARNING) << "a step of the epoch that was left failed: " << error.what();
    if (!failed) self.failure = std::current_exception();
  }
  if (self.gradients) self.gradients->forget();
  self.data = nullptr;
  self.delivered.reset();
  self.next = {};
  self.accumulated = 0;
  self.pending.clear();
}

bool Trainer::Epoch::next(Batch& batch) {
  Impl& self = *trainer_.impl_;
  if (self.delivered) self.commit_without_step(*std::exchange(self.delivered, std::nullopt));
  while (!data_.next(batch)) {
    // The others cannot begin without this worker, which has no batch from which to know the network's input.
    if (!self.ready && !trainer_.store().backend().joined_late()) {
      const Shape shape = data_.batch_shape();
      require(shape.ndim() > 0 || trainer_.store().size() == 1, "this worker has no batch left in epoch ",
              trainer_.epoch() + 1,
              ", with which training would go on, and its iterator does not say what its batches look like "
              "(DataIterator::batch_shape)");
      if (shape.ndim() > 0) self.prepare(shape, DType::kFloat32);
    }
    // Others wait for what this worker delivered, so it must be committed before asking what is left.
    self.push_accumulated();
    self.finish_steps();
    if (data_.take_over()) {
      self.pull();
      continue;
    }
    self.data = nullptr;
    self.delivered.reset();
    self.progress.finish_epoch();
    if (self.ready) self.pull_all();
    self.evaluations = 0;
    return false;
  }
  self.delivered = batch;
  self.delivered->data = self.delivered->label = NDArray();
  return true;
}

double Trainer::evaluate(DataIterator& data) { return evaluate(data, nullptr).accuracy; }

Evaluation Trainer::evaluate(DataIterator& data, const Loss& loss) {
  Impl& self = *impl_;
  require(self.ready,
          "evaluate() comes after the first step, which makes the weights or takes them from a checkpoint; "
          "for a checkpoint alone, use load_weights() and nn::evaluate()");
  require(&data != self.data,
          "evaluate() would start the iterator of the running loop anew, and the rest of its epoch "
          "would be left out; give it another one");
  synchronize();
  const Device device = self.options.device;
  const std::int64_t number = kEvaluations + self.progress.epoch() * kEvaluationsOfAnEpoch + self.evaluations++;
  require(self.evaluations < kEvaluationsOfAnEpoch, "evaluate() was called ", self.evaluations, " times in an epoch");
  const RecordingScope no_recording(nullptr);
  data.deliver_to(device);
  data.start(number);
  Batch batch;
  std::int64_t seen = 0;
  do {
    while (data.next(batch)) {
      if (batch.examples > 0) {
        const NDArray scores =
            self.net(batch.data.to(device), {.device = device, .channels_last = self.options.channels_last});
        batch.note = BatchResult::of(scores, batch, loss).text();
      }
      data.commit(batch);
      seen += batch.examples;
    }
  } while (data.take_over());
  std::vector<BatchResult> results;
  for (const std::string& note : self.store->backend().data_notes(number)) results.push_back(BatchResult::parse(note));
  const Evaluation all = sum_of(results);
  require(all.examples >= seen, "evaluate() saw ", seen,
          " examples that its store knows nothing of; make the iterator with nn::shared_source(store)");
  return all;
}

std::string Trainer::checkpoint(const std::string& directory) {
  require(!directory.empty(), "checkpoint() got an empty name for its folder");
  require(impl_->ready, "checkpoint() comes after the first step, which makes the weights");
  synchronize();
  return impl_->progress.checkpoint(directory, impl_->net.parameters(), impl_->scale ? impl_->scale->text() : "",
                                    impl_->input);
}

bool Trainer::resume_if_present(const std::string& directory) {
  require(!impl_->ready, "resume_if_present() comes before the first step");
  const bool resumed =
      impl_->progress.resume_if_present(directory, [this](const Checkpoint& checkpoint, const std::string& path) {
        take_weights(checkpoint, path, impl_->net, impl_->options.seed, impl_->options.device);
        for (const auto& parameter : impl_->net.parameters())
          impl_->resumed.emplace_back(parameter, detail::writes_to(parameter->value));
      });
  const auto saved = LossScale::parse(impl_->progress.loss_scale());
  if (impl_->scale && saved) impl_->scale = saved;
  return resumed;
}

}  // namespace paceline::nn
