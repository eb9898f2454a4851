#include "capture/replay.h"

#include "launch.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/elementwise.h>
#include <paceline/detail/run_ahead.h>

#include <algorithm>
#include <set>

namespace paceline::detail {
namespace {

constexpr std::int64_t kPiece = 8192;  // elements: a few of these stay in a core's own cache

constexpr std::size_t kOutputSets = 4;  // who holds the results of more runs gets new memory
constexpr std::size_t kMostKept = 16;   // sets of addresses of a part

// Never none: the arena's variable is also what keeps the runs in order.
NDArray bytes_on(const Program& program, std::size_t bytes) {
  return NDArray({static_cast<std::int64_t>(std::max<std::size_t>(bytes, 1))}, DType::kUint8, program.device,
                 *program.engine);
}

Tensor piece_of(const Tensor& tensor, std::int64_t total, std::int64_t begin, std::int64_t count) {
  if (tensor.size() != total) return {tensor.data, {1}, {1}, tensor.dtype};
  return {
      tensor.as<std::byte>() + begin * static_cast<std::int64_t>(size_of(tensor.dtype)), {count}, {1}, tensor.dtype};
}

}  // namespace

Replay::Replay(Program program, std::vector<Operand> places, const std::vector<NDArray>& results)
    : program_(std::move(program)), places_(std::move(places)) {
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const bool fixed = program_.blocks[static_cast<std::size_t>(places_[i].block)].kind == Block::Kind::kFixed;
    fixed_results_.push_back(fixed ? results[i] : NDArray());
  }
  arena_ = bytes_on(program_, program_.arena_bytes);
  constants_ = bytes_on(program_, program_.constant_bytes);
  for (const KernelCall& call : program_.calls) tensors_.push_back(tensors(call));
  for (const Block& block : program_.blocks)
    if (block.kind == Block::Kind::kOutput) output_bytes_.emplace_back();
  for (const Block& block : program_.blocks)
    if (block.kind == Block::Kind::kOutput)
      output_bytes_[static_cast<std::size_t>(block.index)] = {static_cast<std::int64_t>(block.bytes)};

  std::set<int> touched;  // results: what earlier calls left in their memory is never read
  std::size_t begin = 0;
  for (const std::size_t end : program_.tasks) {
    Part part{begin, end, {}, {}, {}, {}};
    std::set<int> reads, writes;
    std::set<int> made;  // wholly written before: reading them here is no read of older contents
    for (std::size_t i = program_.chains[begin].begin; i < program_.chains[end - 1].end; ++i) {
      const KernelCall& call = program_.calls[i];
      const auto add = [&](const Operand& operand, std::size_t tensor, std::set<int>& used) {
        const Block& block = program_.blocks[static_cast<std::size_t>(operand.block)];
        if (!block.outlives_the_run()) return;
        const bool older =
            !made.count(operand.block) && (block.kind != Block::Kind::kOutput || touched.count(operand.block) > 0);
        if (&used == &writes || older) used.insert(operand.block);
        if (block.kind != Block::Kind::kFixed) part.moving.push_back({i, tensor, operand.block, operand.offset});
      };
      for (std::size_t k = 0; k < call.inputs.size(); ++k) add(call.inputs[k], k, reads);
      for (std::size_t k = 0; k < call.outputs.size(); ++k) {
        add(call.outputs[k], call.inputs.size() + k, writes);
        if (!call.outputs[k].whole) add(call.outputs[k], call.inputs.size() + k, reads);
      }
      for (const Operand& out : call.outputs)
        if (out.whole) made.insert(out.block);
    }
    part.reads.assign(reads.begin(), reads.end());
    part.writes.assign(writes.begin(), writes.end());
    touched.insert(writes.begin(), writes.end());
    parts_.push_back(std::move(part));
    begin = end;
  }
  compute_constants();
}

void* Replay::address(const Operand& operand) const {
  const Block& block = program_.blocks[static_cast<std::size_t>(operand.block)];
  std::byte* start = nullptr;
  switch (block.kind) {
    case Block::Kind::kIntermediate: start = static_cast<std::byte*>(ArrayBuilder::data(arena_)) + block.offset; break;
    case Block::Kind::kConstant: start = static_cast<std::byte*>(ArrayBuilder::data(constants_)) + block.offset; break;
    case Block::Kind::kFixed: start = static_cast<std::byte*>(block.fixed->data()); break;
    default: return nullptr;  // set for each run
  }
  return start + operand.offset;
}

