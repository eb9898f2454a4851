#pragma once
// Runs a planned Program: it provides memory, sets the pointers of the tensors and pushes the tasks to the engine. On a
// CUDA device, a task whose arrays lie where they lay in an earlier run is issued as a whole, as a graph.

#include "capture/program.h"

#include <memory>
#include <vector>

namespace paceline::detail {

class Replay : public std::enable_shared_from_this<Replay> {
 public:
  // `results` are the results of the run that was recorded. `places` says where they lie (Recording::finish()).
  Replay(Program program, std::vector<Operand> places, const std::vector<NDArray>& results);

  // Returns false where an input shares memory with a kFixed block of the program. The caller then runs the function
  // itself instead.
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
  // A tensor in an input or an output, whose address may change from run to run.
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
  // Returns memory for the results of one run. It takes a set of an earlier run that only tasks of such runs still use.
  // A set is not free while a user, or a task that reads one of its results, holds a reference to it. The engine runs
  // the tasks of a later run behind those of the earlier ones. Sets are reused as a whole, so that few combinations of
  // addresses occur and their graphs can be kept. Where all kept sets are in use, a new set takes the free arrays of
  // the oldest one.
  std::shared_ptr<const std::vector<NDArray>> outputs();
  const std::shared_ptr<Storage>& storage(int block, const Arrays& arrays) const;
  // Is there more in the block's memory than the block? Then writing it leaves failures of the rest as they were.
  bool is_part(int block, const Arrays& arrays) const;
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
