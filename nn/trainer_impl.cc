#include "trainer_impl.h"

#include <paceline/detail/layout.h>
#include <paceline/kernel.h>
#include <paceline/log.h>
#include <paceline/ops.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <exception>

#include "checkpoint.h"
#include "evaluation.h"
#include "precision.h"

namespace paceline::nn {
namespace {

TrainerOptions checked(const TrainerOptions& options) {
  require(options.micro_batches >= 1, "micro_batches is ", options.micro_batches, ", expected at least 1");
  require(options.clip_norm >= 0, "clip_norm is ", options.clip_norm, ", expected at least 0");
  require(options.steps_ahead >= 1, "steps_ahead is ", options.steps_ahead, ", expected at least 1");
  require(options.precision == DType::kFloat32 || is_half(options.precision), "precision is ",
          name_of(options.precision), ", expected float32, bfloat16 or float16");
  return options;
}

bool is_finite(const NDArray& array) { return array.size() == 0 || std::isfinite(global_norm({array}).item<double>()); }

const char* kind_of(const Parameter& parameter) { return parameter.statistic ? "the statistic" : "the weight"; }

}  // namespace

Trainer::Impl::Impl(Module trained, const Spec& spec, std::shared_ptr<KVStore> kv, const TrainerOptions& given)
    : net(std::move(trained)),
      options(checked(given)),
      store(std::move(kv)),
      progress(store, spec, given.notes),
      multipliers(Multipliers::parse(Spec(spec).options)) {}

void Trainer::Impl::throw_failure() {
  if (!failure) return;
  failure_thrown = true;
  std::rethrow_exception(failure);
}

void Trainer::Impl::require_same_frozen() const {
  const auto refuse = [&](const Parameter& parameter, const char* what) {
    throw InvalidArgument(str("'", names.at(&parameter), "' was ", what,
                              " after the first step, when a Trainer and its store know already what trains; save a "
                              "checkpoint, and load_weights() it where a new store and Trainer begin"));
  };
  for (const auto& [parameter, name] : names) {
    const bool was = std::ranges::find(kept, parameter, &std::shared_ptr<Parameter>::get) != kept.end();
    if (parameter->frozen != was) refuse(*parameter, was ? "made to train" : "frozen");
  }
}

void Trainer::Impl::prepare(const Shape& data_shape, DType dtype) {
  throw_failure();
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
      LOG(WARNING) << pattern << " of the optimizer fits no parameter of the network; net.describe() shows their names";
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

TableSpec Trainer::Impl::spec_of(const Parameter& table) const {
  return {.name = names.at(&table),
          .rows = table.value.size(0),
          .width = table.value.size(1),
          .dtype = table.value.dtype()};
}

std::shared_ptr<const RowSource> Trainer::Impl::row_source() {
  if (tables.empty()) return nullptr;
  return std::make_shared<const RowSource>([kv = store, known = names, soonest = static_cast<int>(groups.size()) + 1](
                                               const Parameter& table, const NDArray& numbers, const NDArray& rows) {
    kv->pull_rows({{known.at(&table), numbers, rows}}, soonest);
  });
}

void Trainer::Impl::require_weights_as_resumed() const {
  for (const auto& [parameter, writes] : resumed)
    require(parameter->frozen || parameter->statistic || detail::writes_to(parameter->value) == writes, "'",
            parameter->name,
            "' was written between resume_if_present() and the first step, which would put the checkpoint's weights "
            "back; load weights without resuming");
}

void Trainer::Impl::finish_oldest() {
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

void Trainer::Impl::found_nan(std::int64_t step, double loss) {
  if (options.on_nan == OnNan::kIgnore) return;
  // Where an exception ends the loop, it says so already.
  if (told_of_nan && (options.on_nan != OnNan::kStop || std::uncaught_exceptions() > 0)) return;
  told_of_nan = true;
  std::string first;
  const auto examine = [&](const char* what, const Parameter& parameter, const NDArray& array) {
    if (first.empty() && !is_finite(array)) first = str(what, " '", names.at(&parameter), "'");
  };
  for (const auto& parameter : net.parameters()) {
    // The network has the rows of a table only after a pull.
    if (parameter->frozen || parameter->is_row_sparse()) continue;
    examine(kind_of(*parameter), *parameter, parameter->value);
    if (!parameter->statistic) examine("the gradient of", *parameter, parameter->gradient);
  }
  for (std::size_t i = 0; i < gradients->of_tables().size(); ++i)
    examine("the gradient of", *tables[i], gradients->of_tables()[i].values);
  const std::string where = first.empty() ? str("all gradients, trained weights and statistics",
                                                tables.empty() ? "" : " outside of tables", " are finite now")
                                          : "the first that is not finite is " + first;
  const std::string text =
      str("the loss of step ", step, " is ", loss, "; ", where,
          "; lower the learning rate, set clip_norm, or choose another on_nan (warn, stop, skip, ignore)");
  if (options.on_nan == OnNan::kStop) throw Error(text);
  LOG(WARNING) << text;
}

void Trainer::Impl::require_finite_weights() const {
  for (const auto& parameter : net.parameters())
    if (!parameter->frozen && !is_finite(parameter->value))
      throw Error(str(kind_of(*parameter), " '", names.at(parameter.get()),
                      "' is not finite, so the checkpoint of before stays; go on from it with a lower learning rate"));
}

std::vector<NDArray> Trainer::Impl::inputs_of(const Batch& batch) {
  require_counted(batch);
  const Device device = options.device;
  if (call.is_none()) call = NDArray({1}, DType::kInt64, device);
  constexpr std::int64_t kAccumulated = std::int64_t{1} << 40;
  call.fill(static_cast<double>(progress.steps() * store->size() + store->rank() + accumulated * kAccumulated));
  return {batch.data.to(device), batch.label.to(device), call};
}

void Trainer::Impl::add_to_next(const Batch& batch, const NDArray& loss) {
  next.losses.push_back(loss);
  next.batch.examples += batch.examples;
  if (!delivered) return;  // of another iterator than the loop's, or another part of its batch
  next.batch.epoch = delivered->epoch;
  next.batch.positions.insert(next.batch.positions.end(), delivered->positions.begin(), delivered->positions.end());
  delivered.reset();
}

void Trainer::Impl::commit_without_step(Batch batch) {
  if (data && !batch.positions.empty()) pending.push_back({.batch = std::move(batch), .data = data});
}

void Trainer::Impl::forget_accumulated() {
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

bool Trainer::Impl::leaves_out(const std::vector<NDArray>& results, const std::vector<NDArray>& losses) {
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

void Trainer::Impl::show_gradients() {
  if (!options.on_gradients) return;
  NamedGradients named;
  for (const auto& parameter : gradients->trained()) named.emplace_back(names.at(parameter.get()), parameter->gradient);
  for (std::size_t i = 0; i < tables.size(); ++i)
    named.emplace_back(names.at(tables[i].get()), gradients->of_tables()[i]);
  options.on_gradients(named);
}

void Trainer::Impl::end_step(const std::vector<NDArray>& results) {
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

void Trainer::Impl::push_accumulated() {
  if (accumulated > 0) end_step(gradients->of_accumulated(next.losses.back()));
}

void Trainer::Impl::finish_steps() {
  while (!pending.empty()) finish_oldest();
}

void Trainer::Impl::push_pull(std::int64_t examples) {
  std::vector<RowPush> rows;
  for (std::size_t i = 0; i < tables.size(); ++i) {
    const RowSparse& gradient = gradients->of_tables()[i];
    rows.push_back({names.at(tables[i].get()), gradient.rows, gradient.values});
  }
  if (!rows.empty()) store->push_rows(rows, examples, static_cast<int>(groups.size()) + 1);
  for (std::size_t i = groups.size(); i-- > 0;)
    store->push_pull(groups[i].pushes, groups[i].pulls, examples, static_cast<int>(groups.size() - i));
}

void Trainer::Impl::pull() {
  if (ready) store->backend().pull(pulls, 0);
}

std::int64_t Trainer::Impl::row_changes() {
  const StoreReport report = store->report();
  std::int64_t changes = report.loads;
  for (const Histogram& worker : report.row_delays) changes += worker.count();
  return changes;
}

void Trainer::Impl::pull_all() {
  store->backend().pull(pulls, 0);
  if (!tables.empty()) pull_tables();
}

void Trainer::Impl::pull_tables() {
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

}  // namespace paceline::nn
