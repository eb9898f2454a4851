#include "index/index.h"

#include "binary/binary.h"
#include "copy/copy.h"
#include "reshape/reshape.h"
#include "shared/rows.h"
#include "shared/text.h"
#include "shared/wide.h"
#include "where/where.h"

#include <paceline/detail/elementwise.h>
#include <paceline/detail/wrapping.h>

#include <algorithm>
#include <cstring>
#include <numeric>

namespace paceline {

const OpDef& gather_operator();
const OpDef& scatter_add_operator();
const OpDef& take_operator();
const OpDef& one_hot_operator();
const OpDef& flat_positions_operator();
const OpDef& reshape_operator();

namespace {

const TakeAttributes& take_of(const void* attributes) { return *static_cast<const TakeAttributes*>(attributes); }
int axis_of(const void* attributes) { return static_cast<const IndexAttributes*>(attributes)->axis; }

// Positions of either type, all checked to lie in [0, size), or, where negative ones count from the back, in [-size,
// size).
class Positions {
 public:
  Positions(const char* name, const Tensor& positions, std::int64_t size, bool from_back = false)
      : positions_(positions), size_(size) {
    for (std::int64_t i = 0; i < positions.size(); ++i)
      require(given(i) >= (from_back ? -size : 0) && given(i) < size, "[", name, "] position ", given(i), " (number ",
              i, ") is outside [", from_back ? -size : 0, ", ", size, ")");
  }
  std::int64_t operator[](std::int64_t i) const { return given(i) < 0 ? given(i) + size_ : given(i); }

 private:
  std::int64_t given(std::int64_t i) const {
    return positions_.dtype == DType::kInt32 ? positions_.as<const std::int32_t>()[i]
                                             : positions_.as<const std::int64_t>()[i];
  }

  const Tensor& positions_;
  const std::int64_t size_;
};

// Calls visit(place, element) for each element of `positions`: `place` counts them, `element` is where it points in a
// row-major array of `shape`.
template <class Visit>
void for_each_element(const char* name, const Tensor& tensor, const Shape& shape, int axis, const Visit& visit) {
  const Positions positions(name, tensor, shape[axis]);
  const Strides strides = row_major(shape);
  std::int64_t index[Shape::kMaxDims] = {};
  std::int64_t base = 0;  // of the index without `axis`
  const int last = shape.ndim() - 1;
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    visit(i, base + positions[i] * strides[axis]);
    for (int d = last; d >= 0; --d) {
      const std::int64_t stride = d == axis ? 0 : strides[d];
      base += stride;
      if (++index[d] < tensor.shape[d]) break;
      base -= stride * tensor.shape[d];
      index[d] = 0;
    }
  }
}

void gather_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const Shape& shape = in[0].shape;
  const int axis = normalize_axis(axis_of(attributes), shape.ndim(), "gather");
  visit_dtype(in[0].dtype, [&]<class T>(TypeTag<T>) {
    const T* const x = in[0].as<const T>();
    T* const y = out[0].as<T>();
    for_each_element("gather", in[1], shape, axis, [=](std::int64_t i, std::int64_t from) { y[i] = x[from]; });
  });
}

// The workspace takes the sums of small types.
void scatter_add_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                     const void* attributes) {
  const Shape& shape = in[0].shape;
  const int axis = normalize_axis(axis_of(attributes), shape.ndim(), "scatter_add");
  visit_dtype(in[0].dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (!std::is_same_v<T, bool>) {
      using A = accumulator_t<T>;
      A* const sums = std::is_same_v<A, T> ? static_cast<A*>(out[0].data) : static_cast<A*>(context.workspace);
      const T* const x = in[0].as<const T>();
      const T* const values = in[2].as<const T>();
      for (std::int64_t i = 0; i < shape.size(); ++i) sums[i] = static_cast<A>(x[i]);
      for_each_element("scatter_add", in[1], shape, axis, [=](std::int64_t i, std::int64_t to) {
        sums[to] = detail::wrapping_sum(sums[to], static_cast<A>(values[i]));
      });
      if constexpr (!std::is_same_v<A, T>)
        for (std::int64_t i = 0; i < shape.size(); ++i) out[0].as<T>()[i] = T(sums[i]);
    }
  });
}

