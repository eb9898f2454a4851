#include "capture/program.h"
#include "copy.h"

#include <paceline/detail/array_builder.h>

#include <algorithm>
#include <set>

namespace paceline::detail {
namespace {

constexpr std::size_t kLargestConstant = std::size_t{1} << 20;  // larger ones cost more as memory than as work
constexpr std::size_t kAlignment = 64;

bool touches(const std::vector<Operand>& operands, int block) {
  return std::any_of(operands.begin(), operands.end(), [&](const Operand& x) { return x.block == block; });
}

std::size_t aligned(std::size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Do all of the operands that lie in the block of `in` read the same places in the same order?
bool one_view(const std::vector<Operand>& operands, const Operand& in) {
  return std::all_of(operands.begin(), operands.end(), [&](const Operand& x) {
    return x.block != in.block ||
           (x.offset == in.offset && x.shape == in.shape && x.strides == in.strides && x.dtype == in.dtype);
  });
}

// Every use of `from` becomes one of `to`, `shift` bytes further on.
void rename(Program& program, int from, int to, std::size_t shift, bool whole) {
  for (KernelCall& call : program.calls)
    for (std::vector<Operand>* operands : {&call.inputs, &call.outputs})
      for (Operand& operand : *operands)
        if (operand.block == from) {
          operand.block = to;
          operand.offset += shift;
          operand.whole = operand.whole && whole;
        }
}

// In pieces of the same places: dense arrays of as many elements as the result, and single numbers.
bool splits(const KernelCall& call) {
  if (!call.kernel.elementwise || call.workspace >= 0) return false;
  const std::int64_t size = call.outputs[0].shape.size();
  const auto fits = [&](const Operand& x) { return x.dense() && x.shape.size() == size; };
  return size > 0 && std::all_of(call.outputs.begin(), call.outputs.end(), fits) &&
         std::all_of(call.inputs.begin(), call.inputs.end(),
                     [&](const Operand& x) { return fits(x) || x.shape.size() == 1; });
}

// May `next` follow in the chain [begin, end)? What it reads as a single number must be complete, and places that the
// chain shares must be the same places.
bool continues(const Program& program, const Chain& chain, const KernelCall& next) {
  const KernelCall& first = program.calls[chain.begin];
  if (!splits(next) || next.outputs[0].shape.size() != first.outputs[0].shape.size()) return false;
  const std::int64_t size = first.outputs[0].shape.size();
  const auto clashes = [&](const Operand& a, const Operand& b) {
    if (a.block != b.block) return false;
    return a.offset != b.offset || a.shape.size() != size || b.shape.size() != size ||
           size_of(a.dtype) != size_of(b.dtype);
  };
  for (std::size_t i = chain.begin; i < chain.end; ++i) {
    const KernelCall& call = program.calls[i];
    for (const Operand& out : call.outputs) {
      for (const Operand& x : next.inputs)
        if (clashes(out, x)) return false;
      for (const Operand& x : next.outputs)
        if (clashes(out, x)) return false;
    }
    for (const Operand& in : call.inputs)
      for (const Operand& x : next.outputs)
        if (clashes(in, x)) return false;
  }
  return true;
}

}  // namespace

NDArray Operand::of(const NDArray& array) const {
  const std::size_t first = offset + static_cast<std::size_t>(ArrayBuilder::offset(array)) * size_of(array.dtype());
  return ArrayBuilder::view(array, static_cast<std::int64_t>(first / size_of(dtype)), shape, strides, dtype);
}

bool KernelCall::reads(int block) const {
  return touches(inputs, block) ||
         std::any_of(outputs.begin(), outputs.end(), [&](const Operand& x) { return x.block == block && !x.whole; });
}

bool KernelCall::writes(int block) const { return touches(outputs, block); }

bool Program::writes(int block) const {
  return std::any_of(calls.begin(), calls.end(), [&](const KernelCall& call) { return call.writes(block); });
}

std::pair<std::size_t, std::size_t> Program::lifetime(int block) const {
  std::pair<std::size_t, std::size_t> found{calls.size(), 0};
  for (std::size_t i = 0; i < calls.size(); ++i)
    if (calls[i].uses(block)) found = {std::min(found.first, i), i};
  return found;
}

void plan(Program& program) {
  leave_out_unused(program);
  compute_constants_once(program);
  leave_out_copies(program);
  work_in_place(program);
  make_chains(program);
  lay_out(program);
  make_tasks(program);
}

void leave_out_unused(Program& program) {
  std::vector<bool> wanted(program.blocks.size());
  for (std::size_t b = 0; b < wanted.size(); ++b) wanted[b] = program.blocks[b].outlives_the_run();
  std::vector<KernelCall> kept;
  for (std::size_t i = program.calls.size(); i-- > 0;) {
    KernelCall& call = program.calls[i];
    if (std::none_of(call.outputs.begin(), call.outputs.end(), [&](const Operand& x) { return wanted[x.block]; })) {
      ++program.report.unused;
      continue;
    }
    for (const Operand& out : call.outputs)
      if (!call.reads(out.block) && !program.blocks[out.block].outlives_the_run()) wanted[out.block] = false;
    for (const Operand& in : call.inputs) wanted[in.block] = true;
    kept.push_back(std::move(call));
  }
  std::reverse(kept.begin(), kept.end());
  program.calls = std::move(kept);
}

void compute_constants_once(Program& program) {
  std::vector<int> writers(program.blocks.size());
  for (const KernelCall& call : program.calls)
    for (const Operand& out : call.outputs) ++writers[out.block];
  std::vector<KernelCall> kept;
  for (KernelCall& call : program.calls) {
    const bool constant =
        call.workspace < 0 &&
        std::all_of(call.inputs.begin(), call.inputs.end(),
                    [&](const Operand& x) { return program.blocks[x.block].kind == Block::Kind::kConstant; }) &&
        std::all_of(call.outputs.begin(), call.outputs.end(), [&](const Operand& x) {
          const Block& block = program.blocks[x.block];
          return block.kind == Block::Kind::kIntermediate && writers[x.block] == 1 && x.whole &&
                 block.bytes <= kLargestConstant;
        });
    if (!constant) {
      kept.push_back(std::move(call));
      continue;
    }
    for (const Operand& out : call.outputs) program.blocks[out.block].kind = Block::Kind::kConstant;
    ++program.report.constants;
    program.once.push_back(std::move(call));
  }
  program.calls = std::move(kept);
}

void leave_out_copies(Program& program) {
  const Kernel copying = copy_kernel();
  for (std::size_t i = 0; i < program.calls.size();) {
    const KernelCall& call = program.calls[i];
    const bool copies = call.function == copying.cpu || call.function == copying.cuda;
    const Operand from = call.inputs.empty() ? Operand{} : call.inputs[0], to = call.outputs[0];
    bool possible = copies && from.block != to.block && from.whole && from.dense() && to.dense() &&
                    from.dtype == to.dtype && from.shape == to.shape &&
                    program.blocks[from.block].kind == Block::Kind::kIntermediate &&
                    (to.whole || program.blocks[to.block].outlives_the_run());
    if (possible) {
      const auto [begin, end] = program.lifetime(from.block);
      possible = end == i;
      for (std::size_t k = begin; k < i && possible; ++k) {
        possible = !program.calls[k].uses(to.block);
        // Written in parts, an array from elsewhere would keep an old failure.
        for (const Operand& out : program.calls[k].outputs)
          possible = possible && (out.block != from.block || out.whole);
      }
      if (possible && !program.blocks[to.block].outlives_the_run()) possible = program.lifetime(to.block).first == i;
    }
    if (!possible) {
      ++i;
      continue;
    }
    program.calls.erase(program.calls.begin() + static_cast<std::ptrdiff_t>(i));
    rename(program, from.block, to.block, to.offset, to.whole);
    ++program.report.copies;
  }
}

void work_in_place(Program& program) {
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    const KernelCall& call = program.calls[i];
    if (!call.kernel.elementwise || call.outputs.size() != 1) continue;
    const Operand out = call.outputs[0];
    if (program.blocks[out.block].kind != Block::Kind::kIntermediate || !out.whole || !out.dense() ||
        program.lifetime(out.block).first != i)
      continue;
    for (const Operand& in : std::vector<Operand>(call.inputs)) {
      if (program.blocks[in.block].kind != Block::Kind::kIntermediate || in.block == out.block || !in.whole ||
          !in.dense() || in.shape != out.shape || size_of(in.dtype) != size_of(out.dtype) ||
          program.lifetime(in.block).second != i || !one_view(call.inputs, in))
        continue;
      rename(program, out.block, in.block, 0, true);
      ++program.report.in_place;
      break;
    }
  }
}

void make_chains(Program& program) {
  for (std::size_t i = 0; i < program.calls.size(); ++i) {
    if (!program.chains.empty() && splits(program.calls[program.chains.back().begin]) &&
        continues(program, program.chains.back(), program.calls[i])) {
      ++program.chains.back().end;
    } else {
      program.chains.push_back({i, i + 1});
    }
  }
  for (const Chain& chain : program.chains)
    if (chain.end - chain.begin > 1) {
      ++program.report.chains;
      program.report.chained += static_cast<std::int64_t>(chain.end - chain.begin);
    }
}

// Greedy by size: the largest block first, each at the lowest place that is free during its lifetime (Pisarchyk & Lee,
// "Efficient memory management for deep neural net inference", 2020).
void lay_out(Program& program) {
  struct Item {
    int block;
    std::size_t begin, end;  // chains, inclusive
  };
  std::vector<std::size_t> chain_of(program.calls.size());
  for (std::size_t c = 0; c < program.chains.size(); ++c)
    for (std::size_t i = program.chains[c].begin; i < program.chains[c].end; ++i) chain_of[i] = c;
  std::vector<Item> items;
  for (std::size_t b = 0; b < program.blocks.size(); ++b) {
    Block& block = program.blocks[b];
    if (block.kind == Block::Kind::kConstant) {
      block.offset = program.constant_bytes;
      program.constant_bytes += aligned(block.bytes);
    }
    const auto [begin, end] = program.lifetime(static_cast<int>(b));
    if (block.kind == Block::Kind::kIntermediate && begin <= end && begin < program.calls.size())
      items.push_back({static_cast<int>(b), chain_of[begin], chain_of[end]});
  }
  const auto bytes = [&](const Item& item) { return program.blocks[item.block].bytes; };
  std::stable_sort(items.begin(), items.end(), [&](const Item& a, const Item& b) { return bytes(a) > bytes(b); });

  std::vector<const Item*> placed;  // by offset
  const auto offset = [&](const Item* item) { return program.blocks[item->block].offset; };
  for (const Item& item : items) {
    std::size_t place = 0;
    for (const Item* other : placed) {
      if (other->end < item.begin || item.end < other->begin) continue;
      if (place + bytes(item) <= offset(other)) break;
      place = std::max(place, aligned(offset(other) + bytes(*other)));
    }
    program.blocks[item.block].offset = place;
    program.arena_bytes = std::max(program.arena_bytes, place + bytes(item));
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &item,
                                   [&](const Item* a, const Item* b) { return offset(a) < offset(b); }),
                  &item);
  }
  program.report.planned_bytes = static_cast<std::int64_t>(program.arena_bytes + program.constant_bytes);
}

// A task ends where an array from elsewhere gets its last write: who waits for it (the store, for a gradient) goes on
// while the rest runs.
void make_tasks(Program& program) {
  std::set<int> done;
  std::vector<bool> ends(program.chains.size());
  if (!ends.empty()) ends.back() = true;
  for (std::size_t c = program.chains.size(); c-- > 0;)
    for (std::size_t i = program.chains[c].begin; i < program.chains[c].end; ++i)
      for (const Operand& out : program.calls[i].outputs)
        if (program.blocks[out.block].kind == Block::Kind::kFixed && done.insert(out.block).second) ends[c] = true;
  for (std::size_t c = 0; c < ends.size(); ++c)
    if (ends[c]) program.tasks.push_back(c + 1);
  program.report.kernels = static_cast<std::int64_t>(program.calls.size());
  program.report.tasks = static_cast<std::int64_t>(program.tasks.size());
}

}  // namespace paceline::detail
