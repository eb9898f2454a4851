#include "recurrent/recurrent.h"

#include "dense/dense.h"
#include "recurrent/cells.h"
#include "recurrent/cuda_steps.h"
#include "reduce/reduce.h"
#include "reshape/reshape.h"
#include "shared/vector_map.h"
#include "shared/wide.h"
#include "slice/slice.h"

namespace paceline {

const OpDef& rnn_operator();
const OpDef& rnn_relu_operator();
const OpDef& lstm_operator();
const OpDef& gru_operator();

namespace {

// Inputs of the operators: x, state, memory (of cells that have one), weights and biases. The gradient also gets some
// outputs: the states in the wide type, what the cell kept of each step, and the memories of cells that have one.
enum Input : std::size_t { kX, kState, kMemory, kWeightX, kWeightState, kBiasX, kBiasState, kInputs };

const RecurrentAttributes& of(const void* attributes) { return *static_cast<const RecurrentAttributes*>(attributes); }

// How one kind of cell is run.
struct CellKernels {
  const char* name;
  std::int64_t gates, kept;
  bool memory, sums;
  Kernel forward, backward;
};

// Calls body(example) for the examples of a state (n, hidden).
template <class Body>
void for_each_example(const Shape& state, const Body& body) {
  const std::int64_t smallest = std::max<std::int64_t>(1, 4096 / std::max<std::int64_t>(1, state[1]));
  detail::parallel_ranges(state[0], smallest, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t example = begin; example < end; ++example) body(example);
  });
}

// load() and store() copy the gates of one unit, or what is kept of it. These numbers lie `hidden` elements apart. The
// copies are written out, without a loop, so that loops over units become vector code.
template <class A, std::size_t... k>
[[gnu::always_inline]] inline void load(const A* from, std::int64_t hidden, A* to, std::index_sequence<k...>) {
  ((to[k] = from[static_cast<std::int64_t>(k) * hidden]), ...);
}
template <class A, std::size_t... k>
[[gnu::always_inline]] inline void store(const A* from, std::int64_t hidden, A* to, std::index_sequence<k...>) {
  ((to[static_cast<std::int64_t>(k) * hidden] = from[k]), ...);
}

template <class Visit>
void visit_wide(DType dtype, const Visit& visit) {
  dtype == DType::kFloat64 ? visit(TypeTag<double>()) : visit(TypeTag<float>());
}

// A step forwards for one example of the batch.
template <class Cell, class A>
struct Forward {
  std::int64_t hidden;
  const A *from_x, *from_state, *old_state, *old_memory;
  A *new_state, *kept, *new_memory;

  [[gnu::always_inline]] void unit(std::int64_t i) const {
    constexpr std::make_index_sequence<Cell::kGates> kEachGate;
    A x[Cell::kGates], h[Cell::kGates], keep[Cell::kKept];
    load(from_x + i, hidden, x, kEachGate);
    load(from_state + i, hidden, h, kEachGate);
    A state = old_state[i], memory = old_memory[i];
    Cell::forward(x, h, keep, state, memory);
    new_state[i] = state;
    store(keep, hidden, kept + i, std::make_index_sequence<Cell::kKept>());
    if constexpr (Cell::kMemory) new_memory[i] = memory;
  }
};

// Inputs: the gates' sums from x, those from the state, the old state. Outputs: the new state, what the cell keeps.
// Cells with memory have the old memory as a last input and the new memory as a last output.
template <class Cell>
void step_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  visit_wide(in[0].dtype, [&]<class A>(TypeTag<A>) {
    const std::int64_t hidden = in[2].shape[1];
    for_each_example(in[2].shape, [&](std::int64_t example) {
      const auto row = [&](const Tensor& tensor, std::int64_t width) {
        return tensor.as<A>() + example * width * hidden;
      };
      const Forward<Cell, A> at{hidden,
                                row(in[0], Cell::kGates),
                                row(in[1], Cell::kGates),
                                row(in[2], 1),
                                row(in[Cell::kMemory ? 3 : 2], 1),
                                row(out[0], 1),
                                row(out[1], Cell::kKept),
                                Cell::kMemory ? row(out[2], 1) : nullptr};
      vector_code([=]() PACELINE_INLINE {
#pragma omp simd
        for (std::int64_t i = 0; i < hidden; ++i) at.unit(i);
      });
    });
  });
}

// A step backwards for one example of the batch.
template <class Cell, class A>
struct Backward {
  std::int64_t hidden;
  const A *kept, *old_state, *given, *later, *old_memory, *new_memory, *memory_gradient;
  A *to_x, *to_state, *state_gradient, *earlier;