void take_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const AxisView view = around_axis(in[0].shape, normalize_axis(take_of(attributes).axis, in[0].shape.ndim(), "take"));
  const Positions positions("take", in[1], view.size, true);
  const std::int64_t count = in[1].size();
  const auto width = static_cast<std::int64_t>(size_of(in[0].dtype)) * view.inner;
  if (out[0].size() == 0) return;
  detail::parallel_ranges(
      view.outer * count, std::max<std::int64_t>(1, 65536 / width), [&](std::int64_t begin, std::int64_t end) {
        for (std::int64_t i = begin; i < end; ++i)
          std::memcpy(out[0].as<char>() + i * width,
                      in[0].as<const char>() + (i / count * view.size + positions[i % count]) * width,
                      static_cast<std::size_t>(width));
      });
}

void one_hot_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const std::int64_t classes = static_cast<const OneHotAttributes*>(attributes)->classes;
  const Positions positions("one_hot", in[0], classes);
  visit_dtype(out[0].dtype, [&]<class T>(TypeTag<T>) {
    T* const y = out[0].as<T>();
    std::fill_n(y, out[0].size(), detail::convert<T>(0));
    for (std::int64_t i = 0; i < in[0].size(); ++i) y[i * classes + positions[i]] = detail::convert<T>(1);
  });
}

void flat_positions_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                        const void* attributes) {
  const auto& sizes = static_cast<const FlatPositionsAttributes*>(attributes)->sizes;
  const std::int64_t count = out[0].size();
  auto* const flat = out[0].as<std::int64_t>();
  std::fill_n(flat, count, 0);
  for (std::size_t axis = 0; axis < sizes.size(); ++axis) {
    Tensor row = in[0];
    row.shape = out[0].shape;
    row.data =
        in[0].as<char>() + static_cast<std::int64_t>(axis) * count * static_cast<std::int64_t>(size_of(row.dtype));
    const Positions positions("gather_nd", row, sizes[axis], true);
    for (std::int64_t i = 0; i < count; ++i) flat[i] = flat[i] * sizes[axis] + positions[i];
  }
}

void check_positions(const char* name, const NDArray& positions) {
  require(positions.dtype() == DType::kInt32 || positions.dtype() == DType::kInt64, "[", name, "] positions is ",
          positions.describe(), ", expected int32 or int64");
}

// gather and scatter_add walk the same pairs of elements.
void check_pairs(const char* name, const NDArray& x, const NDArray& positions, const void* attributes) {
  check_positions(name, positions);
  const int axis = normalize_axis(axis_of(attributes), x.ndim(), name);
  bool fits = positions.ndim() == x.ndim();
  for (int i = 0; fits && i < x.ndim(); ++i) fits = i == axis || positions.size(i) <= x.size(i);
  require(fits, "[", name, "] positions has shape ", positions.shape(), ", which does not lie inside x, ", x.describe(),
          ", but along axis ", axis);
}

// `x` with `axis` first.
NDArray axis_first(const NDArray& x, int axis, bool back = false) {
  std::vector<int> axes(static_cast<std::size_t>(x.ndim()));
  std::iota(axes.begin(), axes.end(), 0);
  if (back)
    std::rotate(axes.begin(), axes.begin() + 1, axes.begin() + axis + 1);
  else
    std::rotate(axes.begin(), axes.begin() + axis, axes.begin() + axis + 1);
  return x.permute(axes);
}

NDArray zeros_like(const ArraySpec& spec, const NDArray& near) {
  return NDArray::zeros(spec.shape, spec.dtype, near.device(), near.engine());
}

AttributeText axis_text(const void* attributes) { return {{"axis", str(axis_of(attributes))}}; }

}  // namespace

OpDef gather_op() {
  return OpDef("gather")
      .attributes<IndexAttributes>()
      .input("x")
      .input("positions")
      .saves_inputs({1})
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        check_pairs("gather", inputs[0], inputs[1], attributes);
        return std::vector<ArraySpec>{{inputs[1].shape(), inputs[0].dtype()}};
      })
      .cpu(gather_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {scatter_add(zeros_like(call.input_specs[0], gradients[0]), call.inputs[1], gradients[0],
                            call.attributes<IndexAttributes>().axis),
                Gradient()};
      })
      .text(axis_text);
}

