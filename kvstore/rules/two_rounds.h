#pragma once
// The additional interface of a codec with two rounds of messages. The workers whose pushes form one update encode
// together. encode() writes a worker's proposal. When all proposals have arrived, the server computes the agreed bytes
// from them. Each worker answers with its own part of the encoding. The new state of a worker follows from its answer
// and from the mean of all answers. decode() takes the agreed bytes, followed by an answer. If the proposals do not fit
// together, the agreed bytes are empty, and the answers are raw elements.

#include <paceline/compression.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace paceline {

// A codec is constant, and so thread-safe.
class TwoRounds {
 public:
  struct Part {
    float share;  // weight of this part in the mean
    EncodedBytes bytes;
  };
  using State = std::span<float* const>;

  virtual ~TwoRounds() = default;

  // The server calls these functions. The proposals have passed check(). Each answer has answer_bytes() bytes.
  virtual std::vector<std::byte> agree(std::span<const Part> proposals) const = 0;
  virtual std::size_t answer_bytes(EncodedBytes agreed, std::int64_t count) const = 0;
  virtual std::vector<std::byte> mean(EncodedBytes agreed, std::span<const Part> answers) const = 0;

  // A worker calls these functions after encode(), with the same state arrays of `count` elements each. Both throw
  // Corrupt for bytes that no server sends.
  virtual std::vector<std::byte> answer(EncodedBytes agreed, std::int64_t count, State state) const = 0;
  // `mean` is null if the answer was applied, but the mean did not reach this worker.
  virtual void finish(EncodedBytes agreed, EncodedBytes answer, const EncodedBytes* mean, std::int64_t count,
                      State state) const = 0;
};

}  // namespace paceline
