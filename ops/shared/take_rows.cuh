#pragma once
// Rows copied from where positions point, as bytes: embedding and take.

#include <paceline/detail/elementwise.cuh>

#include <cstdint>

namespace paceline {

// One thread for each unit of the result: of `width` units in row i. A position outside [0, size) cannot fail the task
// here: its row gets bytes of ones, which are NaN in every floating type.
template <class Unit>
__global__ void take_units(std::int64_t rows, std::int64_t count, std::int64_t size, std::int64_t width,
                           DType position_type, const void* positions, const Unit* x, Unit* y) {
  for (std::int64_t i = detail::first_index(); i < rows * width; i += detail::index_step()) {
    const std::int64_t row = i / width;
    const std::int64_t position = detail::load_as<std::int64_t>(position_type, positions, row % count);
    Unit unit;
    if (position >= 0 && position < size) {
      unit = x[(row / count * size + position) * width + i % width];
    } else {
      for (std::size_t b = 0; b < sizeof(Unit); ++b) reinterpret_cast<unsigned char*>(&unit)[b] = 0xff;
    }
    y[i] = unit;
  }
}

// y (outer, count, bytes) = the rows of x (outer, size, bytes) at positions (count).
inline void take_rows(const KernelContext& context, std::int64_t outer, std::int64_t size, std::int64_t bytes,
                      const Tensor& positions, const void* x, void* y) {
  const std::int64_t count = positions.size();
  if (outer == 0 || count == 0 || bytes == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  const auto run = [&]<class Unit>(TypeTag<Unit>) {
    const std::int64_t width = bytes / static_cast<std::int64_t>(sizeof(Unit));
    take_units<Unit><<<detail::grid_for(outer * count * width), detail::kThreads, 0, stream>>>(
        outer * count, count, size, width, positions.dtype, positions.data, static_cast<const Unit*>(x),
        static_cast<Unit*>(y));
  };
  const auto places =
      reinterpret_cast<std::uintptr_t>(x) | reinterpret_cast<std::uintptr_t>(y) | static_cast<std::uintptr_t>(bytes);
  if (places % 16 == 0)
    run(TypeTag<uint4>{});
  else if (places % 4 == 0)
    run(TypeTag<std::uint32_t>{});
  else
    run(TypeTag<std::uint8_t>{});
  detail::check_cuda(cudaGetLastError(), "starting to take rows");
}

}  // namespace paceline
