#include "capture/recording.h"

#include <paceline/detail/array_builder.h>

namespace paceline::detail {

CaptureListener*& CaptureListener::current() {
  thread_local CaptureListener* listener = nullptr;
  return listener;
}

Recording::Recording(const std::vector<NDArray>& inputs) : inputs_(inputs), outer_(current()) {
  program_.engine = &inputs[0].engine();
  program_.device = inputs[0].device();
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const auto& storage = ArrayBuilder::storage(inputs[i]);
    blocks_[storage.get()] = static_cast<int>(i);
    seen_.push_back(storage);
    program_.blocks.push_back(
        {.kind = Block::Kind::kInput, .bytes = inputs[i].bytes(), .index = static_cast<int>(i), .fixed = nullptr});
  }
  current() = this;
}

Recording::~Recording() { current() = outer_; }

void Recording::refuse(const char* what) {
  throw InvalidArgument(str("[capture] ", what,
                            ", which a replay cannot repeat; leave it out of the captured function, "
                            "or pass what changes as an input"));
}

int Recording::block_of(const NDArray& array) {
  const std::shared_ptr<Storage>& storage = ArrayBuilder::storage(array);
  const auto [found, added] = blocks_.try_emplace(storage.get(), static_cast<int>(program_.blocks.size()));
  if (added) {
    Block block{.bytes = storage->bytes(), .fixed = nullptr};
    if (!made_.count(storage.get())) {
      block.kind = Block::Kind::kFixed;
      block.fixed = storage;
    }
    program_.blocks.push_back(std::move(block));
    seen_.push_back(storage);
  }
  return found->second;
}

Operand Recording::operand(const NDArray& array) {
  const int block = block_of(array);
  std::size_t offset = static_cast<std::size_t>(ArrayBuilder::offset(array)) * size_of(array.dtype());
  bool whole = covers_storage(array);
  if (program_.blocks[static_cast<std::size_t>(block)].kind == Block::Kind::kInput) {
    const NDArray& input = inputs_[static_cast<std::size_t>(block)];
    offset -= static_cast<std::size_t>(ArrayBuilder::offset(input)) * size_of(input.dtype());
    whole = offset == 0 && array.bytes() == input.bytes() && is_dense(array.shape(), array.strides());
  }
  return {block, offset, array.shape(), array.strides(), array.dtype(), whole};
}

void Recording::filled(const NDArray& array) {
  Block& block = program_.blocks[static_cast<std::size_t>(block_of(array))];
  block.kind = Block::Kind::kFixed;
  block.fixed = ArrayBuilder::storage(array);
}

void Recording::launched(const Kernel& kernel, KernelFunction function, References inputs, References outputs,
                         const std::shared_ptr<const void>& attributes, const LaunchOptions& options) {
  if (outputs[0]->device() != program_.device || &outputs[0]->engine() != program_.engine)
    refuse("it computes on more than one device or engine");
  KernelCall call{.kernel = kernel,
                  .function = function,
                  .attributes = attributes,
                  .seed = options.seed,
                  .inputs = {},
                  .outputs = {}};
  for (const NDArray* array : inputs) {
    call.inputs.push_back(operand(*array));
    const int index = call.inputs.back().block;
    const Block& block = program_.blocks[static_cast<std::size_t>(index)];
    if (block.kind == Block::Kind::kIntermediate && block.bytes > 0 && !written_.count(index))
      refuse("it reads an array that no operator has written");
  }
  for (const NDArray* array : outputs) {
    call.outputs.push_back(operand(*array));
    written_.insert(call.outputs.back().block);
    const Block& block = program_.blocks[static_cast<std::size_t>(call.outputs.back().block)];
    if (block.kind == Block::Kind::kFixed && made_.count(block.fixed.get()))
      refuse("it writes an array that it made of values from the host");
  }
  if (options.workspace_bytes > 0) {
    call.workspace = static_cast<int>(program_.blocks.size());
    program_.blocks.push_back({.bytes = options.workspace_bytes, .fixed = nullptr});
    seen_.emplace_back();
  }
  ++program_.report.launches;
  program_.calls.push_back(std::move(call));
}

Program Recording::finish(const std::vector<NDArray>& results, std::vector<Operand>& places) {
  int outputs = 0;
  std::vector<long> handles(program_.blocks.size());  // of results
  for (const NDArray& result : results) {
    if (result.is_none()) refuse("one of its results is none");
    places.push_back(operand(result));
    handles.resize(program_.blocks.size());
    ++handles[static_cast<std::size_t>(places.back().block)];
    Block& block = program_.blocks[static_cast<std::size_t>(places.back().block)];
    if (block.kind != Block::Kind::kIntermediate) continue;
    block.kind = Block::Kind::kOutput;
    block.index = outputs++;
  }
  for (std::size_t b = 0; b < seen_.size(); ++b) {
    Block& block = program_.blocks[b];
    std::shared_ptr<Storage> storage = seen_[b].lock();
    if (!storage) continue;
    storage->engine().wait_unused(storage->variable());
    const long others = storage.use_count() - 1 - (block.fixed ? 1 : 0) - handles[b];
    if (block.kind == Block::Kind::kFixed && others == 0 && handles[b] == 0 && !made_.count(storage.get()))
      refuse("it replaces an array that it took from elsewhere, or lets go of it");
    if (block.kind == Block::Kind::kOutput && others > 0) refuse("it keeps an array that it returns");
    if (block.kind != Block::Kind::kIntermediate || others == 0) continue;
    // Somebody beside the tasks holds it: they will want to see what later runs write there.
    block.kind = Block::Kind::kFixed;
    block.fixed = std::move(storage);
  }
  for (const Block& block : program_.blocks)
    if (block.kind == Block::Kind::kIntermediate) program_.report.eager_bytes += static_cast<std::int64_t>(block.bytes);
  current() = outer_;
  return std::move(program_);
}

}  // namespace paceline::detail
