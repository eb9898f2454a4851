#include "csr_matmul/csr_matmul.h"

#include "shared/lanes.h"
#include "shared/wide.h"

#include <paceline/detail/elementwise.h>

#include <algorithm>

namespace paceline {

const OpDef& csr_matmul_operator();
const OpDef& csr_matmul_backward_values_operator();

namespace {

const CsrMatmulAttributes& of(const void* attributes) { return *static_cast<const CsrMatmulAttributes*>(attributes); }

// The places of the elements, checked.
class Elements {
 public:
  Elements(const char* name, const Tensor& starts, const Tensor& columns, const Shape& shape)
      : rows_(shape[0]), starts_(starts.as<const std::int64_t>()), columns_(columns.as<const std::int64_t>()) {
    const std::int64_t count = columns.size();
    for (std::int64_t row = 0; row < rows_; ++row)
      require(starts_[row] <= starts_[row + 1], "[", name, "] starts fall from ", starts_[row], " to ",
              starts_[row + 1], " behind row ", row);
    require(starts_[0] == 0 && starts_[rows_] == count, "[", name, "] starts go from ", starts_[0], " to ",
            starts_[rows_], ", expected 0 to ", count);
    for (std::int64_t i = 0; i < count; ++i)
      require(columns_[i] >= 0 && columns_[i] < shape[1], "[", name, "] column ", columns_[i], " (number ", i,
              ") is outside [0, ", shape[1], ")");
  }

  // Calls body(number, row, column) for the elements of rows [begin, end).
  template <class Body>
  void for_each(std::int64_t begin, std::int64_t end, const Body& body) const {
    for (std::int64_t row = begin; row < end; ++row)
      for (std::int64_t i = starts_[row]; i < starts_[row + 1]; ++i) body(i, row, columns_[i]);
  }
  std::int64_t rows() const { return rows_; }

 private:
  std::int64_t rows_;
  const std::int64_t *starts_, *columns_;
};

// Inputs: starts, columns, values, b. The workspace takes the sums of small types. Threads share the rows of the result
// or, when its rows are the matrix's columns, its columns: each sum is made by one of them in order.
void matmul_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                const void* attributes) {
  const auto& [shape, transpose] = of(attributes);
  const Elements elements("csr_matmul", in[0], in[1], shape);
  const std::int64_t width = out[0].shape[1], height = out[0].shape[0];
  visit_floating(in[2].dtype, "csr_matmul", [&, transpose = transpose]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    A* const sums = static_cast<A*>(std::is_same_v<T, A> ? out[0].data : context.workspace);
    const T* const values = in[2].as<const T>();
    const T* const b = in[3].as<const T>();
    std::fill_n(sums, out[0].size(), A(0));
    const auto add = [&](std::int64_t row_begin, std::int64_t row_end, std::int64_t begin, std::int64_t end) {
      elements.for_each(row_begin, row_end, [&](std::int64_t i, std::int64_t row, std::int64_t column) {
        const A value = static_cast<A>(values[i]);
        A* const to = sums + (transpose ? column : row) * width;
        const T* const from = b + (transpose ? row : column) * width;
        for (std::int64_t k = begin; k < end; ++k) to[k] += value * static_cast<A>(from[k]);
      });
    };
    const std::int64_t work = in[1].size() * width;  // products
    if (transpose)
      detail::parallel_ranges(width, detail::kElementsPerThread * width / std::max<std::int64_t>(1, work),
                              [&](std::int64_t begin, std::int64_t end) { add(0, elements.rows(), begin, end); });
    else
      detail::parallel_ranges(height, detail::kElementsPerThread * height / std::max<std::int64_t>(1, work),
                              [&](std::int64_t begin, std::int64_t end) { add(begin, end, 0, width); });
    if constexpr (!std::is_same_v<T, A>)
      for (std::int64_t i = 0; i < out[0].size(); ++i) out[0].as<T>()[i] = T(sums[i]);
  });
}

// Inputs: starts, columns, gradient of the product, b. An element's gradient is the product of the rows that it joins.
void backward_values_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                         const void* attributes) {
  const auto& [shape, transpose] = of(attributes);
  const Elements elements("csr_matmul_backward_values", in[0], in[1], shape);
  const std::int64_t width = in[2].shape[1], work = in[1].size() * width;
  visit_floating(in[2].dtype, "csr_matmul", [&, transpose = transpose]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    detail::parallel_ranges(
        elements.rows(), detail::kElementsPerThread * elements.rows() / std::max<std::int64_t>(1, work),
        [&](std::int64_t begin, std::int64_t end) {
          elements.for_each(begin, end, [&](std::int64_t i, std::int64_t row, std::int64_t column) {
            const T* const dy = in[2].as<const T>() + (transpose ? column : row) * width;
            const T* const b = in[3].as<const T>() + (transpose ? row : column) * width;
            out[0].as<T>()[i] =
                T(sum_lanes<A>(width, [=](std::int64_t k) { return static_cast<A>(dy[k]) * static_cast<A>(b[k]); }));
          });
        });
  });
}

