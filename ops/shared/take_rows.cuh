#pragma once
// Rows copied from where positions point, as bytes: embedding and take.

#include <paceline/detail/device_positions.cuh>

#include <cstdint>

namespace paceline {

// One thread for each unit of the result: of `width` units in row i. The row of a position outside [0, size) gets bytes
// of ones, which are NaN in every floating type.
template <class Unit>
__global__ void take_units(std::int64_t rows, std::int64_t count, std::int64_t width,
                           const detail::DevicePositions positions, const Unit* x, Unit* y) {
  for (std::int64_t i = detail::first_index(); i < rows * width; i += detail::index_step()) {
    const std::int64_t row = i / width;
    const std::int64_t position = positions[row % count];
    Unit unit;
    if (position >= 0) {
      unit = x[(row / count * positions.limit + position) * width + i % width];
    } else {
      for (std::size_t b = 0; b < sizeof(Unit); ++b) reinterpret_cast<unsigned char*>(&unit)[b] = 0xff;
    }
    y[i] = unit;
  }
}

// y (outer, count, bytes) = the rows of x (outer, limit, bytes) at positions (count).
inline void take_rows(const KernelContext& context, std::int64_t outer, std::int64_t bytes, std::int64_t count,
                      const detail::DevicePositions& positions, const void* x, void* y) {
  if (outer == 0 || count == 0 || bytes == 0) return;
  const cudaStream_t stream = detail::stream_of(context);
  const auto run = [&]<class Unit>(TypeTag<Unit>) {
    const std::int64_t width = bytes / static_cast<std::int64_t>(sizeof(Unit));
    take_units<Unit><<<detail::grid_for(outer * count * width), detail::kThreads, 0, stream>>>(
        outer * count, count, width, positions, static_cast<const Unit*>(x), static_cast<Unit*>(y));
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
