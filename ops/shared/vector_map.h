#pragma once
// Element-wise kernels: detail::elementwise for any strides and types, and for contiguous float32 arrays of one shape a
// loop that is compiled for AVX2 as well, chosen when it runs. Both do the same arithmetic without fused
// multiply-add, so the results do not depend on the processor.

#include <paceline/detail/elementwise.h>
#include <paceline/detail/vector_code.h>

namespace paceline {

inline bool is_row_major(const Tensor& x) { return x.strides == row_major(x.shape); }

namespace vector_map_detail {

template <class F, class... In>
[[gnu::always_inline]] inline void run(const F& f, std::int64_t count, float* out, const In*... in) {
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) out[i] = f(in[i]...);
}

template <class F, class... In>
void run_baseline(const F& f, std::int64_t count, float* out, const In*... in) {
  run(f, count, out, in...);
}

#ifdef __x86_64__
template <class F, class... In>
[[gnu::target("avx2")]] void run_avx2(const F& f, std::int64_t count, float* out, const In*... in) {
  run(f, count, out, in...);
}
#endif

}  // namespace vector_map_detail

using detail::vector_code;

// out[i] = f(in[i]...) for contiguous float arrays, on the calling thread.
template <class F, class... In>
void vector_map(const F& f, std::int64_t count, float* out, const In*... in) {
#ifdef __x86_64__
  if (detail::has_avx2()) return vector_map_detail::run_avx2(f, count, out, in...);
#endif
  vector_map_detail::run_baseline(f, count, out, in...);
}

// out = f(inputs...) for operands of one type, the inputs broadcast to out's shape.
template <class T, class F, class... Inputs>
void map_elements(const F& f, const Tensor& out, const Inputs&... inputs) {
  if constexpr (std::is_same_v<T, float>) {
    if (is_row_major(out) && ((inputs.strides == out.strides && inputs.shape == out.shape) && ...)) {
      constexpr std::int64_t kSmallest = 65536;  // elements per thread: waking one takes some 30 microseconds
      detail::parallel_ranges(out.size(), kSmallest, [&](std::int64_t begin, std::int64_t end) {
        vector_map(f, end - begin, out.as<float>() + begin, (inputs.template as<const float>() + begin)...);
      });
      return;
    }
  }
  [&]<class... Type>(TypeTag<Type>...) {
    detail::elementwise<T, Type...>(f, out, inputs...);
  }(((void)inputs, TypeTag<T>{})...);
}

}  // namespace paceline
