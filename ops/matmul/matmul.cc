#include "matmul/matmul.h"

#include "reshape/reshape.h"

namespace paceline {

const OpDef& matmul_operator();
const OpDef& reshape_operator();

namespace {

const MatmulAttributes& of(const void* attributes) { return *static_cast<const MatmulAttributes*>(attributes); }

// (..., m, k) x (k, n) with more than two axes on the left: one product with all rows.
bool shares_right(const NDArray& a, const NDArray& b) { return a.ndim() > 2 && b.ndim() == 2; }

NDArray as_rows(const NDArray& x) {
  std::int64_t rows = 1;
  for (int i = 0; i + 1 < x.ndim(); ++i) rows *= x.size(i);
  return x.contiguous().view({rows, x.size(-1)});
}

ArraySpec product_spec(const std::vector<NDArray>& inputs, const void* attributes) {
  const NDArray& a = inputs[0];
  const NDArray& b = inputs[1];
  const MatmulAttributes& transposed = of(attributes);
  require(a.dtype() == b.dtype(), "[matmul] a is ", name_of(a.dtype()), " and b is ", name_of(b.dtype()),
          ", cast one of them");
  require(is_floating(a.dtype()), "[matmul] a is ", name_of(a.dtype()), ", expected a floating type");
  require(shares_right(a, b) || (a.ndim() == b.ndim() && (a.ndim() == 2 || a.ndim() == 3)), "[matmul] a has ", a.ndim(),
          " dimensions and b has ", b.ndim(), ", expected 2 and 2, 3 and 3, or more and 2");
  require(!shares_right(a, b) || !transposed.transpose_a, "[matmul] transpose_a needs a with as many dimensions as b");
  const int rows = transposed.transpose_a ? -1 : -2;
  const std::int64_t inner_a = a.size(-3 - rows);
  const std::int64_t inner_b = b.size(transposed.transpose_b ? -1 : -2);
  require(inner_a == inner_b && (a.ndim() != 3 || b.ndim() != 3 || a.size(0) == b.size(0)), "[matmul] shapes ",
          a.shape(), transposed.transpose_a ? " transposed" : "", " and ", b.shape(),
          transposed.transpose_b ? " transposed" : "", " do not fit");
  Shape shape = a.shape();
  shape[a.ndim() - 2] = a.size(rows);
  shape[a.ndim() - 1] = b.size(transposed.transpose_b ? -2 : -1);
  return {shape, a.dtype()};
}

}  // namespace

OpDef matmul_op() {
  return OpDef("matmul")
      .attributes<MatmulAttributes>()
      .input("a")
      .input("b")
      .saves_inputs({0, 1})
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        return std::vector<ArraySpec>{product_spec(inputs, attributes)};
      })
      .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
        const auto& [a, b] = std::tie(inputs[0], inputs[1]);
        const ArraySpec spec = product_spec(inputs, attributes);
        const NDArray out(spec.shape, spec.dtype, a.device(), a.engine());
        if (shares_right(a, b)) {
          kernels::gemm(as_rows(a), false, b, of(attributes).transpose_b, as_rows(out));
        } else {
          kernels::gemm(a, of(attributes).transpose_a, b, of(attributes).transpose_b, out);
        }
        return std::vector<NDArray>{out};
      })
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) {
        const NDArray& a = call.inputs[0];
        const NDArray& b = call.inputs[1];
        const NDArray& g = gradients[0];
        const auto [ta, tb] = call.attributes<MatmulAttributes>();
        std::vector<Gradient> result(2);
        if (call.wants_gradient(0)) result[0] = ta ? matmul(b, g, tb, true) : matmul(g, b, false, !tb);
        if (!call.wants_gradient(1)) return result;
        if (shares_right(a, b))
          result[1] = tb ? matmul(as_rows(g), as_rows(a), true) : matmul(as_rows(a), as_rows(g), true);
        else
          result[1] = tb ? matmul(g, a, true, ta) : matmul(a, g, !ta, false);
        return result;
      })
      .text([](const void* attributes) {
        return AttributeText{{"transpose_a", of(attributes).transpose_a ? "1" : "0"},
                             {"transpose_b", of(attributes).transpose_b ? "1" : "0"}};
      });
}

NDArray matmul(const NDArray& a, const NDArray& b, bool transpose_a, bool transpose_b) {
  if (a.ndim() == 1 || b.ndim() == 1) {
    require(!(a.ndim() == 1 && transpose_a) && !(b.ndim() == 1 && transpose_b),
            "[matmul] a vector cannot be transposed; a is ", a.describe(), " and b is ", b.describe());
    const NDArray rows = a.ndim() == 1 ? reshape(a, {1, -1}) : a, columns = b.ndim() == 1 ? reshape(b, {-1, 1}) : b;
    const NDArray product = columns.ndim() > 2 || (rows.ndim() > 2 && transpose_a)
                                ? batch_matmul(rows, columns, transpose_a, transpose_b)
                                : matmul(rows, columns, transpose_a, transpose_b);
    Shape shape;
    for (int i = 0; i < product.ndim(); ++i) {
      const bool of_vector = (i == product.ndim() - 2 && a.ndim() == 1) || (i == product.ndim() - 1 && b.ndim() == 1);
      if (!of_vector) shape.push_back(product.size(i));
    }
    return invoke(reshape_operator(), {product}, ReshapeAttributes{shape, true});
  }
  return invoke(matmul_operator(), {a, b}, MatmulAttributes{transpose_a, transpose_b});
}

}  // namespace paceline