  [[gnu::always_inline]] void unit(std::int64_t i) const {
    constexpr std::make_index_sequence<Cell::kGates> kEachGate;
    A keep[Cell::kKept], dx[Cell::kGates], dh[Cell::kGates];
    load(kept + i, hidden, keep, std::make_index_sequence<Cell::kKept>());
    A d_state = given[i] + later[i], d_memory = memory_gradient[i];
    Cell::backward(keep, old_state[i], old_memory[i], new_memory[i], dx, dh, d_state, d_memory);
    store(dx, hidden, to_x + i, kEachGate);
    if constexpr (!Cell::kSums) store(dh, hidden, to_state + i, kEachGate);
    state_gradient[i] = d_state;
    if constexpr (Cell::kMemory) earlier[i] = d_memory;
  }
};

// Inputs: what the cell kept, the old state, the gradient of the new state as an output of the layer, and its gradient
// from later steps. Cells with memory also have the old memory, the new memory and the gradient of the new memory.
// Outputs: the gradients of the gates' sums from x, of those from the state unless Cell::kSums, of the old state, and
// of the old memory if there is one. The gradient of the old state lacks the part that goes through the gates.
template <class Cell>
void step_backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  visit_wide(in[0].dtype, [&]<class A>(TypeTag<A>) {
    const std::int64_t hidden = in[1].shape[1];
    for_each_example(in[1].shape, [&](std::int64_t example) {
      const auto row = [&](const Tensor& tensor, std::int64_t width) {
        return tensor.as<A>() + example * width * hidden;
      };
      const auto with_memory = [&](std::size_t input) { return row(in[Cell::kMemory ? input : 1], 1); };
      const Backward<Cell, A> at{hidden,
                                 row(in[0], Cell::kKept),
                                 row(in[1], 1),
                                 row(in[2], 1),
                                 row(in[3], 1),
                                 with_memory(4),
                                 with_memory(5),
                                 with_memory(6),
                                 row(out[0], Cell::kGates),
                                 Cell::kSums ? nullptr : row(out[1], Cell::kGates),
                                 row(out[Cell::kSums ? 1 : 2], 1),
                                 Cell::kMemory ? row(out[Cell::kSums ? 2 : 3], 1) : nullptr};
      vector_code([=]() PACELINE_INLINE {
#pragma omp simd
        for (std::int64_t i = 0; i < hidden; ++i) at.unit(i);
      });
    });
  });
}

template <class Cell>
CellKernels kernels_of(const char* name) {
  const CudaSteps cuda = cuda_steps(Cell());
  return {name,
          Cell::kGates,
          Cell::kKept,
          Cell::kMemory,
          Cell::kSums,
          {name, step_cpu<Cell>, cuda.forward},
          {name, step_backward_cpu<Cell>, cuda.backward}};
}

// The sizes of one call, and where its steps are.
struct Sizes {
  std::int64_t steps, n, in, hidden;
  bool reverse;

  // The place in x of the i-th step that is made.
  std::int64_t place(std::int64_t i) const { return reverse ? steps - 1 - i : i; }
  Shape all(std::int64_t width) const { return {steps, n, width}; }
};

// Throws InvalidArgument when the inputs do not fit.
Sizes check(const CellKernels& cell, const std::vector<NDArray>& inputs, const void* attributes) {
  const NDArray &x = inputs[kX], &state = inputs[kState];
  require(x.ndim() == 3 && x.size(0) > 0 && is_floating(x.dtype()), "[", cell.name, "] x is ", x.describe(),
          ", expected floating (steps >= 1, examples, width)");
  require(state.ndim() == 2, "[", cell.name, "] state is ", state.describe(), ", expected (examples, width)");
  const Sizes sizes{x.size(0), x.size(1), x.size(2), state.size(1), of(attributes).reverse};
  const auto expect = [&](const char* what, std::size_t input, const Shape& shape) {
    const NDArray& array = inputs[input];
    require(array.is_none() || (array.shape() == shape && array.dtype() == x.dtype()), "[", cell.name, "] ", what,
            " is ", array.is_none() ? "none" : array.describe(), ", expected ", name_of(x.dtype()), " ", shape);
  };
  const std::int64_t width = cell.gates * sizes.hidden;
  require(inputs[kMemory].is_none() != cell.memory, "[", cell.name, "] memory is ",
          cell.memory ? "none, expected an array" : "given, expected none");
  expect("state", kState, {sizes.n, sizes.hidden});
  expect("memory", kMemory, {sizes.n, sizes.hidden});
  expect("the weight of x", kWeightX, {width, sizes.in});
  expect("the weight of the state", kWeightState, {width, sizes.hidden});
  expect("the bias of x", kBiasX, {width});
  expect("the bias of the state", kBiasState, {width});
  return sizes;
}

NDArray like(const NDArray& x, const Shape& shape) { return NDArray(shape, x.dtype(), x.device(), x.engine()); }

