#pragma once
// A captured function: the kernel calls of one run, in order, over blocks of memory. plan() rewrites it, Replay runs
// it.

#include "storage.h"

#include <paceline/capture.h>
#include <paceline/kernel.h>

namespace paceline::detail {

struct Block {
  enum class Kind {
    kIntermediate,  // lives inside a run: laid into the arena
    kConstant,      // computed once, then only read
    kInput,         // of the call, `index`
    kOutput,        // made for each call, `index`
    kFixed,         // from elsewhere, or still held by somebody after the run: `fixed`
  };
  Kind kind = Kind::kIntermediate;
  std::size_t bytes = 0;
  int index = -1;
  std::shared_ptr<Storage> fixed;
  std::size_t offset = 0;  // kIntermediate and kConstant: where it lies

  bool outlives_the_run() const { return kind != Kind::kIntermediate && kind != Kind::kConstant; }
};

struct Operand {
  int block;
  std::size_t offset;  // bytes
  Shape shape;
  Strides strides;
  DType dtype;
  bool whole;  // every byte of its block

  bool dense() const { return strides == row_major(shape); }
  // The array that lies there where `array` is the block.
  NDArray of(const NDArray& array) const;
};

struct KernelCall {
  Kernel kernel;
  KernelFunction function;
  std::shared_ptr<const void> attributes;
  std::uint64_t seed = 0;
  int workspace = -1;  // block
  std::vector<Operand> inputs, outputs;

  bool reads(int block) const;  // also: keeps some of its old contents
  bool writes(int block) const;
  bool uses(int block) const { return block == workspace || reads(block) || writes(block); }
};

// Calls [begin, end): one, or an element-wise chain of several.
struct Chain {
  std::size_t begin, end;
};

struct Program {
  Engine* engine = nullptr;
  Device device;
  std::vector<Block> blocks;
  std::vector<KernelCall> once;  // fills the constants
  std::vector<KernelCall> calls;
  std::vector<Chain> chains;       // all calls, in order
  std::vector<std::size_t> tasks;  // ends of the engine's tasks, in chains
  std::size_t arena_bytes = 0, constant_bytes = 0;
  CapturePlan report;

  bool writes(int block) const;
  // First and last call that uses the block; {calls.size(), 0} where none does.
  std::pair<std::size_t, std::size_t> lifetime(int block) const;
};

// Fills everything below `calls`.
void plan(Program& program);

// The parts of it, in this order.
void leave_out_unused(Program& program);
void compute_constants_once(Program& program);
void leave_out_copies(Program& program);
void work_in_place(Program& program);
void make_chains(Program& program);
void lay_out(Program& program);
void make_tasks(Program& program);

}  // namespace paceline::detail
