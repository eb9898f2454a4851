#pragma once
// Decoded images in memory of a CUDA device become values of a batch there.

#include <paceline/device.h>

#include <cstdint>

namespace paceline::io {

// The inputs of one output sample: `weights` counts from the first weight of all.
struct TapRange {
  std::int32_t first;
  std::int32_t count;
  std::int64_t weights;
};

struct PlacedImage {
  std::int64_t pixels;  // the first, counted from that of all images
  std::int64_t place;   // in the batch
  std::int32_t width;
  std::int32_t down, right;  // of the first row and column; may be outside
  bool flip;
  bool resized;
  std::int64_t rows, columns;  // where resized: of output row 0 and column 0 among the taps
};

// Addresses are the device's.
struct WriteExamples {
  const std::uint8_t* pixels;  // rows of interleaved channels
  const PlacedImage* images;
  const TapRange* taps;
  const float* weights;
  std::int64_t count;  // of images
  float* batch;        // (examples, channels, height, width)
  int channels, height, width;
  float factor[3], offset[3];  // of each channel
};

// Issues it to `stream` (a cudaStream_t). The same values as ExampleDecoder writes.
void write_examples(const WriteExamples& work, Device device, void* stream);

}  // namespace paceline::io