NDArray as_rows(const NDArray& x) { return x.view({x.size(0) * x.size(1), x.size(2)}); }

std::vector<NDArray> forward(const CellKernels& cell, const std::vector<NDArray>& inputs, const void* attributes) {
  const Sizes sizes = check(cell, inputs, attributes);
  std::vector<NDArray> in;
  for (const NDArray& input : inputs) in.push_back(input.is_none() ? input : widened(input).contiguous());
  const std::int64_t width = cell.gates * sizes.hidden;
  const NDArray from_x = dense(as_rows(in[kX]), in[kWeightX], in[kBiasX]).view(sizes.all(width));
  const NDArray states = like(from_x, sizes.all(sizes.hidden)),
                kept = like(from_x, sizes.all(cell.kept * sizes.hidden));
  const NDArray memories = cell.memory ? like(from_x, sizes.all(sizes.hidden)) : NDArray();
  NDArray state = in[kState], memory = in[kMemory];
  for (std::int64_t i = 0; i < sizes.steps; ++i) {
    const std::int64_t at = sizes.place(i);
    std::vector<NDArray> read{from_x.at(at), dense(state, in[kWeightState], in[kBiasState]), state};
    std::vector<NDArray> written{states.at(at), kept.at(at)};
    if (cell.memory) {
      read.push_back(memory);
      written.push_back(memory = memories.at(at));
    }
    launch(cell.forward, read, written);
    state = states.at(at);
  }
  std::vector<NDArray> result{in_type(states, inputs[kX].dtype())};
  if (cell.memory) result.push_back(memory.cast(inputs[kX].dtype()));
  result.insert(result.end(), {states, kept});
  if (cell.memory) result.push_back(memories);
  return result;
}

std::vector<Gradient> backward(const CellKernels& cell, const OpCall& call, const std::vector<NDArray>& gradients) {
  std::vector<NDArray> in;
  for (const NDArray& input : call.inputs) in.push_back(input.is_none() ? input : widened(input).contiguous());
  const Shape& x = call.input_specs[kX].shape;
  const bool reverse = of(call.attribute_data.get()).reverse;
  const Sizes sizes{x[0], x[1], x[2], call.input_specs[kState].shape[1], reverse};
  const std::size_t visible = cell.memory ? 2 : 1;
  const NDArray &states = call.outputs[visible], &kept = call.outputs[visible + 1];
  const NDArray& memories = cell.memory ? call.outputs[visible + 2] : states;
  const auto given = [&](std::size_t output, const Shape& shape) {
    const NDArray& gradient = gradients[output];
    return gradient.is_none() ? NDArray::zeros(shape, states.dtype(), states.device(), states.engine())
                              : widened(gradient).contiguous();
  };
  const NDArray dy = given(0, states.shape());
  const NDArray from_x = like(states, sizes.all(cell.gates * sizes.hidden));
  const NDArray from_state = cell.sums ? from_x : like(states, from_x.shape());
  const NDArray d_state = NDArray::zeros({sizes.n, sizes.hidden}, states.dtype(), states.device(), states.engine());
  const NDArray d_memory = cell.memory ? given(1, d_state.shape()).clone() : NDArray();
  const auto before = [&](const NDArray& all, std::int64_t i, std::size_t first) {
    return i == 0 ? in[first] : all.at(sizes.place(i - 1));
  };
  for (std::int64_t i = sizes.steps - 1; i >= 0; --i) {
    const std::int64_t at = sizes.place(i);
    std::vector<NDArray> read{kept.at(at), before(states, i, kState), dy.at(at), d_state};
    std::vector<NDArray> written{from_x.at(at), d_state};
    if (!cell.sums) written = {from_x.at(at), from_state.at(at), d_state};
    if (cell.memory) {
      read.insert(read.end(), {before(memories, i, kMemory), memories.at(at), d_memory});
      written.push_back(d_memory);
    }
    launch(cell.backward, read, written);
    kernels::gemm(from_state.at(at), false, in[kWeightState], false, d_state, 1, 1);
  }

  std::vector<Gradient> result(kInputs);
  const auto give = [&](std::size_t input, const NDArray& x) {
    result[input] = in_type(x, call.input_specs[input].dtype);
  };
  const auto wanted = [&](std::size_t input) { return !call.inputs[input].is_none() && call.wants_gradient(input); };
  if (wanted(kX)) {
    const NDArray dx = like(states, sizes.all(sizes.in));
    kernels::gemm(as_rows(from_x), false, in[kWeightX], false, as_rows(dx));
    give(kX, dx);
  }
  if (wanted(kState)) give(kState, d_state);
  if (wanted(kMemory)) give(kMemory, d_memory);
  if (wanted(kWeightX)) {
    const NDArray dw = like(states, in[kWeightX].shape());
    kernels::gemm(as_rows(from_x), true, as_rows(in[kX]), false, dw);
    give(kWeightX, dw);
  }
  if (wanted(kWeightState)) {
    const NDArray dw = like(states, in[kWeightState].shape());
    kernels::gemm(from_state.at(sizes.place(0)), true, in[kState], false, dw);
    // One product covers the steps after the first, because each of them took the state of the step before it.
    const std::int64_t first = sizes.reverse ? 0 : 1, last = sizes.steps - 1;
    const NDArray later = from_state.narrow(0, first, first + last);
    const NDArray earlier = states.narrow(0, 1 - first, 1 - first + last);
    if (last > 0) kernels::gemm(as_rows(later), true, as_rows(earlier), false, dw, 1, 1);
    give(kWeightState, dw);
  }
  if (wanted(kBiasX)) give(kBiasX, sum(as_rows(from_x), {0}));
  if (wanted(kBiasState) && cell.sums && wanted(kBiasX))
    result[kBiasState] = result[kBiasX];
  else if (wanted(kBiasState))
    give(kBiasState, sum(as_rows(from_state), {0}));
  return result;
}

