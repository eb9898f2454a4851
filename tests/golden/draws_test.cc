// Every operator on drawn shapes, axes, strides and types, against PyTorch: the cases are those that draws.py writes to
// the file that PACELINE_DRAWS names; test_draws.py does both. Skips without it.
#include "golden/compare.h"

#include <paceline/ops.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

namespace paceline::test {
namespace {

using Arrays = std::vector<NDArray>;
using Numbers = std::vector<std::int64_t>;
// A call with the numbers that the case has beside its arrays: axes, sizes, strides.
using DrawnCall = std::function<Arrays(const Arrays& x, const Numbers& a)>;

#define CALL(expression) [](const Arrays& x, const Numbers& a) { return (void)a, Arrays{expression}; }

std::vector<int> axes_from(const Numbers& a, std::size_t first = 0) {
  return {a.begin() + static_cast<std::ptrdiff_t>(first), a.end()};
}
int axis_of(const Numbers& a) { return static_cast<int>(a.at(0)); }
// Of the `count` equal parts of the numbers, number `i`.
Shape part(const Numbers& a, std::size_t i, std::size_t count) {
  const std::size_t size = a.size() / count;
  Shape result;
  for (std::size_t k = i * size; k < (i + 1) * size; ++k) result.push_back(a[k]);
  return result;
}
Arrays both(const Sorted& sorted) { return {sorted.values, sorted.positions}; }

NDArray padded(const NDArray& x, const Numbers& a) {
  std::vector<std::pair<std::int64_t, std::int64_t>> widths;
  for (std::size_t i = 0; i + 1 < a.size(); i += 2) widths.emplace_back(a[i], a[i + 1]);
  return pad(x, widths, 0.5);
}
ConvolutionAttributes convolution_of(const Numbers& a) {  // stride, padding, dilation; groups
  const Numbers places(a.begin(), a.end() - 1);
  return {
      .stride = part(places, 0, 3), .padding = part(places, 1, 3), .dilation = part(places, 2, 3), .groups = a.back()};
}
PoolAttributes pool_of(const Numbers& a) {  // kernel, stride, padding; ceil_mode, count_include_pad
  const Numbers places(a.begin(), a.end() - 2);
  return {.kernel = part(places, 0, 3),
          .stride = part(places, 1, 3),
          .padding = part(places, 2, 3),
          .ceil_mode = a[a.size() - 2] != 0,
          .count_include_pad = a.back() != 0};
}

// Calls that golden_calls() does not have for all axes.
const std::map<std::string, DrawnCall>& drawn_calls() {
  static const std::map<std::string, DrawnCall> calls{
      {"sum", CALL(sum(x[0], axes_from(a, 1), a[0] != 0))},
      {"mean", CALL(mean(x[0], axes_from(a, 1), a[0] != 0))},
      {"max", CALL(max(x[0], axes_from(a, 1), a[0] != 0))},
      {"min", CALL(min(x[0], axes_from(a, 1), a[0] != 0))},
      {"prod", CALL(prod(x[0], axes_from(a, 1), a[0] != 0))},
      {"logsumexp", CALL(logsumexp(x[0], axes_from(a, 1), a[0] != 0))},
      {"norm", CALL(norm(x[0], 2, axes_from(a, 1), a[0] != 0))},
      {"norm1", CALL(norm(x[0], 1, axes_from(a, 1), a[0] != 0))},
      {"any", CALL(paceline::any(x[0], axes_from(a, 1), a[0] != 0))},
      {"all", CALL(all(x[0], axes_from(a, 1), a[0] != 0))},
      {"var", CALL(var(x[0], axes_from(a, 1), 1, a[0] != 0))},
      {"std", CALL(paceline::std(x[0], axes_from(a, 1), 0, a[0] != 0))},
      {"argmax", CALL(argmax(x[0], axis_of(a), a[1] != 0))},
      {"argmin", CALL(argmin(x[0], axis_of(a), a[1] != 0))},
      {"cumsum", CALL(cumsum(x[0], axis_of(a), a[1] != 0))},
      {"cumprod", CALL(cumprod(x[0], axis_of(a)))},
      {"sort", [](const Arrays& x, const Numbers& a) { return both(sort(x[0], axis_of(a), a[1] != 0)); }},
      {"argsort", CALL(argsort(x[0], axis_of(a), a[1] != 0))},
      {"top_k", [](const Arrays& x, const Numbers& a) { return both(top_k(x[0], a[2], axis_of(a), a[1] != 0)); }},
      {"softmax", CALL(softmax(x[0], axis_of(a)))},
      {"log_softmax", CALL(log_softmax(x[0], axis_of(a)))},
      {"masked_softmax", CALL(softmax(x[0], x[1], 2, axis_of(a)))},
      {"masked_log_softmax", CALL(log_softmax(x[0], x[1], 2, axis_of(a)))},
      {"l2_normalize", CALL(l2_normalize(x[0], axis_of(a)))},
      {"concat", CALL(concat(x, axis_of(a)))},
      {"stack", CALL(stack(x, axis_of(a)))},
      {"split",
       [](const Arrays& x, const Numbers& a) { return split(x[0], Numbers(a.begin() + 1, a.end()), axis_of(a)); }},
      {"slice", CALL(slice(x[0], axis_of(a), a[1], a[2], a[3]))},
      {"take", CALL(take(x[0], x[1], axis_of(a)))},
      {"gather", CALL(gather(x[0], x[1], axis_of(a)))},
      {"scatter_add", CALL(scatter_add(x[0], x[1], x[2], axis_of(a)))},
      {"gather_nd", CALL(gather_nd(x[0], x[1]))},
      {"pad", CALL(padded(x[0], a))},
      {"tile", CALL(tile(x[0], a))},
      {"repeat", CALL(repeat(x[0], a[1], axis_of(a)))},
      {"flip", CALL(flip(x[0], axes_from(a)))},
      {"transpose", CALL(transpose(x[0], axes_from(a)))},
      {"reshape", CALL(reshape(x[0], part(a, 0, 1)))},
      {"squeeze", CALL(squeeze(x[0], axis_of(a)))},
      {"expand_dims", CALL(expand_dims(x[0], axis_of(a)))},
      {"broadcast_to", CALL(broadcast_to(x[0], part(a, 0, 1)))},
      {"sum_to", CALL(sum_to(x[0], part(a, 0, 1)))},
      {"one_hot", CALL(one_hot(x[0], a[0], DType::kInt64))},
      {"tril", CALL(tril(x[0], a[0]))},
      {"triu", CALL(triu(x[0], a[0]))},
      {"group_norm", CALL(group_norm(x[0], axis_of(a), x[1], x[2]))},
      {"convolution", CALL(convolution(x[0], x[1], x[2], convolution_of(a)))},
      {"transposed_convolution", CALL(transposed_convolution(x[0], x[1], x[2], {convolution_of(a)}))},
      {"max_pool", CALL(max_pool(x[0], pool_of(a)))},
      {"average_pool", CALL(average_pool(x[0], pool_of(a)))},
      {"adaptive_max_pool", CALL(adaptive_max_pool(x[0], part(a, 0, 1)))},
      {"adaptive_average_pool", CALL(adaptive_average_pool(x[0], part(a, 0, 1)))},
      {"upsample_nearest", CALL(upsample_nearest(x[0], part(a, 0, 1)))},
      {"upsample_linear", CALL(upsample_linear(x[0], part(a, 0, 1)))},
      {"csr_matmul", CALL(csr_matmul({x[0], x[1], x[2], {a[0], a[1]}}, x[3], a[2] != 0))},
      {"copy", CALL(copy(x[0]))},
      {"flatten", CALL(flatten(x[0]))},
      {"bitwise_not", CALL(bitwise_not(x[0]))},
      {"logical_not", CALL(logical_not(x[0]))},
      {"isnan", CALL(isnan(x[0]))},
      {"isinf", CALL(isinf(x[0]))},
      {"isfinite", CALL(isfinite(x[0]))},
  };
  return calls;
}

// The same values in other memory: the axes in a drawn order, with gaps after some, and elements before the first.
NDArray drawn_view(const NDArray& x, std::mt19937_64& generator) {
  const auto draw = [&](int end) { return static_cast<int>(generator() % static_cast<std::uint64_t>(end)); };
  std::vector<int> order(static_cast<std::size_t>(x.ndim())), back(order.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<int>(i);
  std::ranges::shuffle(order, generator);
  Shape room;
  std::vector<std::array<std::int64_t, 2>> cuts;  // first place and step
  for (std::size_t i = 0; i < order.size(); ++i) {
    back[static_cast<std::size_t>(order[i])] = static_cast<int>(i);
    cuts.push_back({draw(3) == 0 ? 1 : 0, draw(3) == 0 ? 2 : 1});
    room.push_back(cuts[i][0] + x.shape()[order[i]] * cuts[i][1]);
  }
  NDArray view = NDArray::full(room, 1, x.dtype(), x.device());
  for (int i = 0; i < x.ndim(); ++i) {
    const auto [first, step] = cuts[static_cast<std::size_t>(i)];
    view = view.narrow(i, first, room[i], step);
  }
  view = view.permute(back);
  view.copy_from(x);
  return view;
}

TEST(Draws, AgreeWithPyTorch) {
  const char* const path = std::getenv("PACELINE_DRAWS");
  if (!path) GTEST_SKIP() << "PACELINE_DRAWS does not name a file of draws.py";
  std::map<std::string, GoldenCall> golden;
  for (const auto& [family, calls] : golden_calls()) golden.insert(calls.begin(), calls.end());
  std::int64_t count = 0;
  for (const auto& [name, cases] : load_cases(path)) {
    SCOPED_TRACE(name);
    const auto drawn = drawn_calls().find(name);
    const auto fixed = golden.find(name);
    ASSERT_TRUE(drawn != drawn_calls().end() || fixed != golden.end());
    for (const auto& [title, arrays] : cases) {
      const auto numbers = arrays.find("a");
      const Numbers a = numbers == arrays.end() ? Numbers() : numbers->second.to_vector<std::int64_t>();
      std::string text = title + ":";
      for (const auto& [array, value] : arrays)
        if (array[0] == 'x') text += " " + array + " " + value.describe();
      text += "; " + testing::PrintToString(a);
      SCOPED_TRACE(text);
      const GoldenCall call =
          drawn == drawn_calls().end() ? fixed->second : [&](const Arrays& x) { return drawn->second(x, a); };
      std::mt19937_64 generator(std::stoul(title));
      const View view = [&](const NDArray& x) { return generator() % 4 == 0 ? x : drawn_view(x, generator); };
      try {
        for (const DType dtype : {DType::kFloat64, DType::kFloat32})
          compare(name, call, arrays, dtype, view, Device(), 1000);
      } catch (const Error& error) {
        ADD_FAILURE() << error.what();
      }
      ++count;
    }
  }
  std::cout << count << " draws\n";
}

}  // namespace
}  // namespace paceline::test
