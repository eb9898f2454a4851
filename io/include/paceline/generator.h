#pragma once
// Batches of examples that a function makes.

#include <paceline/decoder.h>
#include <paceline/pipeline_iterator.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace paceline {

// How examples are dealt.
struct GeneratorOptions {
  std::int64_t batch = 64;                    // examples in a batch of this process
  std::optional<std::uint64_t> shuffle = {};  // seed of the order; none: by their numbers
  std::shared_ptr<Source> source = {};        // none: all examples
  int decode_threads = 0;                     // that call the function; 0: as PipelineIterator chooses
  int prefetch = 0;                           // batches made ahead; 0: likewise
};

// Calls a function of yours in threads of its own. Positions are dealt as MemoryIterator deals them. What the function
// throws, next() throws.
class GeneratorIterator final : public PipelineIterator {
 public:
  // Writes all elements of array i of example `number` to to[i], row-major. Several threads call it at a time. `seed`
  // is what random choices may depend on: it follows from `shuffle`, the epoch and the position.
  using Example = std::function<void(std::int64_t number, std::uint64_t seed, std::span<void* const> to)>;
  // Writes the next example likewise; false, and nothing is written, at the end.
  using Next = std::function<bool(std::span<void* const> to)>;
  // Begins an epoch: the function that gives its examples, from the first on.
  using Begin = std::function<Next(std::int64_t epoch)>;

  // Examples 0 to count - 1. Throws InvalidArgument for arrays without a name or elements, and a count below 1.
  GeneratorIterator(std::vector<ExampleArray> arrays, std::int64_t count, Example example,
                    GeneratorOptions options = {});
  // The first `count` examples of each epoch, made one after the other in one thread. A process that delivers a part of
  // them makes and drops the others before them, and begins anew for what lost workers left. next() throws
  // InvalidArgument where there are fewer. There is no `shuffle`, and `decode_threads` is 0 or 1.
  GeneratorIterator(std::vector<ExampleArray> arrays, std::int64_t count, Begin begin, GeneratorOptions options = {});
};

}  // namespace paceline