OpDef scatter_add_op() {
  return OpDef("scatter_add")
      .attributes<IndexAttributes>()
      .input("x")
      .input("positions")
      .input("values")
      .saves_inputs({1})
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto& [x, positions, values] = std::tie(inputs[0], inputs[1], inputs[2]);
        check_pairs("scatter_add", x, positions, attributes);
        require(x.dtype() != DType::kBool, "[scatter_add] x is ", x.describe(), ", cast it first");
        require(values.shape() == positions.shape() && values.dtype() == x.dtype(), "[scatter_add] values is ",
                values.describe(), ", expected ", name_of(x.dtype()), " ", positions.shape());
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void*) {
        const bool small = size_of(inputs[0].dtype()) == 2;
        return small ? static_cast<std::size_t>(inputs[0].size()) * sizeof(float) : 0;
      })
      .cpu(scatter_add_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
        std::vector<Gradient> result(3);
        if (call.wants_gradient(0)) result[0] = gradients[0];
        if (call.wants_gradient(2))
          result[2] = gather(gradients[0], call.inputs[1], call.attributes<IndexAttributes>().axis);
        return result;
      })
      .text(axis_text);
}

OpDef take_op() {
  return OpDef("take")
      .attributes<TakeAttributes>()
      .input("x")
      .input("positions")
      .saves_inputs({1})
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        check_positions("take", inputs[1]);
        const int axis = normalize_axis(take_of(attributes).axis, x.ndim(), "take");
        require(axis == 0 || !take_of(attributes).sparse_gradient, "[take] axis is ", axis, " of x ", x.describe(),
                ", expected 0 for a row-sparse gradient");
        require(x.ndim() - 1 + inputs[1].ndim() <= Shape::kMaxDims, "[take] x is ", x.describe(),
                " and positions has shape ", inputs[1].shape(), ": the result would have more than ", Shape::kMaxDims,
                " dimensions");
        Shape shape;
        for (int i = 0; i < axis; ++i) shape.push_back(x.size(i));
        for (const std::int64_t size : inputs[1].shape()) shape.push_back(size);
        for (int i = axis + 1; i < x.ndim(); ++i) shape.push_back(x.size(i));
        return std::vector<ArraySpec>{{shape, x.dtype()}};
      })
      .cpu(take_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const ArraySpec& spec = call.input_specs[0];
        const auto& how = call.attributes<TakeAttributes>();
        const int axis = normalize_axis(how.axis, spec.shape.ndim(), "take");
        const NDArray given = call.inputs[1].cast(DType::kInt64).contiguous().view({call.inputs[1].size()});
        const NDArray positions = where(less(given, 0), given + spec.shape[axis], given);
        Shape slices = spec.shape;
        slices[axis] = positions.size();
        const NDArray by_slice = axis_first(gradients[0].contiguous().view(slices), axis).contiguous();
        Shape table = by_slice.shape();
        table[0] = spec.shape[axis];
        RowSparse sparse{positions, by_slice, table};
        if (how.sparse_gradient) return {std::move(sparse), Gradient()};
        return {axis_first(summed_rows(sparse), axis, true), Gradient()};
      })
      .text([](const void* attributes) {
        const auto& [axis, sparse_gradient] = take_of(attributes);
        return AttributeText{{"axis", str(axis)}, {"sparse_gradient", sparse_gradient ? "1" : "0"}};
      });
}

OpDef one_hot_op() {
  return OpDef("one_hot")
      .attributes<OneHotAttributes>()
      .input("positions")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto& [classes, dtype] = *static_cast<const OneHotAttributes*>(attributes);
        check_positions("one_hot", inputs[0]);
        require(classes >= 1 && inputs[0].ndim() < Shape::kMaxDims, "[one_hot] classes is ", classes,
                " and positions has shape ", inputs[0].shape(), ", expected at least 1 and fewer than ",
                Shape::kMaxDims, " dimensions");
        Shape shape = inputs[0].shape();
        shape.push_back(classes);
        return std::vector<ArraySpec>{{shape, dtype}};
      })
      .cpu(one_hot_cpu)
      .text([](const void* attributes) {
        const auto& [classes, dtype] = *static_cast<const OneHotAttributes*>(attributes);
        return AttributeText{{"classes", str(classes)}, {"dtype", name_of(dtype)}};
      });
}