std::vector<Tensor> Replay::tensors(const KernelCall& call) const {
  std::vector<Tensor> result;
  for (const std::vector<Operand>* operands : {&call.inputs, &call.outputs})
    for (const Operand& operand : *operands)
      result.push_back({address(operand), operand.shape, operand.strides, operand.dtype});
  return result;
}

void Replay::compute_constants() {
  for (const KernelCall& call : program_.once) {
    std::vector<NDArray> arrays;
    for (const std::vector<Operand>* operands : {&call.inputs, &call.outputs})
      for (const Operand& operand : *operands) {
        const Block& block = program_.blocks[static_cast<std::size_t>(operand.block)];
        arrays.push_back(ArrayBuilder::view(
            constants_, static_cast<std::int64_t>((block.offset + operand.offset) / size_of(operand.dtype)),
            operand.shape, operand.strides, operand.dtype));
      }
    const std::span<const NDArray> all(arrays);
    launch(call.kernel, all.first(call.inputs.size()), all.subspan(call.inputs.size()), call.attributes,
           {.seed = call.seed});
  }
}

std::shared_ptr<const std::vector<NDArray>> Replay::outputs() {
  const auto make = [&](std::size_t index) {
    return NDArray(output_bytes_[index], DType::kUint8, program_.device, *program_.engine);
  };
  const auto is_free = [](const NDArray& array) {
    // Copying the pointer orders later writes behind the release of the last view.
    const std::shared_ptr<Storage> held = ArrayBuilder::storage(array);
    return held.use_count() == 2;
  };
  const auto free = std::find_if(output_sets_.rbegin(), output_sets_.rend(),
                                 [&](const auto& set) { return std::ranges::all_of(*set, is_free); });
  if (free != output_sets_.rend()) {
    std::rotate(free.base() - 1, free.base(), output_sets_.end());
    return output_sets_.back();
  }
  std::vector<NDArray> set(output_bytes_.size());
  if (output_sets_.size() == kOutputSets) {
    for (std::size_t i = 0; i < set.size(); ++i)
      if (const NDArray& array = (*output_sets_.front())[i]; is_free(array)) set[i] = array;
    output_sets_.erase(output_sets_.begin());
  }
  for (std::size_t i = 0; i < set.size(); ++i)
    if (set[i].is_none()) set[i] = make(i);
  return output_sets_.emplace_back(std::make_shared<const std::vector<NDArray>>(std::move(set)));
}

const std::shared_ptr<Storage>& Replay::storage(int index, const Arrays& arrays) const {
  const Block& block = program_.blocks[static_cast<std::size_t>(index)];
  return block.kind == Block::Kind::kFixed ? block.fixed : ArrayBuilder::storage(arrays.of(block));
}

bool Replay::is_part(int index, const Arrays& arrays) const {
  const Block& block = program_.blocks[static_cast<std::size_t>(index)];
  return block.kind == Block::Kind::kInput && !covers_storage(arrays.of(block));
}

bool Replay::takes(const std::vector<NDArray>& inputs) const {
  return std::none_of(inputs.begin(), inputs.end(), [&](const NDArray& input) {
    return std::any_of(program_.blocks.begin(), program_.blocks.end(),
                       [&](const Block& block) { return block.fixed == ArrayBuilder::storage(input); });
  });
}

std::vector<NDArray> Replay::run(const std::vector<NDArray>& inputs) {
  const auto arrays = std::make_shared<Arrays>();
  arrays->inputs = inputs;
  arrays->outputs = outputs();
  for (std::size_t i = 0; i < parts_.size(); ++i) push(parts_[i], i == 0, arrays);

  std::vector<NDArray> results;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    const Operand& place = places_[i];
    const Block& block = program_.blocks[static_cast<std::size_t>(place.block)];
    if (block.kind == Block::Kind::kFixed) {
      results.push_back(fixed_results_[i]);
      continue;
    }
    results.push_back(place.of(arrays->of(block)));
  }
  return results;
}

void Replay::push(Part& part, bool first, const std::shared_ptr<const Arrays>& arrays) {
  std::vector<Variable> reads, writes;
  for (const int block : part.reads) reads.push_back(storage(block, *arrays)->variable());
  for (const int block : part.writes) {
    writes.push_back(storage(block, *arrays)->variable());
    if (is_part(block, *arrays)) reads.push_back(writes.back());
  }
  reads.push_back(constants_.variable());
  if (!first) reads.push_back(arena_.variable());
  writes.push_back(arena_.variable());
  std::int64_t new_bytes = 0;
  if (first)
    for (const NDArray& output : *arrays->outputs)
      if (output.variable().version() == 0) new_bytes += static_cast<std::int64_t>(output.bytes());
  program_.engine->push({"captured", program_.device}, reads, writes,
                        [ahead = RunAhead(new_bytes, program_.device), self = shared_from_this(), &part, first,
                         arrays](TaskContext& task) {
                          if (task.device.kind != DeviceKind::kSim)
                            return self->execute(part, first, *arrays,
                                                 task.device.kind == DeviceKind::kCuda ? task.stream : nullptr);
                          task.stream->enqueue([self = self.get(), &part, first, arrays = arrays.get()] {
                            try {
                              self->execute(part, first, *arrays, nullptr);
                            } catch (...) {
                              for (const int block : part.writes)
                                self->storage(block, *arrays)->set_failure(std::current_exception());
                              ArrayBuilder::storage(self->arena_)->set_failure(std::current_exception());
                            }
                          });
                        });
}

