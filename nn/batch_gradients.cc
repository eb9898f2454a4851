#include "batch_gradients.h"

#include <paceline/autograd.h>
#include <paceline/ops.h>

#include <algorithm>
#include <deque>
#include <span>
#include <utility>

#include "pipeline.h"
#include "precision.h"
#include "row_gradients.h"

namespace paceline::nn {

Variable done_with(const std::vector<NDArray>& arrays) {
  std::vector<Variable> reads;
  for (const NDArray& array : arrays) reads.push_back(array.variable());
  const Variable done = default_engine().new_variable();
  default_engine().push({.name = "step_done", .at_once = true}, reads, std::span(&done, 1), [](TaskContext&) {});
  return done;
}

BatchGradients::BatchGradients(const Module& net, const TrainerOptions& options, std::shared_ptr<const RowSource> rows)
    : net_(net), options_(options), rows_(std::move(rows)) {
  for (const auto& parameter : net.parameters()) {
    devices_.insert(parameter->value.device());
    if (parameter->frozen) continue;
    if (parameter->is_row_sparse()) tables_.push_back(parameter);
    if (parameter->gradient.is_none()) continue;
    trained_.push_back(parameter);
    gradients_.push_back(parameter->gradient);
  }
}

NDArray BatchGradients::accumulate(const std::vector<NDArray>& inputs, const Loss& loss_function) try {
  const PipelineLayer* const pipeline = PipelineLayer::of(net_);
  const Module& stages = pipeline ? pipeline->body() : net_;
  const std::int64_t examples = inputs[0].size(0),
                     wanted = std::int64_t{options_.micro_batches} * (pipeline ? pipeline->micro_batches() : 1),
                     parts = std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(examples, 1));
  require(inputs[1].ndim() > 0 && inputs[1].size(0) == examples, "the batch has the data ", inputs[0].describe(),
          " and the label ", inputs[1].describe(), ", expected as many examples in both");
  const NDArray scale = inputs.size() > 3 ? inputs[3] : NDArray();
  const auto casts = is_half(options_.precision) ? std::make_shared<CastWeights>() : nullptr;
  NDArray total;
  table_parts_.resize(tables_.size());
  std::deque<Variable> running;
  for (std::int64_t i = 0; i < parts; ++i) {
    // One more than have a device each: their memory is taken when they are pushed.
    if (running.size() > devices_.size()) {
      default_engine().wait_unused(running.front());
      running.pop_front();
    }
    const std::int64_t begin = examples * i / parts, end = examples * (i + 1) / parts;
    const Part part{inputs[0].narrow(0, begin, end), inputs[1].narrow(0, begin, end), call_of_part(inputs[2], i, parts),
                    parts == 1 ? 1 : static_cast<double>(end - begin) / static_cast<double>(examples),
                    std::exchange(accumulates_, true)};
    const NDArray loss = run(stages, part, scale, casts, loss_function, table_parts_);
    total = i == 0 ? loss : total + loss;
    if (parts > 1 && !options_.captured) running.push_back(done_with(gradients_));
  }
  return total;
} catch (...) {
  forget();
  throw;
}

void BatchGradients::forget() {
  accumulates_ = false;
  table_parts_.clear();
}

std::vector<NDArray> BatchGradients::operator()(const std::vector<NDArray>& inputs, const Loss& loss_function) {
  const NDArray total = accumulate(inputs, loss_function);
  return of_accumulated(total, inputs.size() > 3 ? inputs[3] : NDArray());
}

std::vector<NDArray> BatchGradients::of_accumulated(const NDArray& total, const NDArray& scale) {
  accumulates_ = false;
  const std::vector<std::vector<Gradient>> tables = std::exchange(table_parts_, {});
  of_tables_.clear();
  std::vector<NDArray> gradients = gradients_;
  for (std::size_t i = 0; i < tables_.size(); ++i) {
    of_tables_.push_back(sum_of_rows(*tables_[i], tables[i]));
    if (options_.clip_norm == 0 && scale.is_none() && !options_.on_gradients) continue;
    of_tables_.back() = with_each_row_once(of_tables_.back());
    gradients.push_back(of_tables_.back().values);
  }
  if (!scale.is_none()) {
    const NDArray factor = 1 / scale;
    for (const NDArray& gradient : gradients) gradient *= cast(factor, gradient.dtype()).to(gradient.device());
  }
  NDArray norm;
  if (options_.clip_norm > 0)
    norm = clip_global_norm(gradients, options_.clip_norm);
  else if (!scale.is_none())
    norm = global_norm(gradients);
  return scale.is_none() ? std::vector{total} : std::vector{total, norm};
}

NDArray BatchGradients::run(const Module& module, const Part& part, const NDArray& scale,
                            const std::shared_ptr<CastWeights>& casts, const Loss& loss_function,
                            std::vector<std::vector<Gradient>>& tables) const {
  Tape tape;
  for (const auto& parameter : trained_) tape.watch(parameter->value, parameter->gradient);
  for (const auto& table : tables_) tape.watch_sparse(table->value);
  const Context context{.training = true,
                        .seed = options_.seed,
                        .call = part.call,
                        .device = options_.device,
                        .compute = options_.precision,
                        .channels_last = options_.channels_last,
                        .casts = casts,
                        .rows = rows_};
  const NDArray output = in_float(module(part.data, context));
  NDArray loss = loss_function(output, part.label.to(output.device()));
  if (part.weight != 1) loss = loss * part.weight;
  tape.backward(scale.is_none() ? loss : loss * cast(scale, loss.dtype()).to(loss.device()),
                {.accumulate = part.accumulate});
  for (std::size_t i = 0; i < tables_.size(); ++i) tables[i].push_back(tape.sparse_gradient(tables_[i]->value));
  return loss;
}

}  // namespace paceline::nn
