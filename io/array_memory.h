#pragma once
// The memory of one array of a batch, filled example by example.

#include <paceline/decoder.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "batch_memory.h"

namespace paceline::io {

// The shape of an array of `examples` examples, each of the shape `example`.
inline Shape batch_shape(std::int64_t examples, const Shape& example) {
  std::vector<std::int64_t> sizes{examples};
  sizes.insert(sizes.end(), example.begin(), example.end());
  return Shape(std::span<const std::int64_t>(sizes));
}

class ArrayMemory {
 public:
  explicit ArrayMemory(ExampleArray array)
      : array_(std::move(array)), bytes_(static_cast<std::size_t>(array_.shape.size()) * size_of(array_.dtype)) {}

  void allocate(BatchMemory& from, std::int64_t examples) {
    memory_ = from.allocate(static_cast<std::size_t>(examples) * bytes_);
  }
  // Of one example.
  std::size_t bytes() const { return bytes_; }
  void* place(std::int64_t example) const {
    return static_cast<char*>(memory_.get()) + static_cast<std::size_t>(example) * bytes_;
  }
  // Returns the first `examples` of the allocated examples as an array, which takes over the memory.
  NamedArrays::value_type take(std::int64_t examples) {
    const std::shared_ptr<void> memory = std::move(memory_);
    return {array_.name, NDArray::wrap(memory.get(), batch_shape(examples, array_.shape), array_.dtype, memory)};
  }

 private:
  ExampleArray array_;
  std::size_t bytes_;
  std::shared_ptr<void> memory_;
};

}  // namespace paceline::io