void Replay::execute(Part& part, bool first, const Arrays& arrays, Stream* stream) {
  for (const int block : part.reads) storage(block, arrays)->throw_failure();
  for (const int block : part.writes)
    if (is_part(block, arrays)) storage(block, arrays)->throw_failure();
  if (!first) ArrayBuilder::storage(arena_)->throw_failure();
  for (const Moving& moving : part.moving)
    tensors_[moving.call][moving.tensor].data =
        static_cast<std::byte*>(
            ArrayBuilder::data(arrays.of(program_.blocks[static_cast<std::size_t>(moving.block)]))) +
        moving.offset;
  if (stream)
    issue(part, *stream);
  else
    for (std::size_t c = part.begin; c < part.end; ++c) execute(program_.chains[c], nullptr);
  for (const int block : part.writes) {
    Storage& written = *storage(block, arrays);
    if (written.failure()) written.set_failure(nullptr);
  }
  if (ArrayBuilder::storage(arena_)->failure()) ArrayBuilder::storage(arena_)->set_failure(nullptr);
}

void Replay::issue(Part& part, Stream& stream) {
  const auto chains = [&] {
    for (std::size_t c = part.begin; c < part.end; ++c) execute(program_.chains[c], stream.native());
  };
  std::vector<void*> addresses;
  for (const Moving& moving : part.moving) addresses.push_back(tensors_[moving.call][moving.tensor].data);
  DeviceRuntime& device = runtime(program_.device);
  const auto known = std::ranges::find(part.kept, addresses, &Part::Kept::addresses);
  if (known == part.kept.end()) {
    if (part.kept.size() == kMostKept) {
      // It may still run.
      if (const std::shared_ptr<RecordedWork> work = std::move(part.kept.front().work))
        device.when_done(stream, [work](const std::exception_ptr&) {});
      part.kept.erase(part.kept.begin());
    }
    part.kept.push_back({std::move(addresses), nullptr});
    return chains();
  }
  std::rotate(known, known + 1, part.kept.end());
  std::unique_ptr<RecordedWork>& work = part.kept.back().work;
  if (!work && !part.cannot_be_kept) {
    work = device.keep_work(stream, chains);
    part.cannot_be_kept = !work;
  }
  work ? work->issue(stream) : chains();
}

KernelContext Replay::context(const KernelCall& call, void* native_stream) const {
  void* const workspace = call.workspace < 0 ? nullptr : address({call.workspace, 0, {}, {}, DType::kUint8, false});
  return {program_.device, native_stream, workspace, call.seed};
}

void Replay::execute(const Chain& chain, void* native_stream) const {
  if (chain.end - chain.begin == 1 || program_.device.kind == DeviceKind::kCuda) {
    for (std::size_t i = chain.begin; i < chain.end; ++i) {
      const KernelCall& call = program_.calls[i];
      const std::span<const Tensor> all(tensors_[i]);
      call.function(context(call, native_stream), all.first(call.inputs.size()), all.subspan(call.inputs.size()),
                    call.attributes.get());
    }
    return;
  }
  const std::int64_t total = program_.calls[chain.begin].outputs[0].shape.size();
  parallel_ranges(total, kElementsPerThread, [&](std::int64_t range, std::int64_t range_end) {
    std::vector<Tensor> piece;
    for (std::int64_t begin = range; begin < range_end; begin += kPiece) {
      const std::int64_t count = std::min(kPiece, range_end - begin);
      for (std::size_t i = chain.begin; i < chain.end; ++i) {
        const KernelCall& call = program_.calls[i];
        piece.clear();
        for (const Tensor& tensor : tensors_[i]) piece.push_back(piece_of(tensor, total, begin, count));
        const std::span<const Tensor> all(piece);
        call.function(context(call, nullptr), all.first(call.inputs.size()), all.subspan(call.inputs.size()),
                      call.attributes.get());
      }
    }
  });
}

}  // namespace paceline::detail
