#include <paceline/detail/layout.h>
#include <paceline/log.h>
#include <paceline/trainer.h>

#include <algorithm>
#include <cstdio>
#include <ostream>
#include <utility>

#include "checkpoint.h"
#include "evaluation.h"
#include "trainer_impl.h"

namespace paceline::nn {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Evaluations are epochs from here on.
constexpr std::int64_t kEvaluations = std::int64_t{1} << 40, kEvaluationsOfAnEpoch = std::int64_t{1} << 16;

}  // namespace

Trainer::Trainer(Module net, const Spec& optimizer, std::shared_ptr<KVStore> store, const TrainerOptions& options)
    : impl_(std::make_unique<Impl>(std::move(net), optimizer, std::move(store), options)) {
  if (options.precision == DType::kFloat16) impl_->scale.emplace();
}

Trainer::~Trainer() {
  if (!impl_->failure || impl_->failure_thrown) return;
  try {
    std::rethrow_exception(impl_->failure);
  } catch (const std::exception& error) {
    LOG(WARNING) << "a step of the epoch that was left failed: " << error.what();
  }
}

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
  const double waited = report.seconds > 0 ? 100 * report.waited_for_data / report.seconds : 0;
  if (waited >= 1) {
    std::snprintf(text, sizeof text, "  waited %.0f %% for data", waited);
    out << text;
  }
  return out;
}

void Trainer::synchronize() {
  impl_->throw_failure();
  require(
      impl_->data == nullptr || !impl_->data->is_dynamic() || impl_->store->size() == 1,
      "synchronize(), checkpoint() and evaluate() come between two epochs where the balance is dynamic: within one, "
      "workers make different numbers of steps, and would wait for each other for ever");
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
  data_.start(trainer_.epoch(), trainer_.impl_->progress.begin_epoch(data_.order()));
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
    if (failed)
      LOG(WARNING) << "a step of the epoch that was left failed: " << error.what();
    else
      self.failure = std::current_exception();
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
  const auto next_batch = [&] {
    const Clock::time_point began = Clock::now();
    const bool found = data_.next(batch);
    self.sums.waited_for_data += seconds_since(began);
    return found;
  };
  while (!next_batch()) {
    // The steps and the accumulated batches of the piece before stay as they are.
    if (self.ready && data_.is_dynamic() && data_.take_over(false)) continue;
    // The others cannot begin without this worker, which has no batch from which to know the network's input. A worker
    // that joined late keeps nobody waiting, but it takes part in their evaluation and their checkpoint.
    if (!self.ready) {
      const Shape shape = data_.batch_shape();
      require(shape.ndim() > 0 || trainer_.store().size() == 1 || trainer_.store().backend().joined_late(),
              "this worker has no batch in epoch ", trainer_.epoch() + 1,
              " yet, or none left, and its iterator does not say what its batches look like "
              "(DataIterator::batch_shape), which must be known before the others can train");
      if (shape.ndim() > 0) self.prepare(shape, data_.batch_dtype());
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
  const std::int64_t number = kEvaluations + self.progress.epoch() * kEvaluationsOfAnEpoch + self.evaluations;
  require(self.evaluations + 1 < kEvaluationsOfAnEpoch, "evaluate() was called ", self.evaluations + 1,
          " times in an epoch");
  const RecordingScope no_recording(nullptr);
  data.deliver_to(device);
  data.start(number);
  ++self.evaluations;  // not before start(), which throws where the data cannot be opened
  Batch batch;
  std::int64_t seen = 0;
  do {
    while (data.next(batch)) {
      batch.note.clear();  // an iterator may leave that of the batch before
      require_counted(batch);
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
  if (impl_->options.on_nan == OnNan::kStop) impl_->require_finite_weights();
  return impl_->progress.checkpoint(directory, impl_->net.parameters(), impl_->scale ? impl_->scale->text() : "",
                                    impl_->input);
}

bool Trainer::resume_if_present(const std::string& directory, const CheckNotes& check) {
  require(!impl_->ready, "resume_if_present() comes before the first step");
  const bool resumed = impl_->progress.resume_if_present(
      directory, check, [this](const Checkpoint& checkpoint, const std::string& path) {
        take_weights(checkpoint, path, impl_->net, impl_->options.seed, impl_->options.device);
        for (const auto& parameter : impl_->net.parameters())
          impl_->resumed.emplace_back(parameter, detail::writes_to(parameter->value));
      });
  const auto saved = LossScale::parse(impl_->progress.loss_scale());
  if (impl_->scale && saved) impl_->scale = saved;
  return resumed;
}

}  // namespace paceline::nn
