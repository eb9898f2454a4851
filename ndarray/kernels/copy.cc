#include "copy.h"

#include "kernels/cuda_kernels.h"

#include <paceline/detail/elementwise.h>

#include <cstring>

namespace paceline::detail {
namespace {

struct Same {
  template <class T>
  T operator()(T value) const {
    return value;
  }
};

bool is_one_run(const Tensor& a, const Tensor& b) {
  return a.shape == b.shape && a.strides == b.strides && is_dense(a.shape, a.strides);
}

// Copies between arrays that are contiguous along different dimensions. It goes tile by tile, so that the tiles of both
// arrays stay in the cache. Returns false, and copies nothing, for other arrays and for short dimensions.
template <class T>
bool copy_turned(const Tensor& from, const Tensor& to) {
  constexpr std::int64_t kTile = 32;
  const std::array<Strides, 2> strides{to.strides, broadcast_strides(from.shape, from.strides, to.shape)};
  Loops loops = make_loops(to.shape, strides);
  const int inner = loops.ndim - 1;
  int turned = inner - 1;
  while (turned >= 0 && loops.strides[1][turned] != 1) --turned;
  const std::int64_t columns = loops.sizes[inner];
  if (turned < 0 || loops.strides[0][inner] != 1 || columns < kTile / 2 || loops.sizes[turned] < kTile / 2)
    return false;

  const std::int64_t rows = loops.sizes[turned];
  const std::int64_t to_step = loops.strides[0][turned];
  const std::int64_t from_step = loops.strides[1][inner];
  const std::int64_t row_tiles = (rows + kTile - 1) / kTile;
  const std::int64_t column_tiles = (columns + kTile - 1) / kTile;
  const std::int64_t planes = loops.total / (rows * columns);
  // The loops now take one step per tile. Their other dimensions count the planes of tiles.
  loops.sizes[turned] = row_tiles;
  loops.strides[0][turned] = kTile * to_step;
  loops.strides[1][turned] = kTile;
  loops.sizes[inner] = column_tiles;
  loops.strides[0][inner] = kTile;
  loops.strides[1][inner] = kTile * from_step;
  parallel_ranges(planes * row_tiles * column_tiles, kElementsPerThread / (kTile * kTile),
                  [&](std::int64_t begin, std::int64_t end) {
                    T tile[kTile][kTile];
                    for (std::int64_t i = begin; i < end; ++i) {
                      walk<2>(loops, i, i + 1, [&](const std::array<std::int64_t, 2>& offsets, std::int64_t) {
                        const std::int64_t column = i % column_tiles * kTile;
                        std::int64_t row = i / column_tiles;
                        for (int d = inner - 1; d > turned; --d) row /= loops.sizes[d];
                        row = row % row_tiles * kTile;
                        const std::int64_t height = std::min(kTile, rows - row);
                        const std::int64_t width = std::min(kTile, columns - column);
                        const T* source = from.as<const T>() + offsets[1];
                        T* target = to.as<T>() + offsets[0];
                        for (std::int64_t c = 0; c < width; ++c)
                          for (std::int64_t r = 0; r < height; ++r) tile[r][c] = source[c * from_step + r];
                        for (std::int64_t r = 0; r < height; ++r) std::copy_n(tile[r], width, target + r * to_step);
                      });
                    }
                  });
  return true;
}

template <class T>
void copy_as(const Tensor& from, const Tensor& to) {
  if (!copy_turned<T>(from, to)) elementwise<T, T>(Same(), to, from);
}

// Only the bits matter, so one loop per width serves all types.
void copy_bits(const Tensor& from, const Tensor& to) {
  const std::int64_t width = static_cast<std::int64_t>(size_of(to.dtype));
  if (is_one_run(from, to)) {
    parallel_ranges(to.size(), kElementsPerThread, [&](std::int64_t begin, std::int64_t end) {
      std::memcpy(to.as<char>() + begin * width, from.as<char>() + begin * width,
                  static_cast<std::size_t>((end - begin) * width));
    });
    return;
  }
  switch (width) {
    case 1: return copy_as<std::uint8_t>(from, to);
    case 2: return copy_as<std::uint16_t>(from, to);
    case 4: return copy_as<std::uint32_t>(from, to);
    default: return copy_as<std::uint64_t>(from, to);
  }
}

void copy_cpu(const KernelContext&, std::span<const Tensor> inputs, std::span<const Tensor> outputs, const void*) {
  const Tensor& from = inputs[0];
  const Tensor& to = outputs[0];
  if (to.size() == 0) return;
  if (from.dtype == to.dtype) return copy_bits(from, to);
  visit_dtype(from.dtype, [&](auto from_tag) {
    using From = typename decltype(from_tag)::type;
    visit_dtype(to.dtype, [&](auto to_tag) {
      using To = typename decltype(to_tag)::type;
      if constexpr (!std::is_same_v<From, To>) elementwise<To, From>(Same(), to, from);
    });
  });
}

}  // namespace

Kernel copy_kernel() { return {"copy", copy_cpu, copy_cuda(), true}; }

}  // namespace paceline::detail
