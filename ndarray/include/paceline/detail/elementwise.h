#pragma once
// Loops of host kernels over elements. A functor is written once, PACELINE_HOST_DEVICE, and run here or in
// elementwise.cuh:
//
//   struct Add { template <class T> PACELINE_HOST_DEVICE T operator()(T a, T b) const { return a + b; } };
//   elementwise<float, float, float>(Add(), out, a, b);
//
// Sources that include this are compiled with OpenMP.

#include <paceline/cores.h>
#include <paceline/detail/convert.h>
#include <paceline/detail/loops.h>
#include <paceline/kernel.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <utility>

namespace paceline::detail {

// Below this many elements per thread, waking the team costs more than it brings.
inline constexpr std::int64_t kElementsPerThread = 32768;

// Calls body(begin, end) for ranges that cover [0, total), on the team of the calling thread where each thread gets at
// least `smallest`. `body` must not throw.
template <class Body>
void parallel_ranges(std::int64_t total, std::int64_t smallest, const Body& body) {
  const int team = static_cast<int>(std::min<std::int64_t>(team_size(), total / std::max<std::int64_t>(smallest, 1)));
  if (team <= 1) {
    if (total > 0) body(std::int64_t{0}, total);
    return;
  }
  // Small items are dealt in lots of a few lines of memory, so that threads seldom share one.
  const std::int64_t lot = smallest >= 1024 ? 64 : 1;
  const std::int64_t step = (total + team * lot - 1) / (team * lot) * lot;
#pragma omp parallel for num_threads(team) schedule(static, 1)
  for (int i = 0; i < team; ++i) {
    const std::int64_t begin = std::min(total, i * step);
    const std::int64_t end = i + 1 == team ? total : std::min(total, begin + step);
    if (begin < end) body(begin, end);
  }
}

// Calls row(offsets, count) for the pieces of [begin, end) that lie in one innermost loop; offsets[n] is where operand
// n has the first of these elements, the next ones follow at its innermost stride.
template <int N, class Row>
void walk(const Loops& loops, std::int64_t begin, std::int64_t end, const Row& row) {
  const int inner = loops.ndim - 1;
  std::array<std::int64_t, Shape::kMaxDims> index{};
  std::array<std::int64_t, N> offsets{};
  std::int64_t rest = begin;
  for (int d = inner; d >= 0; --d) {
    index[d] = rest % loops.sizes[d];
    rest /= loops.sizes[d];
    for (int n = 0; n < N; ++n) offsets[n] += index[d] * loops.strides[n][d];
  }
  while (begin < end) {
    const std::int64_t count = std::min(loops.sizes[inner] - index[inner], end - begin);
    row(offsets, count);
    begin += count;
    for (int n = 0; n < N; ++n) offsets[n] -= index[inner] * loops.strides[n][inner];
    index[inner] = 0;
    for (int d = inner - 1; d >= 0; --d) {
      for (int n = 0; n < N; ++n) offsets[n] += loops.strides[n][d];
      if (++index[d] < loops.sizes[d]) break;
      for (int n = 0; n < N; ++n) offsets[n] -= loops.sizes[d] * loops.strides[n][d];
      index[d] = 0;
    }
  }
}

template <class T>
inline accumulator_t<T> load(const T& value) {
  return static_cast<accumulator_t<T>>(value);
}

// One piece of an innermost loop. `omp simd`: element i is computed from elements i only, so an output that is also an
// input does not keep the loop from becoming vector code.
template <class F, class Out, class... In>
void map_row(const F& f, std::int64_t count, const std::int64_t* steps, Out* out, const In*... in) {
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    if (steps[0] == 1 && ((steps[I + 1] == 1) && ...)) {
#pragma omp simd
      for (std::int64_t i = 0; i < count; ++i) out[i] = convert<Out>(f(load(in[i])...));
      return;
    }
    if constexpr (sizeof...(In) == 2) {
      if (steps[0] == 1 && steps[1] + steps[2] == 1 && steps[1] * steps[2] == 0) {
        const auto mixed = [&](const auto* a, const auto* b) {
          if (steps[2] == 0) {
            const auto right = load(*b);
#pragma omp simd
            for (std::int64_t i = 0; i < count; ++i) out[i] = convert<Out>(f(load(a[i]), right));
          } else {
            const auto left = load(*a);
#pragma omp simd
            for (std::int64_t i = 0; i < count; ++i) out[i] = convert<Out>(f(left, load(b[i])));
          }
        };
        mixed(in...);
        return;
      }
    }
    for (std::int64_t i = 0; i < count; ++i) out[i * steps[0]] = convert<Out>(f(load(in[i * steps[I + 1]])...));
  }
  (std::index_sequence_for<In...>());
}

// Some rows of a nest of loops, each of `count` items of its innermost loop. Steps are counted in items, per operand.
struct RowBlock {
  std::int64_t rows, count;
  const std::int64_t *row_steps, *steps;
};
// Reads and writes a block; operands[n] is the place of operand n's first item in it.
using BlockFunction = void (*)(const void* functor, const RowBlock& block, char* const* operands);

// Calls block(functor, ...) for blocks that make up `loops`, in parallel. operands[n] is the place of operand n's first
// item, item_sizes[n] the bytes of an item. Compiled once for all functors: only the two inner loops differ.
void for_each_block(const Loops& loops, std::span<char* const> operands, std::span<const std::size_t> item_sizes,
                    BlockFunction block, const void* functor);

// out[i] = f(in[i]...), the inputs broadcast to the shape of `out`. float16 and bfloat16 reach `f` as float.
template <class Out, class... In, class F, class... Inputs>
void elementwise(const F& f, const Tensor& out, const Inputs&... inputs) {
  static_assert(sizeof...(In) == sizeof...(Inputs));
  constexpr int kOperands = 1 + sizeof...(In);
  const std::array<Strides, kOperands> strides{out.strides,
                                               broadcast_strides(inputs.shape, inputs.strides, out.shape)...};
  const std::array<char*, kOperands> operands{static_cast<char*>(out.data), static_cast<char*>(inputs.data)...};
  const std::array<std::size_t, kOperands> sizes{sizeof(Out), sizeof(In)...};
  const BlockFunction block = [](const void* functor, const RowBlock& block, char* const* at) {
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      // Copies, because what is written might be steps, for all that the compiler knows.
      const std::int64_t steps[] = {block.steps[0], block.steps[I + 1]...};
      const std::int64_t row_steps[] = {block.row_steps[0], block.row_steps[I + 1]...};
      const std::int64_t rows = block.rows, count = block.count;
      auto* const out = reinterpret_cast<Out*>(at[0]);
      const std::tuple<const In*...> in{reinterpret_cast<const In*>(at[I + 1])...};
      for (std::int64_t row = 0; row < rows; ++row)
        map_row(*static_cast<const F*>(functor), count, steps, out + row * row_steps[0],
                std::get<I>(in) + row * row_steps[I + 1]...);
    }
    (std::index_sequence_for<In...>());
  };
  for_each_block(make_loops(out.shape, strides), operands, sizes, block, &f);
}

}  // namespace paceline::detail
