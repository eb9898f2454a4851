#include "device/write_examples.h"

#include <paceline/detail/elementwise.cuh>

namespace paceline::io {
namespace {

// Pixel (y, x) of channel c as resize() makes it: the sum of rows in each column is rounded to float before columns are
// added up.
__device__ float resized_pixel(const WriteExamples& work, const PlacedImage& image, std::int64_t y, std::int64_t x,
                               int c) {
  const TapRange down = work.taps[image.rows + y], across = work.taps[image.columns + x];
  const std::int64_t stride = std::int64_t{image.width} * work.channels;
  const std::uint8_t* column =
      work.pixels + image.pixels + std::int64_t{down.first} * stride + std::int64_t{across.first} * work.channels + c;
  float sum = 0.5f;
  for (int j = 0; j < across.count; ++j, column += work.channels) {
    const std::uint8_t* from = column;
    float rows = 0;
    for (int i = 0; i < down.count; ++i, from += stride)
      rows += work.weights[down.weights + i] * static_cast<float>(*from);
    sum += work.weights[across.weights + j] * rows;
  }
  return static_cast<float>(static_cast<std::uint8_t>(fminf(fmaxf(sum, 0.0f), 255.0f)));
}

__global__ void write_values(const WriteExamples work) {
  const std::int64_t plane = std::int64_t{work.height} * work.width, total = work.count * plane;
  for (std::int64_t i = detail::first_index(); i < total; i += detail::index_step()) {
    const PlacedImage image = work.images[i / plane];
    const std::int64_t at = i % plane, row = at / work.width, column = at % work.width;
    const std::int64_t y = row + image.down;
    const std::int64_t x = (image.flip ? work.width - 1 - column : column) + image.right;
    const bool inside = y >= 0 && y < work.height && x >= 0 && x < work.width;
    float* to = work.batch + image.place * work.channels * plane + at;
    for (int c = 0; c < work.channels; ++c, to += plane) {
      float value = work.offset[c];
      if (inside) {
        const float pixel =
            image.resized ? resized_pixel(work, image, y, x, c)
                          : static_cast<float>(work.pixels[image.pixels + (y * image.width + x) * work.channels + c]);
        value = pixel * work.factor[c] + work.offset[c];
      }
      *to = value;
    }
  }
}

}  // namespace

void write_examples(const WriteExamples& work, Device device, void* stream) {
  detail::select_cuda_device(device.index);
  const std::int64_t values = work.count * work.height * work.width;
  write_values<<<detail::grid_for(values), detail::kThreads, 0, static_cast<cudaStream_t>(stream)>>>(work);
  detail::check_cuda(cudaGetLastError(), "starting the kernel that writes examples");
}

}  // namespace paceline::io
