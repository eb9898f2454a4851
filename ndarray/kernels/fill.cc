#include "kernels/attributes.h"
#include "kernels/cuda_kernels.h"
#include "launch.h"

#include <paceline/array_recorder.h>
#include <paceline/detail/elementwise.h>
#include <paceline/ndarray.h>
#include <paceline/number.h>

namespace paceline {
namespace {

void fill_cpu(const KernelContext&, std::span<const Tensor>, std::span<const Tensor> outputs, const void* attributes) {
  const double value = static_cast<const detail::Scalar*>(attributes)->value;
  visit_dtype(outputs[0].dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    const auto converted = detail::convert<T>(value);
    detail::elementwise<T>([converted] { return converted; }, outputs[0]);
  });
}

}  // namespace

void NDArray::fill(double value) const {
  require_holds("fill", dtype_, value);
  if (detail::ArrayRecorder* const recorder = detail::array_recorder()) return recorder->fill(*this, value);
  detail::launch_small({"fill", fill_cpu, detail::fill_cuda(), true}, {}, *this,
                       detail::SmallAttributes(detail::Scalar{value}));
}

}  // namespace paceline
