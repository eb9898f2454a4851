#pragma once
// The additional interface of a codec with two rounds of messages, where the workers of a round encode together.
// encode() writes a worker's proposal. When all proposals are there, the server computes from them what the workers
// agree on. Each worker answers with its own part of the encoding. The new state of a worker follows from its answer
// and from the mean of all answers. decode() takes the agreed bytes, followed by an answer. If the proposals do not fit
// together, nothing is agreed on (no bytes), and the answers are raw elements.

#include <paceline/compression.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace paceline {

// Constant, and so thread-safe.
class TwoRounds {
 public:
  struct Part {
    float share;  // of the mean
    EncodedBytes bytes;
  };
  using State = std::span<float* const>;

  virtual ~TwoRounds() = default;

  // At the server. The proposals have passed check(). The answers have the size that `agreed` implies.
  virtual std::vector<std::byte> agree(std::span<const Part> proposals) const = 0;
  virtual std::size_t answer_bytes(EncodedBytes agreed, std::int64_t count) const = 0;
  virtual std::vector<std::byte> mean(EncodedBytes agreed, std::span<const Part> answers) const = 0;

  // At a worker, after encode() with the same state of `count` elements. Throw Corrupt for bytes that no server sends.
  virtual std::vector<std::byte> answer(EncodedBytes agreed, std::int64_t count, State state) const = 0;
  // `mean`: null if the answer was applied, but the mean did not reach this worker.
  virtual void finish(EncodedBytes agreed, EncodedBytes answer, const EncodedBytes* mean, std::int64_t count,
                      State state) const = 0;
};

}  // namespace paceline