OpDef flat_positions_op() {
  return OpDef("flat_positions")
      .attributes<FlatPositionsAttributes>()
      .input("positions")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& positions = inputs[0];
        const auto& sizes = static_cast<const FlatPositionsAttributes*>(attributes)->sizes;
        check_positions("gather_nd", positions);
        require(positions.ndim() >= 1 && positions.size(0) == static_cast<std::int64_t>(sizes.size()),
                "[gather_nd] positions is ", positions.describe(), ", expected ", sizes.size(), " along axis 0");
        Shape shape;
        for (int i = 1; i < positions.ndim(); ++i) shape.push_back(positions.size(i));
        return std::vector<ArraySpec>{{shape, DType::kInt64}};
      })
      .cpu(flat_positions_cpu)
      .text([](const void* attributes) {
        const auto& sizes = static_cast<const FlatPositionsAttributes*>(attributes)->sizes;
        return AttributeText{{"sizes", text_of(sizes)}};
      });
}

NDArray gather_nd(const NDArray& x, const NDArray& positions) {
  require(positions.ndim() >= 1 && positions.size(0) >= 1 && positions.size(0) <= x.ndim(), "[gather_nd] positions is ",
          positions.describe(), ", expected 1 to ", x.ndim(), " along axis 0 for x, ", x.describe());
  const int axes = static_cast<int>(positions.size(0));
  FlatPositionsAttributes attributes;
  Shape rows{1};
  for (int i = 0; i < x.ndim(); ++i) {
    if (i < axes)
      attributes.sizes.push_back(x.size(i)), rows[0] *= x.size(i);
    else
      rows.push_back(x.size(i));
  }
  return take(invoke(reshape_operator(), {x}, ReshapeAttributes{rows, true}),
              invoke(flat_positions_operator(), {positions}, std::move(attributes)));
}

NDArray nonzero(const NDArray& x) {
  const NDArray holds = not_equal(x, 0).contiguous().to(Device());
  holds.wait();
  const auto* const values = holds.data_as<const bool>();
  std::vector<std::int64_t> positions;
  for (std::int64_t i = 0; i < holds.size(); ++i) {
    if (!values[i]) continue;
    std::int64_t rest = i, stride = holds.size();
    for (const std::int64_t size : holds.shape()) {
      stride /= size;
      positions.push_back(rest / stride);
      rest %= stride;
    }
  }
  const auto ndim = static_cast<std::int64_t>(x.ndim());
  const auto found =
      ndim > 0 ? static_cast<std::int64_t>(positions.size()) / ndim : std::count(values, values + 1, true);
  return NDArray::from(positions, {found, ndim}, x.device(), x.engine());
}

NDArray masked_select(const NDArray& x, const NDArray& mask) {
  require(mask.dtype() == DType::kBool, "[masked_select] mask is ", mask.describe(), ", expected bool");
  const Shape shape = broadcast(x.shape(), mask.shape());
  const NDArray places = nonzero(reshape(broadcast_to(mask, shape), {-1}));
  return take(reshape(broadcast_to(x, shape), {-1}), reshape(places, {-1}));
}

NDArray masked_fill(const NDArray& x, const NDArray& mask, Number value) {
  require_holds("masked_fill", x.dtype(), value.value());
  return where(mask, NDArray::full({}, value.value(), x.dtype(), x.device(), x.engine()), x);
}

NDArray gather(const NDArray& x, const NDArray& positions, int axis) {
  return invoke(gather_operator(), {x, positions}, IndexAttributes{axis});
}
NDArray scatter_add(const NDArray& x, const NDArray& positions, const NDArray& values, int axis) {
  return invoke(scatter_add_operator(), {x, positions, values}, IndexAttributes{axis});
}
NDArray take(const NDArray& x, const NDArray& positions, int axis, bool sparse_gradient) {
  return invoke(take_operator(), {x, positions}, TakeAttributes{axis, sparse_gradient});
}
NDArray one_hot(const NDArray& positions, std::int64_t classes, DType dtype) {
  return invoke(one_hot_operator(), {positions}, OneHotAttributes{classes, dtype});
}

}  // namespace paceline
