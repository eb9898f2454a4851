#include "golden/calls.h"

#include <paceline/ops.h>
#include <paceline/recorder.h>

#include <limits>

namespace paceline::test {
namespace {

using Arrays = std::vector<NDArray>;

GoldenCall one(NDArray (*f)(const NDArray&)) {
  return [f](const Arrays& x) { return Arrays{f(x[0])}; };
}
GoldenCall two(NDArray (*f)(const NDArray&, const NDArray&)) {
  return [f](const Arrays& x) { return Arrays{f(x[0], x[1])}; };
}
// A call with one result, from an expression over x.
#define CALL(expression) [](const Arrays& x) { return Arrays{expression}; }

GoldenCalls unary() {
  return {{"relu", one(relu)},
          {"leaky_relu(0.1)", CALL(leaky_relu(x[0], 0.1))},
          {"elu(1.5)", CALL(elu(x[0], 1.5))},
          {"prelu", two(prelu)},
          {"selu", one(selu)},
          {"gelu", one(gelu)},
          {"gelu_tanh", one(gelu_tanh)},
          {"silu", one(silu)},
          {"sigmoid", one(sigmoid)},
          {"tanh", one(tanh)},
          {"softplus", one(softplus)},
          {"softsign", one(softsign)},
          {"exp", one(exp)},
          {"expm1", one(expm1)},
          {"log", one(log)},
          {"log1p", one(log1p)},
          {"sqrt", one(sqrt)},
          {"rsqrt", one(rsqrt)},
          {"square", one(square)},
          {"abs", one(abs)},
          {"sign", one(sign)},
          {"erf", one(erf)},
          {"sin", one(sin)},
          {"cos", one(cos)},
          {"floor", one(floor)},
          {"ceil", one(ceil)},
          {"round", one(round)},
          {"clip(-1,0.5)", CALL(clip(x[0], -1, 0.5))},
          {"reciprocal", one(reciprocal)},
          {"negative", one(negative)}};
}

GoldenCalls binary() {
  return {{"add", two(add)},
          {"subtract", two(subtract)},
          {"multiply", two(multiply)},
          {"divide", two(divide)},
          {"power", two(power)},
          {"maximum", two(maximum)},
          {"minimum", two(minimum)},
          {"equal", two(equal)},
          {"not_equal", two(not_equal)},
          {"greater", two(greater)},
          {"greater_equal", two(greater_equal)},
          {"less", two(less)},
          {"less_equal", two(less_equal)},
          {"add(1.5)", CALL(x[0] + 1.5)},
          {"subtract(1.5)", CALL(x[0] - 1.5)},
          {"1.5-subtract", CALL(1.5 - x[0])},
          {"multiply(1.5)", CALL(x[0] * 1.5)},
          {"divide(1.5)", CALL(x[0] / 1.5)},
          {"1.5-divide", CALL(1.5 / x[0])},
          {"power(3)", CALL(power(x[0], 3))},
          {"power(0)", CALL(power(x[0], 0))},
          {"power(0.5)", CALL(power(x[0], 0.5))},
          {"1.5-power", CALL(power(1.5, x[0]))},
          {"remainder", two(remainder)},
          {"floor_divide", two(floor_divide)},
          {"logical_and", two(logical_and)},
          {"logical_or", two(logical_or)},
          {"logical_xor", two(logical_xor)},
          {"bitwise_and", two(bitwise_and)},
          {"bitwise_or", two(bitwise_or)},
          {"bitwise_xor", two(bitwise_xor)},
          {"remainder(1.5)", CALL(remainder(x[0], 1.5))},
          {"1.5-remainder", CALL(remainder(1.5, x[0]))},
          {"floor_divide(1.5)", CALL(floor_divide(x[0], 1.5))},
          {"maximum(0.5)", CALL(maximum(x[0], 0.5))},
          {"minimum(0.5)", CALL(minimum(x[0], 0.5))},
          {"greater(0.5)", CALL(greater(x[0], 0.5))},
          {"less_equal(0.5)", CALL(less_equal(x[0], 0.5))},
          {"equal(1)", CALL(equal(x[0], 1))},
          {"where", CALL(where(x[0], x[1], x[2]))}};
}

using Reduce = std::function<NDArray(const NDArray&, std::vector<int>)>;

GoldenCalls reduction() {
  GoldenCalls calls;
  const auto add = [&](const std::string& name, const std::vector<std::vector<int>>& all, const Reduce& f) {
    for (const std::vector<int>& axes : all) {
      std::string text;
      for (const int axis : axes) text += (text.empty() ? "/" : ",") + std::to_string(axis);
      calls[name + text] = [f, axes](const Arrays& x) { return Arrays{f(x[0], axes)}; };
    }
  };
  const std::vector<std::vector<int>> single{{1}, {2}}, any{{1}, {2}, {0, 2}, {0, 1, 2}};
  add("sum", any, [](const NDArray& x, const auto& axes) { return sum(x, axes); });
  add("mean", any, [](const NDArray& x, const auto& axes) { return mean(x, axes); });
  add("max", any, [](const NDArray& x, const auto& axes) { return max(x, axes); });
  add("min", any, [](const NDArray& x, const auto& axes) { return min(x, axes); });
  add("logsumexp", any, [](const NDArray& x, const auto& axes) { return logsumexp(x, axes); });
  add("norm2", any, [](const NDArray& x, const auto& axes) { return norm(x, 2, axes); });
  add("norm1", any, [](const NDArray& x, const auto& axes) { return norm(x, 1, axes); });
  add("norm3", any, [](const NDArray& x, const auto& axes) { return norm(x, 3, axes); });
  add("norm_inf", any,
      [](const NDArray& x, const auto& axes) { return norm(x, std::numeric_limits<double>::infinity(), axes); });
  add("any", any, [](const NDArray& x, const auto& axes) { return paceline::any(x, axes); });
  add("all", any, [](const NDArray& x, const auto& axes) { return all(x, axes); });
  add("var", any, [](const NDArray& x, const auto& axes) { return var(x, axes); });
  add("var(0)", any, [](const NDArray& x, const auto& axes) { return var(x, axes, 0); });
  add("std", any, [](const NDArray& x, const auto& axes) { return paceline::std(x, axes); });
  add("prod", single, [](const NDArray& x, const auto& axes) { return prod(x, axes); });
  add("argmax", single, [](const NDArray& x, const auto& axes) { return argmax(x, axes[0]); });
  add("argmin", single, [](const NDArray& x, const auto& axes) { return argmin(x, axes[0]); });
  add("cumprod", single, [](const NDArray& x, const auto& axes) { return cumprod(x, axes[0]); });
  add("cumsum", single, [](const NDArray& x, const auto& axes) { return cumsum(x, axes[0]); });
  const auto both = [](const Sorted& sorted) { return Arrays{sorted.values, sorted.positions}; };
  calls["sort/1"] = [=](const Arrays& x) { return both(sort(x[0], 1)); };
  calls["sort_descending/0"] = [=](const Arrays& x) { return both(sort(x[0], 0, true)); };
  calls["argsort/1"] = CALL(argsort(x[0], 1));
  calls["top_2/1"] = [=](const Arrays& x) { return both(top_k(x[0], 2, 1)); };
  calls["top_1/1"] = [=](const Arrays& x) { return both(top_k(x[0], 1, 1)); };
  calls["bottom_2/0"] = [=](const Arrays& x) { return both(top_k(x[0], 2, 0, false)); };
  return calls;
}

GoldenCalls shape() {
  return {{"reshape(4,-1)", CALL(reshape(x[0], {4, -1}))},
          {"reshape(-1,1)", CALL(reshape(x[0], {-1, 1}))},
          {"transpose(2,0,1)", CALL(transpose(x[0], {2, 0, 1}))},
          {"concat/1", CALL(concat(x, 1))},
          {"stack/-1", CALL(stack(x, -1))},
          {"split/1",
           [](const Arrays& x) {
             return split(x[0], std::vector<std::int64_t>{1, 2}, 1);
           }},
          {"slice/2", CALL(slice(x[0], 2, 1, 3))},
          {"slice/2/2", CALL(slice(x[0], 2, 0, 4, 2))},
          {"slice/2/3", CALL(slice(x[0], 2, 1, 4, 3))},
          {"take(-1)/1", CALL(take(x[0], x[1], 1))},
          {"gather_nd", CALL(gather_nd(x[0], x[1]))},
          {"masked_select", CALL(masked_select(x[0], x[1]))},
          {"nonzero", CALL(nonzero(x[0]))},
          {"masked_fill(0.5)", CALL(masked_fill(x[0], x[1], 0.5))},
          {"pad", CALL(pad(x[0], {{0, 0}, {0, 1}, {1, 2}}, 0.5))},
          {"tile(2,1,3)", CALL(tile(x[0], {2, 1, 3}))},
          {"repeat(3)/1", CALL(repeat(x[0], 3, 1))},
          {"broadcast_to(2,3,4)", CALL(broadcast_to(x[0], {2, 3, 4}))},
          {"broadcast_to(2,0,4)", CALL(broadcast_to(x[0], {2, 0, 4}))},
          {"squeeze/1", CALL(squeeze(x[0], 1))},
          {"expand_dims/1", CALL(expand_dims(x[0], 1))},
          {"flip(0,2)", CALL(flip(x[0], {0, 2}))},
          {"take/1", CALL(take(x[0], x[1], 1))},
          {"gather/1", CALL(gather(x[0], x[1], 1))},
          {"scatter_add/1", CALL(scatter_add(x[0], x[1], x[2], 1))},
          {"one_hot(4)", CALL(one_hot(x[0], 4, DType::kInt64))},
          {"embedding", CALL(embedding(x[0], x[1]))}};
}

GoldenCalls loss() {
  GoldenCalls calls;
  for (const auto& [text, reduction] : {std::pair<std::string, Reduction>{"/mean", Reduction::kMean},
                                        {"/sum", Reduction::kSum},
                                        {"/none", Reduction::kNone}}) {
    const Reduction how = reduction;
    calls["squared" + text] = [=](const Arrays& x) { return Arrays{squared_loss(x[0], x[1], how)}; };
    calls["absolute" + text] = [=](const Arrays& x) { return Arrays{absolute_loss(x[0], x[1], how)}; };
    calls["huber(0.75)" + text] = [=](const Arrays& x) { return Arrays{huber_loss(x[0], x[1], 0.75, how)}; };
    calls["sigmoid_cross_entropy" + text] = [=](const Arrays& x) {
      return Arrays{sigmoid_cross_entropy(x[0], x[1], how)};
    };
    calls["kl_divergence" + text] = [=](const Arrays& x) { return Arrays{kl_divergence(x[0], x[1], how)}; };
    calls["cross_entropy(0)" + text] = [=](const Arrays& x) {
      return Arrays{softmax_cross_entropy(x[0], x[1], {how, 0, 2})};
    };
    calls["cross_entropy(0.2)" + text] = [=](const Arrays& x) {
      return Arrays{softmax_cross_entropy(x[0], x[1], {how, 0.2, 2})};
    };
    for (const auto& [share, smoothing] : {std::pair<std::string, double>{"0", 0}, {"0.2", 0.2}})
      calls["weighted_cross_entropy(" + share + ")" + text] = [how, smoothing = smoothing](const Arrays& x) {
        return Arrays{softmax_cross_entropy(x[0], x[1], {how, smoothing, 2}, x[2].cast(x[0].dtype()) / 4)};
      };
    calls["soft_cross_entropy" + text] = [=](const Arrays& x) { return Arrays{soft_cross_entropy(x[0], x[1], how)}; };
  }
  calls["hinge/mean"] = CALL(hinge_loss(x[0], x[1]));
  return calls;
}

GoldenCalls normalize() {
  return {{"layer_norm", CALL(layer_norm(x[0], x[1], x[2]))},
          {"layer_norm(plain)", CALL(layer_norm(x[0], NDArray(), NDArray()))},
          {"rms_norm", CALL(rms_norm(x[0], x[1]))},
          {"group_norm(2)", CALL(group_norm(x[0], 2, x[1], x[2]))},
          {"instance_norm", CALL(instance_norm(x[0], x[1], x[2]))},
          {"l2_normalize/1", CALL(l2_normalize(x[0]))},
          {"softmax/-1", CALL(softmax(x[0]))},
          {"softmax/0", CALL(softmax(x[0], 0))},
          {"softmax(masked,2)", CALL(softmax(x[0], x[1], 2))},
          {"log_softmax/-1", CALL(log_softmax(x[0]))},
          {"log_softmax/0", CALL(log_softmax(x[0], 0))},
          {"log_softmax(masked,2)", CALL(log_softmax(x[0], x[1], 2))}};
}

GoldenCalls linear() {
  GoldenCalls calls{{"matmul", CALL(matmul(x[0], x[1]))},
                    {"matmul(a',b')", CALL(matmul(x[0], x[1], true, true))},
                    {"batch_matmul", CALL(batch_matmul(x[0], x[1]))},
                    {"batch_matmul(b')", CALL(batch_matmul(x[0], x[1], false, true))},
                    {"outer", two(outer)},
                    {"csr_matmul", CALL(csr_matmul({x[0], x[1], x[2], {3, 4}}, x[3]))},
                    {"csr_matmul(a')", CALL(csr_matmul({x[0], x[1], x[2], {3, 4}}, x[3], true))},
                    {"dense", CALL(paceline::dense(x[0], x[1], x[2]))},
                    {"tril", CALL(tril(x[0]))},
                    {"triu(1)", CALL(triu(x[0], 1))},
                    {"triangular_solve", CALL(triangular_solve(x[0], x[1]))},
                    {"triangular_solve(upper)", CALL(triangular_solve(x[0], x[1], {.upper = true}))},
                    {"triangular_solve(a')", CALL(triangular_solve(x[0], x[1], {.transpose = true}))},
                    {"triangular_solve(unit)", CALL(triangular_solve(x[0], x[1], {.unit_diagonal = true}))}};
  for (const char* equation : {"ij,jk->ik", "bij,bjk->bik", "bhid,bhjd->bhij", "i,j->ij", "i,i->", "ij->ji", "ijk->k",
                               "ij,kl->il", "ij,jk,kl->il", "bi,bi->b", "...ij,...jk->...ik", "...ij,jk->i...k",
                               "b...,b->...", "i...->i", "i...,...->...i"})
    calls[std::string("einsum ") + equation] = [equation](const Arrays& x) { return Arrays{einsum(equation, x)}; };
  return calls;
}

GoldenCalls dense() {
  GoldenCalls calls;
  for (const auto& [text, activation] :
       {std::pair<std::string, Activation>{"relu", Activation::kRelu}, {"gelu_tanh", Activation::kGeluTanh}}) {
    const Activation how = activation;
    const std::string name = "dense_" + text;
    calls[name] = [=](const Arrays& x) { return Arrays{paceline::dense(x[0], x[1], x[2], true, how)}; };
    calls[name + "(plain)"] = [=](const Arrays& x) { return Arrays{paceline::dense(x[0], x[1], {}, true, how)}; };
    calls[name + "(rows)"] = [=](const Arrays& x) { return Arrays{paceline::dense(x[0], x[1], x[2], false, how)}; };
  }
  calls["dense_gelu_tanh(no tape)"] = [](const Arrays& x) {
    const RecordingScope no_tape(nullptr);
    return Arrays{paceline::dense(x[0], x[1], x[2], true, Activation::kGeluTanh)};
  };
  return calls;
}

GoldenCalls convolution() {
  const ConvolutionAttributes how2{.stride = {2, 1}, .padding = {1, 2}, .dilation = {2, 1}, .groups = 2};
  return {{"conv(plain)", CALL(paceline::convolution(x[0], x[1], x[2]))},
          {"conv1d", CALL(paceline::convolution(x[0], x[1], x[2],
                                                {.stride = {2}, .padding = {1}, .dilation = {2}, .groups = 2}))},
          {"conv2d", [=](const Arrays& x) { return Arrays{paceline::convolution(x[0], x[1], x[2], how2)}; }},
          {"conv3d",
           CALL(paceline::convolution(
               x[0], x[1], x[2], {.stride = {2, 1, 2}, .padding = {1, 0, 1}, .dilation = {1, 2, 1}, .groups = 2}))},
          {"transposed(plain)", CALL(transposed_convolution(x[0], x[1], x[2]))},
          {"transposed2d",
           [=](const Arrays& x) {
             TransposedConvolutionAttributes how{how2, {1, 2}};
             how.stride = {2, 3};
             return Arrays{transposed_convolution(x[0], x[1], x[2], how)};
           }},
          {"transposed3d",
           CALL(transposed_convolution(x[0], x[1], x[2], {{.stride = {2, 2, 2}, .groups = 2}, {1, 1, 1}}))}};
}

// `number` for each spatial axis of x.
Shape each(const NDArray& x, std::int64_t number) {
  Shape result;
  for (int i = 2; i < x.ndim(); ++i) result.push_back(number);
  return result;
}

GoldenCalls pool() {
  GoldenCalls calls{{"adaptive_max(4)", CALL(adaptive_max_pool(x[0], each(x[0], 4)))},
                    {"adaptive_max(1)", CALL(global_max_pool(x[0]))},
                    {"adaptive_average(4)", CALL(adaptive_average_pool(x[0], each(x[0], 4)))},
                    {"adaptive_average(1)", CALL(global_average_pool(x[0]))}};
  for (const bool up : {false, true}) {
    const auto how = [up](const NDArray& x, bool padding_counts) {
      return PoolAttributes{.kernel = each(x, 3),
                            .stride = each(x, 2),
                            .padding = each(x, 1),
                            .ceil_mode = up,
                            .count_include_pad = padding_counts};
    };
    const std::string text = up ? "(3,2,1, up)" : "(3,2,1)";
    calls["max" + text] = [=](const Arrays& x) { return Arrays{max_pool(x[0], how(x[0], true))}; };
    calls["average" + text] = [=](const Arrays& x) { return Arrays{average_pool(x[0], how(x[0], true))}; };
    calls["average(inside)" + text] = [=](const Arrays& x) { return Arrays{average_pool(x[0], how(x[0], false))}; };
  }
  return calls;
}

GoldenCalls attention() {
  GoldenCalls calls{{"attention", CALL(paceline::attention(x[0], x[1], x[2]))},
                    {"attention(causal)", CALL(paceline::attention(x[0], x[1], x[2], NDArray(), {.causal = true}))},
                    {"attention(scale)", CALL(paceline::attention(x[0], x[1], x[2], NDArray(), {.scale = 0.3}))},
                    {"attention(mask)", CALL(paceline::attention(x[0], x[1], x[2], x[3]))}};
  for (const Shape& size : {Shape{7}, Shape{4, 6}, Shape{4, 3, 5}, Shape{2, 3}, Shape{3, 2}, Shape{5}, Shape{9}}) {
    std::string text;
    for (const std::int64_t one : size) text += (text.empty() ? "(" : ",") + std::to_string(one);
    calls["nearest" + text + ")"] = [=](const Arrays& x) { return Arrays{upsample_nearest(x[0], size)}; };
    calls["linear" + text + ")"] = [=](const Arrays& x) { return Arrays{upsample_linear(x[0], size)}; };
  }
  return calls;
}

GoldenCalls recurrent() {
  GoldenCalls calls;
  for (const bool reverse : {false, true}) {
    const std::string text = reverse ? "(reverse)" : "";
    const auto simple = [&](const std::string& name, auto* cell) {
      calls[name + text] = [=](const Arrays& x) {
        const RecurrentResult result = cell(x[0], x[1], {x[2], x[3], x[4], x[5]}, reverse);
        return Arrays{result.states, result.last};
      };
    };
    simple("rnn", rnn);
    simple("rnn_relu", rnn_relu);
    simple("gru", gru);
    calls["lstm" + text] = [=](const Arrays& x) {
      const RecurrentResult result = lstm(x[0], x[1], x[2], {x[3], x[4], x[5], x[6]}, reverse);
      return Arrays{result.states, result.last, result.last_memory};
    };
  }
  return calls;
}

GoldenCalls training() {
  const auto norm = [](const Arrays& x, bool training) {
    const NDArray mean = x[3].clone(), variance = x[4].clone();
    const NDArray y = batch_norm(x[0], x[1], x[2], mean, variance, {.training = training});
    return training ? Arrays{y, mean, variance} : Arrays{y};
  };
  return {{"batch_norm", [=](const Arrays& x) { return norm(x, true); }},
          {"batch_norm(fixed)", [=](const Arrays& x) { return norm(x, false); }},
          {"dropout(0.5)", CALL(dropout(x[0], 0.5, 1))},
          {"dropout(0.25)", CALL(dropout(x[0], 0.25, (std::uint64_t{1} << 40) + 7))},
          {"through float16", CALL(cast(cast(x[0], DType::kFloat16), x[0].dtype()))},
          {"through bfloat16", CALL(cast(cast(x[0], DType::kBfloat16), x[0].dtype()))},
          {"to int64", CALL(cast(x[0], DType::kInt64))},
          {"to bool", CALL(cast(x[0], DType::kBool))}};
}

}  // namespace

const std::map<std::string, GoldenCalls>& golden_calls() {
  static const auto& calls = *new std::map<std::string, GoldenCalls>{
      {"unary", unary()},        {"binary", binary()},     {"reduction", reduction()},
      {"shape", shape()},        {"loss", loss()},         {"normalize", normalize()},
      {"linear", linear()},      {"dense", dense()},       {"convolution", convolution()},
      {"pool", pool()},          {"training", training()}, {"attention", attention()},
      {"recurrent", recurrent()}};
  return calls;
}

}  // namespace paceline::test
