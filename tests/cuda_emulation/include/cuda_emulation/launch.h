#pragma once
// What the build makes of `kernel<<<grid, block, shared_bytes, stream>>>(arguments...)`.

#include <functional>

namespace cuda_emulation {

void launch(const char* name, dim3 grid, dim3 block, cudaStream_t stream, std::function<void()> thread);

// `call` passes its arguments to the kernel; it runs once for each thread, on copies of the arguments as they are now.
template <class Call>
class Launch {
 public:
  Launch(const char* name, Call call, dim3 grid, dim3 block, std::size_t = 0, cudaStream_t stream = nullptr)
      : name_(name), call_(call), grid_(grid), block_(block), stream_(stream) {}

  template <class... Arguments>
  void operator()(const Arguments&... arguments) const {
    static_assert((sizeof(Arguments) + ... + 0) <= 32764, "a kernel takes no more");
    launch(name_, grid_, block_, stream_, [call = call_, ... held = arguments] { call(held...); });
  }

 private:
  const char* name_;
  Call call_;
  dim3 grid_, block_;
  cudaStream_t stream_;
};

}  // namespace cuda_emulation
