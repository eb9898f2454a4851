#pragma once
// Batches whose examples are mixed with each other.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "batch_decoder.h"
#include "example_decoder.h"

namespace paceline::io {

// What `decoder` makes, then the steps of the format that mix a batch.
std::unique_ptr<BatchDecoder> mixing(std::unique_ptr<BatchDecoder> decoder, const ExampleFormat& format,
                                     std::shared_ptr<BatchMemory> memory);

// How a batch is mixed: an example keeps the share `kept` of itself.
struct MixedBatch {
  double kept = 1;
  Rectangle pasted;  // from the other example; of no height where values are weighted means
};

// By the first of the steps that is drawn, for images of this size; none: the batch stays as it is.
std::optional<MixedBatch> draw_mixture(std::span<const CheckedStep> steps, int height, int width, std::uint64_t seed);

}  // namespace paceline::io
