#pragma once
// Runs a planned Program: memory for it, pointers set, its tasks pushed. On a CUDA device a task whose arrays lie where
// they lay in an earlier run is issued as a whole, as a graph.

#include "capture/program.h"

#include <memory>
#include <vector>

namespace paceline::detail {

class Replay : public std::enable_shared_from_this<Replay> {
 public:
  // `results` of the noted run and the places where they lie (Recording::finish).
  Replay(Program program, std::vector<Operand> places, const std::vector<NDArray>& results);

  // False where an input shares memory with an array that the function takes from elsewhere: another program then.
  bool takes(const std::vector<NDArray>& inputs) const;
  // Pushes one run.
  std::vector<NDArray> run(const std::vector<NDArray>& inputs);
  const CapturePlan& report() const { return program_.report; }

 private:
  // What differs from run to run.
  struct Arrays {
    std::vector<NDArray> inputs;
    std::shared_ptr<const std::vector<NDArray>> outputs;  // runs that use the same memory share them
    const NDArray& of(const Block& block) const {
      return (block.kind == Block::Kind::kInput ? inputs : *outputs)[static_cast<std::size_t>(block.index)];
    }
  };
  // A tensor whose memory is the run's.
  struct Moving {
    std::size_t call, tensor;
    int block;
    std::size_t offset;
  };
  struct Part {
    std::size_t begin, end;          // chains
    std::vector<int> reads, writes;  // blocks that outlive the run
    std::vector<Moving> moving;
    // What was issued with `moving` at these addresses; null the first time.
    struct Kept {
      std::vector<void*> addresses;
      std::unique_ptr<RecordedWork> work;
    };
    std::vector<Kept> kept;  // used last: at the end
    bool cannot_be_kept = false;
  };

  void* address(const Operand& operand) const;
  std::vector<Tensor> tensors(const KernelCall& call) const;
  void compute_constants();
  // Memory for one run's results: that of earlier runs, if nothing but their own tasks holds any of it. A task that
  // reads a result holds it as a user does. The engine runs the tasks of a later run behind those of the earlier ones.
  // Results come back together, so that few sets of addresses occur, and each has its graph.
  std::shared_ptr<const std::vector<NDArray>> outputs();
  const std::shared_ptr<Storage>& storage(int block, const Arrays& arrays) const;
  void push(Part& part, bool first, const std::shared_ptr<const Arrays>& arrays);
  // `stream`: of a CUDA device; null where the work is done at once.
  void execute(Part& part, bool first, const Arrays& arrays, Stream* stream);
  void issue(Part& part, Stream& stream);
  void execute(const Chain& chain, void* native_stream) const;
  KernelContext context(const KernelCall& call, void* native_stream) const;

  Program program_;
  std::vector<Operand> places_;
  std::vector<NDArray> fixed_results_;        // by result; none where each run has its own
  NDArray arena_, constants_;                 // bytes
  std::vector<std::vector<Tensor>> tensors_;  // by call: inputs, then outputs
  std::vector<Part> parts_;
  std::vector<Shape> output_bytes_;
  std::vector<std::shared_ptr<const std::vector<NDArray>>> output_sets_;  // the one used last at the end
};

}  // namespace paceline::detail