OpDef recurrent(const CellKernels& cell) {
  OpDef op = OpDef(cell.name)
                 .attributes<RecurrentAttributes>()
                 .input("x")
                 .input("state")
                 .optional_input("memory")
                 .input("weight_x")
                 .input("weight_state")
                 .optional_input("bias_x")
                 .optional_input("bias_state")
                 .output("states");
  if (cell.memory) op = std::move(op).output("last_memory");
  op = std::move(op).auxiliary_output("wide_states").auxiliary_output("kept");
  if (cell.memory) op = std::move(op).auxiliary_output("memories");
  const int visible = cell.memory ? 2 : 1;
  std::vector<int> saved{visible, visible + 1};
  if (cell.memory) saved.push_back(visible + 2);
  return std::move(op)
      .saves_inputs({kX, kState, kMemory, kWeightX, kWeightState, kBiasX, kBiasState})
      .saves_outputs(saved)
      .infer([cell](const std::vector<NDArray>& inputs, const void* attributes) {
        const Sizes sizes = check(cell, inputs, attributes);
        const DType dtype = inputs[kX].dtype(), wide = wide_type(dtype);
        std::vector<ArraySpec> specs{{sizes.all(sizes.hidden), dtype}};
        if (cell.memory) specs.push_back({{sizes.n, sizes.hidden}, dtype});
        specs.push_back({sizes.all(sizes.hidden), wide});
        specs.push_back({sizes.all(cell.kept * sizes.hidden), wide});
        if (cell.memory) specs.push_back({sizes.all(sizes.hidden), wide});
        return specs;
      })
      .forward([cell](const std::vector<NDArray>& inputs, const void* attributes) {
        return forward(cell, inputs, attributes);
      })
      .gradient(
          [cell](const OpCall& call, const std::vector<NDArray>& gradients) { return backward(cell, call, gradients); })
      .text([](const void* attributes) {
        return AttributeText{{"reverse", of(attributes).reverse ? "1" : "0"}};
      });
}

RecurrentResult run(const OpDef& op, const NDArray& x, const NDArray& state, const NDArray& memory,
                    const RecurrentWeights& weights, bool reverse) {
  const std::shared_ptr<const void> how = std::make_shared<RecurrentAttributes>(RecurrentAttributes{reverse});
  const std::vector<NDArray> out =
      invoke(op, {x, state, memory, weights.of_x, weights.of_state, weights.bias_x, weights.bias_state}, how);
  const std::int64_t last = reverse ? 0 : x.size(0) - 1;
  return {out[0], squeeze(slice(out[0], 0, last, last + 1), 0), out.size() > 1 ? out[1] : NDArray()};
}

}  // namespace

OpDef rnn_op() { return recurrent(kernels_of<cells::Rnn<false>>("rnn")); }
OpDef rnn_relu_op() { return recurrent(kernels_of<cells::Rnn<true>>("rnn_relu")); }
OpDef lstm_op() { return recurrent(kernels_of<cells::Lstm>("lstm")); }
OpDef gru_op() { return recurrent(kernels_of<cells::Gru>("gru")); }

RecurrentResult rnn(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse) {
  return run(rnn_operator(), x, state, NDArray(), weights, reverse);
}
RecurrentResult rnn_relu(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse) {
  return run(rnn_relu_operator(), x, state, NDArray(), weights, reverse);
}
RecurrentResult lstm(const NDArray& x, const NDArray& state, const NDArray& memory, const RecurrentWeights& weights,
                     bool reverse) {
  return run(lstm_operator(), x, state, memory, weights, reverse);
}
RecurrentResult gru(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse) {
  return run(gru_operator(), x, state, NDArray(), weights, reverse);
}

}  // namespace paceline
