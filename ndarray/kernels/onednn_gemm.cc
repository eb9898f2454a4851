// Primitives and their arguments are kept per thread and shape, so that nothing is created or locked in the steady
// state.
#include "kernels/onednn_gemm.h"

#include <paceline/cores.h>
#include <paceline/detail/at_exit.h>
#include <paceline/detail/onednn.h>

#include <string_view>
#include <unordered_map>

namespace paceline::detail {
namespace {

using dnnl::memory;

memory::desc describe(const Matrix& m) {
  const std::int64_t row = m.row_major ? m.leading : 1, column = m.row_major ? 1 : m.leading;
  if (m.batch == 1) return {{m.rows, m.columns}, memory::data_type::f32, memory::dims{row, column}};
  const bool shared = m.batch_stride == 0;  // by the whole batch
  return {{shared ? 1 : m.batch, m.rows, m.columns},
          memory::data_type::f32,
          memory::dims{shared ? m.rows * m.columns : m.batch_stride, row, column}};
}

struct Key {
  Matrix a, b, c;
  double beta;
  bool biased;
  int team;  // oneDNN divides the work when the primitive is made
  friend bool operator==(const Key&, const Key&) = default;
};

memory::desc describe_bias(const Key& key) {
  return {{1, key.c.columns}, memory::data_type::f32, memory::dims{key.c.columns, 1}};
}

// A template, so that only the branch of the version there is compiled.
template <class Primitive>
typename Primitive::primitive_desc description_of(const Key& key) {
  dnnl::post_ops after;
  if (key.beta != 0) after.append_sum(static_cast<float>(key.beta));
  dnnl::primitive_attr how;
  how.set_post_ops(after);
  const memory::desc a = describe(key.a), b = describe(key.b), c = describe(key.c);
  const auto make = [&](const auto&... operands) -> typename Primitive::primitive_desc {
    // oneDNN 3 takes the parts of a description as they are, oneDNN 2 wrapped once more.
    if constexpr (requires { typename Primitive::desc; })
      return {typename Primitive::desc(operands...), how, cpu_engine()};
    else
      return {cpu_engine(), operands..., how};
  };
  return key.biased ? make(a, b, describe_bias(key), c) : make(a, b, c);
}

// One product, ready to run.
class Product {
 public:
  explicit Product(const Key& key) {
    const auto description = description_of<dnnl::matmul>(key);
    if (std::string_view(description.impl_info_str()).starts_with("ref"))
      throw dnnl::error(dnnl_unimplemented, "only a reference implementation");
    primitive_ = dnnl::matmul(description);
    const auto operand = [](const Matrix& m) { return memory(describe(m), cpu_engine(), DNNL_MEMORY_NONE); };
    arguments_ = {{DNNL_ARG_SRC, operand(key.a)}, {DNNL_ARG_WEIGHTS, operand(key.b)}, {DNNL_ARG_DST, operand(key.c)}};
    if (key.biased) arguments_.emplace(DNNL_ARG_BIAS, memory(describe_bias(key), cpu_engine(), DNNL_MEMORY_NONE));
  }

  void run(dnnl::stream& stream, const float* a, const float* b, float* c, const float* bias) {
    if (bias) arguments_.at(DNNL_ARG_BIAS).set_data_handle(const_cast<float*>(bias));
    arguments_.at(DNNL_ARG_SRC).set_data_handle(const_cast<float*>(a));
    arguments_.at(DNNL_ARG_WEIGHTS).set_data_handle(const_cast<float*>(b));
    arguments_.at(DNNL_ARG_DST).set_data_handle(c);
    primitive_.execute(stream, arguments_);
    stream.wait();
  }

 private:
  dnnl::matmul primitive_;
  std::unordered_map<int, memory> arguments_;
};

}  // namespace

void prepare_onednn_gemm() {
  [[maybe_unused]] static const bool once = [] {
    const Matrix matrix{.batch = 1, .batch_stride = 0, .rows = 16, .columns = 16, .row_major = true, .leading = 16};
    Product({matrix, matrix, matrix, 0, false, 1});
    rest_before_exit();
    return true;
  }();
}

bool onednn_gemm(const Matrix& a, const float* a_data, const Matrix& b, const float* b_data, const Matrix& c,
                 float* c_data, double beta, const float* bias) {
  // oneDNN takes the size of a batch from the operands.
  if (c.batch > 1 && a.batch_stride == 0 && b.batch_stride == 0) return false;
  thread_local PrimitiveCache<Key, Product> cache;
  Product* const product = cache.find("gemm", {a, b, c, beta, bias != nullptr, team_size()});
  if (!product) return false;
  product->run(cache.stream(), a_data, b_data, c_data, bias);
  return true;
}

}  // namespace paceline::detail
