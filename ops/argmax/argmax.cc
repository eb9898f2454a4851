#include "argmax/argmax.h"

#include "shared/labels.h"
#include "shared/rows.h"
#include "shared/without_axes.h"

#include <paceline/detail/elementwise.h>

#include <algorithm>

namespace paceline {

const OpDef& argmax_operator();
const OpDef& argmin_operator();
const OpDef& top1_count_operator();

namespace {

const ArgmaxAttributes& of(const void* attributes) { return *static_cast<const ArgmaxAttributes*>(attributes); }

// With kSmallest, the first smallest.
template <bool kSmallest = false, class T>
std::int64_t first_largest(const T* x, std::int64_t size, std::int64_t stride) {
  using A = accumulator_t<T>;
  std::int64_t best = 0;
  A top = static_cast<A>(x[0]);
  for (std::int64_t i = 1; i < size && top == top; ++i) {
    const A value = static_cast<A>(x[i * stride]);
    if ((kSmallest ? value < top : value > top) || value != value) {
      top = value;
      best = i;
    }
  }
  return best;
}

template <bool kSmallest>
void argmax_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const Shape& shape = in[0].shape;
  const auto view = around_axis(shape, normalize_axis(of(attributes).axis, shape.ndim(), "argmax"));
  const std::int64_t smallest = std::max<std::int64_t>(1, 8192 / view.size);
  std::int64_t* const positions = out[0].as<std::int64_t>();
  visit_dtype(in[0].dtype, [&]<class T>(TypeTag<T>) {
    detail::parallel_ranges(view.lines(), smallest, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i)
        positions[i] = first_largest<kSmallest>(in[0].as<const T>() + view.first(i), view.size, view.inner);
    });
  });
}

void top1_count_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void*) {
  const std::int64_t classes = in[0].shape[1];
  const Labels labels("top1_count", in[1], classes);
  std::int64_t count = 0;
  visit_dtype(in[0].dtype, [&]<class T>(TypeTag<T>) {
    for (std::int64_t row = 0; row < in[0].shape[0]; ++row)
      count += first_largest(in[0].as<const T>() + row * classes, classes, 1) == labels[row];
  });
  out[0].as<std::int64_t>()[0] = count;
}

}  // namespace

namespace {

OpDef extreme_position(const char* name) {
  return OpDef(name)
      .attributes<ArgmaxAttributes>()
      .input("x")
      .infer([name](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        const int axis = normalize_axis(of(attributes).axis, x.ndim(), name);
        require(x.size(axis) > 0, "[", name, "] axis ", axis, " of shape ", x.shape(), " has no elements");
        Shape shape;
        for (int i = 0; i < x.ndim(); ++i) {
          if (i != axis)
            shape.push_back(x.size(i));
          else if (of(attributes).keep_dims)
            shape.push_back(1);
        }
        return std::vector<ArraySpec>{{shape, DType::kInt64}};
      })
      .text([](const void* attributes) {
        return AttributeText{{"axis", str(of(attributes).axis)}, {"keep_dims", of(attributes).keep_dims ? "1" : "0"}};
      });
}

}  // namespace

OpDef argmax_op() { return extreme_position("argmax").cpu(argmax_cpu<false>); }
OpDef argmin_op() { return extreme_position("argmin").cpu(argmax_cpu<true>); }

OpDef top1_count_op() {
  return OpDef("top1_count")
      .input("scores")
      .input("labels")
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        check_scores("top1_count", inputs[0], inputs[1]);
        return std::vector<ArraySpec>{{Shape(), DType::kInt64}};
      })
      .cpu(top1_count_cpu);
}

NDArray argmax(const NDArray& x, int axis, bool keep_dims) {
  return with_an_axis("argmax", x, axis, [=](const NDArray& a) {
    return invoke(argmax_operator(), {a}, ArgmaxAttributes{axis, keep_dims});
  });
}

NDArray argmin(const NDArray& x, int axis, bool keep_dims) {
  return with_an_axis("argmin", x, axis, [=](const NDArray& a) {
    return invoke(argmin_operator(), {a}, ArgmaxAttributes{axis, keep_dims});
  });
}

NDArray top1_count(const NDArray& scores, const NDArray& labels) {
  return invoke(top1_count_operator(), {scores, labels})[0];
}

}  // namespace paceline
