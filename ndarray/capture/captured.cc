#include "capture/recording.h"
#include "capture/replay.h"

#include <paceline/array_recorder.h>
#include <paceline/detail/array_builder.h>

#include <ostream>

namespace paceline {
namespace {

// What a plan depends on.
struct Signature {
  std::vector<Shape> shapes;
  std::vector<DType> dtypes;
  Device device;
  Engine* engine = nullptr;

  explicit Signature(const std::vector<NDArray>& inputs) : device(inputs[0].device()), engine(&inputs[0].engine()) {
    for (const NDArray& input : inputs) {
      shapes.push_back(input.shape());
      dtypes.push_back(input.dtype());
    }
  }
  friend bool operator==(const Signature&, const Signature&) = default;
};

bool share_memory(const std::vector<NDArray>& inputs) {
  for (std::size_t i = 0; i < inputs.size(); ++i)
    for (std::size_t k = 0; k < i; ++k)
      if (inputs[i].shares_memory_with(inputs[k])) return true;
  return false;
}

struct Known {
  Signature signature;
  std::shared_ptr<detail::Replay> replay;  // null until the second call
};

}  // namespace

struct Captured::Impl {
  Function function;
  int most_plans;
  std::vector<Known> known;
  CapturePlan newest;
};

Captured::Captured(Function function, int most_plans)
    : impl_(std::make_unique<Impl>(Impl{std::move(function), most_plans, {}, {}})) {}
Captured::~Captured() = default;
Captured::Captured(Captured&&) noexcept = default;
Captured& Captured::operator=(Captured&&) noexcept = default;

const CapturePlan& Captured::plan() const { return impl_->newest; }

std::vector<NDArray> Captured::operator()(const std::vector<NDArray>& inputs) {
  require(!inputs.empty(), "[capture] got no inputs, expected at least one");
  for (const NDArray& input : inputs)
    require(!input.is_none() && input.is_contiguous() && input.device() == inputs[0].device() &&
                &input.engine() == &inputs[0].engine(),
            "[capture] got ", input.is_none() ? "none" : input.describe(),
            ", expected contiguous arrays of one device and engine");
  // The function runs eagerly in three cases. Inside another capture, the other capture notes its launches. A Tape has
  // to see its operators. A plan takes each input for memory of its own, so inputs must not share memory.
  if (detail::CaptureListener::current() || detail::array_recorder() || share_memory(inputs))
    return impl_->function(inputs);

  const Signature signature(inputs);
  for (Known& known : impl_->known) {
    if (!(known.signature == signature)) continue;
    if (known.replay) return known.replay->takes(inputs) ? known.replay->run(inputs) : impl_->function(inputs);
    // The function runs on copies. Their memory tells the inputs from arrays that the function takes from elsewhere.
    std::vector<NDArray> own;
    for (const NDArray& input : inputs) own.push_back(input.clone());
    detail::Recording recording(own);
    std::vector<NDArray> results = impl_->function(own);
    std::vector<detail::Operand> places;
    detail::Program program = recording.finish(results, places);
    const auto writes = [&](std::size_t block) { return program.writes(static_cast<int>(block)); };
    for (std::size_t i = 0; i < inputs.size(); ++i)
      for (std::size_t b = 0; b < program.blocks.size(); ++b)
        if (program.blocks[b].fixed == ArrayBuilder::storage(inputs[i]) && (writes(i) || writes(b)))
          recording.refuse("it changes an array that it gets as an input and also takes from elsewhere");
    for (std::size_t i = 0; i < inputs.size(); ++i)
      if (writes(i)) inputs[i].copy_from(own[i]);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const detail::Block& block = program.blocks[static_cast<std::size_t>(places[i].block)];
      if (block.kind == detail::Block::Kind::kInput)
        results[i] = places[i].of(inputs[static_cast<std::size_t>(block.index)]);
    }
    detail::plan(program);
    // A replay keeps its intermediate arrays in one block. It does not use the blocks that eager calls have freed.
    detail::memory_pool(signature.device).trim();
    known.replay = std::make_shared<detail::Replay>(std::move(program), std::move(places), results);
    impl_->newest = known.replay->report();
    return results;
  }
  std::vector<NDArray> results = impl_->function(inputs);
  // Not where it throws: it may not have come to its weights.
  if (static_cast<int>(impl_->known.size()) < impl_->most_plans) impl_->known.push_back({signature, nullptr});
  return results;
}

std::ostream& operator<<(std::ostream& out, const CapturePlan& plan) {
  const auto megabytes = [](std::int64_t bytes) { return static_cast<double>(bytes / 10000) / 100; };
  return out << "tasks: " << plan.launches << " eager, " << plan.tasks << " planned (" << plan.kernels
             << " kernels; left out: " << plan.unused << " unused, " << plan.constants << " constant, " << plan.copies
             << " copies; in place: " << plan.in_place << "; " << plan.chained << " in " << plan.chains
             << " chains)\nintermediates: " << megabytes(plan.eager_bytes) << " MB eager, "
             << megabytes(plan.planned_bytes) << " MB planned";
}

}  // namespace paceline
