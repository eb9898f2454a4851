#pragma once
// What a codec adds that the workers of a round encode together. Its encode() writes a proposal. When every worker's is
// there the server makes of them what all agree on; each worker answers that with its own part of the encoding, and
// what it keeps as state follows from its answer and from the mean of all answers. Agreed and answer, one after the
// other, are what decode() takes. Where proposals do not fit together nothing is agreed on (no bytes), and the answers
// are raw elements.

#include <paceline/compression.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace paceline {

// Thread-safe (constant).
class TwoRounds {
 public:
  struct Part {
    float share;  // of the mean
    EncodedBytes bytes;
  };
  using State = std::span<float* const>;

  virtual ~TwoRounds() = default;

  // At the server. The proposals passed check(); the answers have the size that agreed calls for.
  virtual std::vector<std::byte> agree(std::span<const Part> proposals) const = 0;
  virtual std::size_t answer_bytes(EncodedBytes agreed, std::int64_t count) const = 0;
  virtual std::vector<std::byte> mean(EncodedBytes agreed, std::span<const Part> answers) const = 0;

  // At a worker, after encode() with the same state of `count` elements. Throw Corrupt on what no server sends.
  virtual std::vector<std::byte> answer(EncodedBytes agreed, std::int64_t count, State state) const = 0;
  // `mean`: null where the answer was applied, but what it was the mean of was lost on the way.
  virtual void finish(EncodedBytes agreed, EncodedBytes answer, const EncodedBytes* mean, std::int64_t count,
                      State state) const = 0;
};

}  // namespace paceline
