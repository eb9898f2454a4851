#include "recurrent/cuda_steps.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline {
namespace {

template <int kCount, class A>
__device__ void load(const A* from, std::int64_t hidden, A* to) {
  for (int k = 0; k < kCount; ++k) to[k] = from[k * hidden];
}
template <int kCount, class A>
__device__ void store(const A* from, std::int64_t hidden, A* to) {
  for (int k = 0; k < kCount; ++k) to[k * hidden] = from[k];
}

// Arrays of (examples, count * hidden): where unit i, counted over the examples, has its first element.
struct Units {
  std::int64_t total, hidden;
  __device__ std::int64_t first(std::int64_t i, int count) const { return i / hidden * count * hidden + i % hidden; }
};

// One thread for each unit of each example.
template <class Cell, class A>
__global__ void step(const Units units, const A* from_x, const A* from_state, const A* old_state, const A* old_memory,
                     A* new_state, A* kept_units, A* new_memory) {
  for (std::int64_t i = detail::first_index(); i < units.total; i += detail::index_step()) {
    A x[Cell::kGates], h[Cell::kGates], kept[Cell::kKept];
    load<Cell::kGates>(from_x + units.first(i, Cell::kGates), units.hidden, x);
    load<Cell::kGates>(from_state + units.first(i, Cell::kGates), units.hidden, h);
    A state = old_state[i], memory = old_memory[i];
    Cell::forward(x, h, kept, state, memory);
    new_state[i] = state;
    store<Cell::kKept>(kept, units.hidden, kept_units + units.first(i, Cell::kKept));
    if constexpr (Cell::kMemory) new_memory[i] = memory;
  }
}

template <class Cell, class A>
__global__ void step_backward(const Units units, const A* kept_units, const A* old_state, const A* given,
                              const A* later, const A* old_memory, const A* new_memory, const A* memory_gradient,
                              A* to_x, A* to_state, A* state_gradient, A* earlier) {
  for (std::int64_t i = detail::first_index(); i < units.total; i += detail::index_step()) {
    A kept[Cell::kKept], dx[Cell::kGates], dh[Cell::kGates];
    load<Cell::kKept>(kept_units + units.first(i, Cell::kKept), units.hidden, kept);
    A d_state = given[i] + later[i], d_memory = memory_gradient[i];
    Cell::backward(kept, old_state[i], old_memory[i], new_memory[i], dx, dh, d_state, d_memory);
    store<Cell::kGates>(dx, units.hidden, to_x + units.first(i, Cell::kGates));
    if constexpr (!Cell::kSums) store<Cell::kGates>(dh, units.hidden, to_state + units.first(i, Cell::kGates));
    state_gradient[i] = d_state;
    if constexpr (Cell::kMemory) earlier[i] = d_memory;
  }
}

template <class Visit>
void visit_wide(DType dtype, const Visit& visit) {
  dtype == DType::kFloat64 ? visit(TypeTag<double>()) : visit(TypeTag<float>());
}

template <class Cell>
void step_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  const Units units{in[2].size(), in[2].shape[1]};
  if (units.total == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_wide(in[0].dtype, [&](auto tag) {
    using A = typename decltype(tag)::type;
    step<Cell><<<detail::grid_for(units.total), detail::kThreads, 0, stream>>>(
        units, in[0].as<const A>(), in[1].as<const A>(), in[2].as<const A>(),
        in[Cell::kMemory ? 3 : 2].template as<const A>(), out[0].as<A>(), out[1].as<A>(),
        Cell::kMemory ? out[2].as<A>() : nullptr);
  });
  detail::check_cuda(cudaGetLastError(), "starting a recurrent step");
}

template <class Cell>
void step_backward_cuda(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                        const void*) {
  const Units units{in[1].size(), in[1].shape[1]};
  if (units.total == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  visit_wide(in[0].dtype, [&](auto tag) {
    using A = typename decltype(tag)::type;
    const auto memory = [&](std::size_t i) { return in[Cell::kMemory ? i : 1].template as<const A>(); };
    step_backward<Cell><<<detail::grid_for(units.total), detail::kThreads, 0, stream>>>(
        units, in[0].as<const A>(), in[1].as<const A>(), in[2].as<const A>(), in[3].as<const A>(), memory(4), memory(5),
        memory(6), out[0].as<A>(), Cell::kSums ? nullptr : out[1].as<A>(), out[Cell::kSums ? 1 : 2].template as<A>(),
        Cell::kMemory ? out[Cell::kSums ? 2 : 3].template as<A>() : nullptr);
  });
  detail::check_cuda(cudaGetLastError(), "starting the gradient of a recurrent step");
}

template <class Cell>
CudaSteps steps_of() {
  return {step_cuda<Cell>, step_backward_cuda<Cell>};
}

}  // namespace

CudaSteps cuda_steps(cells::Rnn<false>) { return steps_of<cells::Rnn<false>>(); }
CudaSteps cuda_steps(cells::Rnn<true>) { return steps_of<cells::Rnn<true>>(); }
CudaSteps cuda_steps(cells::Lstm) { return steps_of<cells::Lstm>(); }
CudaSteps cuda_steps(cells::Gru) { return steps_of<cells::Gru>(); }

}  // namespace paceline
