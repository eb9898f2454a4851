#pragma once
#include <paceline/kernel.h>

#include <cstddef>
#include <cstring>
#include <type_traits>

namespace paceline::detail {

// Does this view have every byte of its memory, so that writing it leaves nothing of the old contents?
bool covers_storage(const NDArray& array);

// Arrays that the caller keeps until the call returns.
using References = std::span<const NDArray* const>;

// Attributes of a few plain bytes: they travel in the task.
class SmallAttributes {
 public:
  SmallAttributes() = default;
  template <class Attributes>
  explicit SmallAttributes(const Attributes& attributes) {
    static_assert(sizeof(Attributes) <= sizeof(bytes_) && std::is_trivially_copyable_v<Attributes>);
    std::memcpy(bytes_, &attributes, sizeof(Attributes));
  }
  const void* get() const { return bytes_; }

 private:
  alignas(8) std::byte bytes_[16] = {};
};

// launch() of simple arithmetic, where the caller's time counts. On small arrays that nothing else uses the kernel runs
// before this returns.
void launch_small(const Kernel& kernel, References inputs, const NDArray& output,
                  const SmallAttributes& attributes = {}, int priority = 0);

// The same for kernels whose inputs may be on another CPU device than the output.
void launch_anywhere(const Kernel& kernel, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
                     const LaunchOptions& options);

}  // namespace paceline::detail