void check(const char* name, const std::vector<NDArray>& inputs, const void* attributes) {
  const auto& [starts, columns] = std::tie(inputs[0], inputs[1]);
  const Shape& shape = of(attributes).shape;
  require(shape.ndim() == 2 && shape[0] >= 0 && shape[1] >= 0, "[", name, "] the sparse matrix has shape ", shape,
          ", expected (rows, columns)");
  require(starts.dtype() == DType::kInt64 && starts.shape() == Shape{shape[0] + 1} &&
              columns.dtype() == DType::kInt64 && columns.ndim() == 1,
          "[", name, "] starts is ", starts.describe(), " and columns ", columns.describe(), ", expected int64 ",
          Shape{shape[0] + 1}, " and int64 with one dimension");
}

AttributeText text(const void* attributes) {
  return {{"shape", of(attributes).shape.text()}, {"transpose", of(attributes).transpose ? "1" : "0"}};
}

}  // namespace

OpDef csr_matmul_op() {
  return OpDef("csr_matmul")
      .attributes<CsrMatmulAttributes>()
      .input("starts")
      .input("columns")
      .input("values")
      .input("b")
      .saves_inputs({0, 1, 2, 3})
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        check("csr_matmul", inputs, attributes);
        const auto& [columns, values, b] = std::tie(inputs[1], inputs[2], inputs[3]);
        const auto& [shape, transpose] = of(attributes);
        require(values.shape() == columns.shape() && is_floating(values.dtype()), "[csr_matmul] values is ",
                values.describe(), ", expected a floating type and ", columns.shape());
        require(b.ndim() == 2 && b.size(0) == shape[transpose ? 0 : 1] && b.dtype() == values.dtype(),
                "[csr_matmul] b is ", b.describe(), ", expected ", name_of(values.dtype()), " (",
                shape[transpose ? 0 : 1], ", any)");
        return std::vector<ArraySpec>{{{shape[transpose ? 1 : 0], b.size(1)}, values.dtype()}};
      })
      .workspace([](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto& [shape, transpose] = of(attributes);
        const Shape result{shape[transpose ? 1 : 0], inputs[3].size(1)};
        return is_half(inputs[2].dtype()) ? static_cast<std::size_t>(result.size()) * sizeof(float) : 0;
      })
      .cpu(matmul_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
        const auto& how = call.attributes<CsrMatmulAttributes>();
        const auto& [starts, columns, values, b] =
            std::tie(call.inputs[0], call.inputs[1], call.inputs[2], call.inputs[3]);
        std::vector<Gradient> result(4);
        if (call.wants_gradient(2))
          result[2] =
              invoke(csr_matmul_backward_values_operator(), {starts, columns, gradients[0], b}, call.attribute_data)[0];
        if (call.wants_gradient(3))
          result[3] = csr_matmul({starts, columns, values, how.shape}, gradients[0], !how.transpose);
        return result;
      })
      .text(text);
}

OpDef csr_matmul_backward_values_op() {
  constexpr const char* kName = "csr_matmul_backward_values";
  return OpDef(kName)
      .attributes<CsrMatmulAttributes>()
      .input("starts")
      .input("columns")
      .input("gradient")
      .input("b")
      .infer([=](const std::vector<NDArray>& inputs, const void* attributes) {
        check(kName, inputs, attributes);
        const auto& [gradient, b] = std::tie(inputs[2], inputs[3]);
        const auto& [shape, transpose] = of(attributes);
        require(is_floating(b.dtype()) && gradient.dtype() == b.dtype() && b.ndim() == 2 &&
                    b.size(0) == shape[transpose ? 0 : 1] &&
                    gradient.shape() == Shape{shape[transpose ? 1 : 0], b.size(1)},
                "[", kName, "] gradient is ", gradient.describe(), ", which does not fit b, ", b.describe());
        return std::vector<ArraySpec>{{inputs[1].shape(), b.dtype()}};
      })
      .cpu(backward_values_cpu)
      .text(text);
}

NDArray csr_matmul(const Csr& a, const NDArray& b, bool transpose) {
  return invoke(csr_matmul_operator(), {a.starts, a.columns, a.values, b}, CsrMatmulAttributes{a.shape, transpose});
}

}  // namespace paceline
