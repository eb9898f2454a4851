#include "reduce/reduce.h"

#include "binary/binary.h"
#include "copy/copy.h"
#include "reduce/functors.h"
#include "reduce/plan.h"
#include "reshape/reshape.h"
#include "shared/lanes.h"
#include "shared/text.h"
#include "shared/vector_map.h"
#include "shared/wide.h"
#include "unary/unary.h"
#include "where/where.h"

#include <paceline/cores.h>
#include <paceline/detail/elementwise.h>

#include <algorithm>
#include <utility>

namespace paceline {

using namespace functors;

std::vector<bool> reduced_axes(const char* name, const Shape& shape, const ReduceAttributes& attributes) {
  std::vector<bool> reduced(static_cast<std::size_t>(shape.ndim()), attributes.axes.empty());
  for (const int given : attributes.axes) {
    const auto axis = static_cast<std::size_t>(normalize_axis(given, std::max(shape.ndim(), 1), name));
    if (shape.ndim() == 0) continue;
    require(!reduced[axis], "[", name, "] axis ", given, " occurs twice in ", text_of(attributes.axes));
    reduced[axis] = true;
  }
  return reduced;
}

ReductionPlan make_plan(const Shape& shape, const std::vector<bool>& reduced) {
  ReductionPlan plan;
  const Strides strides = row_major(shape);
  const LoopNest* last = nullptr;
  for (int i = 0; i < shape.ndim(); ++i) {
    if (shape[i] == 1) continue;
    LoopNest& nest = reduced[static_cast<std::size_t>(i)] ? plan.reduced : plan.kept;
    if (last == &nest) {
      nest.sizes[nest.ndim - 1] *= shape[i];
      nest.strides[nest.ndim - 1] = strides[i];
    } else {
      nest.sizes[nest.ndim] = shape[i];
      nest.strides[nest.ndim++] = strides[i];
    }
    nest.count *= shape[i];
    last = &nest;
  }
  return plan;
}

namespace {

const ReduceAttributes& of(const void* attributes) { return *static_cast<const ReduceAttributes*>(attributes); }

template <class Op, class T>
class Reducer {
 public:
  using A = reduction_t<T>;
  using Total = total_t<T>;
  using Result = result_t<Op, T>;

  Reducer(const ReductionPlan& plan, const T* x, Result* out)
      : kept_(plan.kept), reduced_(plan.reduced), count_(plan.reduced.count), x_(x), out_(out) {}

  void run() {
    const bool by_columns = kept_.ndim > 0 && kept_.strides[kept_.ndim - 1] == 1 && reduced_.ndim > 0;
    if (by_columns)
      columns();
    else if (kept_.count == 1 && count_ > 4 * kPiece)
      one();
    else
      rows();
  }

 private:
  // A lane of A adds up at most 64 numbers of a piece. Each column adds up fewer than 256 numbers before they are
  // joined to its total. So few additions lose hardly any digits of float32.
  static constexpr std::int64_t kPiece = 1024;
  static constexpr std::int64_t kColumns = 256;
  static constexpr std::int64_t kRows = 128;  // of a piece of columns

  static A combine(A a, A b) { return Op::template combine<A>(a, b); }
  static void join(Total& total, A piece) { total = Op::template combine<Total>(total, static_cast<Total>(piece)); }
  static A load(const T& value) { return Op::map(static_cast<A>(detail::load(value))); }

  void store(std::int64_t i, Total value) {
    out_[i] = detail::convert<Result>(Op::template finish<Total>(value, count_));
  }

  // The innermost loop is reduced: each result folds contiguous runs.
  void rows() {
    LoopNest outer = reduced_;
    const std::int64_t run = outer.ndim > 0 ? outer.sizes[--outer.ndim] : 1;
    const std::int64_t runs = count_ == 0 ? 0 : count_ / run;
    const std::int64_t smallest =
        std::max<std::int64_t>(1, detail::kElementsPerThread / std::max<std::int64_t>(1, count_));
    detail::parallel_ranges(kept_.count, smallest, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const T* from = x_ + kept_.offset(i);
        Total total = Op::template start<Total>();
        for (std::int64_t r = 0; r < runs; ++r) fold(from + outer.offset(r), run, total);
        store(i, total);
      }
    });
  }

  // The innermost loop is kept: a block of results is folded side by side, each in the order of the rows.
  void columns() {
    LoopNest outer = kept_, inner = reduced_;
    const std::int64_t width = outer.sizes[--outer.ndim];
    const std::int64_t run = inner.sizes[--inner.ndim], step = inner.strides[inner.ndim];
    const std::int64_t runs = count_ == 0 ? 0 : count_ / run;
    // A block consists of whole vectors of 16 columns. Where there are few columns, each thread gets about one block.
    const std::int64_t share = (kept_.count / team_size() + 15) / 16 * 16;
    const std::int64_t block = std::clamp<std::int64_t>(share, 16, kColumns);
    const std::int64_t blocks = (width + block - 1) / block;
    const std::int64_t rows_kept = width == 0 ? 0 : kept_.count / width;
    const std::int64_t smallest = std::max<std::int64_t>(
        1, detail::kElementsPerThread / std::max<std::int64_t>(1, count_ * std::min(width, block)));
    detail::parallel_ranges(rows_kept * blocks, smallest, [&](std::int64_t begin, std::int64_t end) {
      Total totals[kColumns];
      A piece[kColumns];
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t first = i % blocks * block;
        const std::int64_t size = std::min(block, width - first);
        const T* const from = x_ + outer.offset(i / blocks) + first;
        std::fill_n(totals, size, Op::template start<Total>());
        std::fill_n(piece, size, Op::template start<A>());
        std::int64_t added = 0;
        const auto end_piece = [&] {
          for (std::int64_t c = 0; c < size; ++c) join(totals[c], std::exchange(piece[c], Op::template start<A>()));
          added = 0;
        };
        for (std::int64_t r = 0; r < runs; ++r)
          for (std::int64_t row = 0; row < run; row += kRows) {
            const std::int64_t rows = std::min(kRows, run - row);
            add_rows(from + inner.offset(r) + row * step, rows, step, size, piece);
            if ((added += rows) >= kRows) end_piece();
          }
        end_piece();
        for (std::int64_t c = 0; c < size; ++c) store(i / blocks * width + first + c, totals[c]);
      }
    });
  }

  static void add_rows(const T* from, std::int64_t rows, std::int64_t step, std::int64_t size, A* totals) {
    vector_code([=]() PACELINE_INLINE {
      std::int64_t r = 0;
      for (; r + 4 <= rows; r += 4) {
        const T* const row = from + r * step;
#pragma omp simd
        for (std::int64_t c = 0; c < size; ++c) {
          const A two = combine(combine(totals[c], load(row[c])), load(row[step + c]));
          totals[c] = combine(combine(two, load(row[2 * step + c])), load(row[3 * step + c]));
        }
      }
      for (; r < rows; ++r) {
        const T* const row = from + r * step;
#pragma omp simd
        for (std::int64_t c = 0; c < size; ++c) totals[c] = combine(totals[c], load(row[c]));
      }
    });
  }

  // Reduces a long run to one result. The number of pieces is fixed, so the result does not depend on the team's size.
  void one() {
    constexpr std::int64_t kPieces = 64;
    Total partial[kPieces];
    const std::int64_t step = (count_ + kPieces - 1) / kPieces;
    detail::parallel_ranges(kPieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t p = begin; p < end; ++p) {
        const std::int64_t first = std::min(count_, p * step);
        partial[p] = Op::template start<Total>();
        fold(x_ + first, std::min(count_, first + step) - first, partial[p]);
      }
    });
    for (std::int64_t p = 1; p < kPieces; ++p) partial[0] = Op::template combine<Total>(partial[0], partial[p]);
    store(0, partial[0]);
  }

  static void fold(const T* from, std::int64_t size, Total& total) {
    for (; size > 0; from += kPiece, size -= kPiece)
      join(total, fold_lanes(
                      std::min(size, kPiece), Op::template start<A>(), [from](std::int64_t i) { return load(from[i]); },
                      combine));
  }

  LoopNest kept_, reduced_;
  std::int64_t count_;
  const T* x_;
  Result* out_;
};

template <class Op>
void reduce_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out, const void* attributes) {
  const ReductionPlan plan = make_plan(in[0].shape, reduced_axes("reduce", in[0].shape, of(attributes)));
  visit_dtype(in[0].dtype, [&]<class T>(TypeTag<T>) {
    if constexpr (kReduces<Op, T>) Reducer<Op, T>(plan, in[0].as<const T>(), out[0].as<result_t<Op, T>>()).run();
  });
}

Shape reduced_shape(const Shape& shape, const std::vector<bool>& reduced, bool keep_dims) {
  Shape result;
  for (int i = 0; i < shape.ndim(); ++i) {
    if (!reduced[static_cast<std::size_t>(i)])
      result.push_back(shape[i]);
    else if (keep_dims)
      result.push_back(1);
  }
  return result;
}

OpDef schema(const char* name, bool integers, bool of_nothing, bool in_int64 = false) {
  return OpDef(name)
      .attributes<ReduceAttributes>()
      .input("x")
      .infer([=](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        require(x.dtype() != DType::kBool || in_int64, "[", name, "] x is bool, cast it first");
        require(integers || is_floating(x.dtype()), "[", name, "] x is ", name_of(x.dtype()),
                ", expected a floating type");
        const std::vector<bool> reduced = reduced_axes(name, x.shape(), of(attributes));
        for (int i = 0; !of_nothing && i < x.ndim(); ++i)
          require(!reduced[static_cast<std::size_t>(i)] || x.size(i) > 0, "[", name, "] axis ", i, " of shape ",
                  x.shape(), " has no elements");
        return std::vector<ArraySpec>{{reduced_shape(x.shape(), reduced, of(attributes).keep_dims),
                                       in_int64 && !is_floating(x.dtype()) ? DType::kInt64 : x.dtype()}};
      })
      .text([](const void* attributes) {
        return AttributeText{{"axes", text_of(of(attributes).axes)},
                             {"keep_dims", of(attributes).keep_dims ? "1" : "0"}};
      });
}

template <class Op>
OpDef reduction(const char* name) {
  constexpr bool kExtreme = std::is_base_of_v<Max, Op> || std::is_same_v<Op, Min>;
  return schema(name, Op::kIntegers, !kExtreme, Op::kOfIntegersInInt64).cpu(reduce_cpu<Op>);
}

// `x` in the shape that keep_dims would have given it.
NDArray with_kept_axes(const NDArray& x, const OpCall& call) {
  const Shape& whole = call.input_specs[0].shape;
  const auto reduced = reduced_axes(call.op->name().c_str(), whole, call.attributes<ReduceAttributes>());
  return x.contiguous().view(reduced_shape(whole, reduced, true));
}

// The gradient of a line over the number of its chosen elements. Halves are too coarse to count them.
NDArray shared_by(const NDArray& chosen, const OpCall& call, const NDArray& gradient) {
  const NDArray count = sum(widened(chosen), call.attributes<ReduceAttributes>().axes, true);
  return in_type(widened(with_kept_axes(gradient, call)) / count, chosen.dtype());
}

std::vector<Gradient> extreme_gradient(const OpCall& call, const std::vector<NDArray>& gradients) {
  const NDArray& x = call.inputs[0];
  const NDArray chosen = cast(equal(x, with_kept_axes(call.outputs[0], call)), x.dtype());
  return {chosen * shared_by(chosen, call, gradients[0])};
}

// Inputs: gradient, x. The gradient of an element is the gradient of the product times all other elements. They are the
// elements before it and those after it.
void prod_backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                       const void* attributes) {
  const ReductionPlan plan = make_plan(in[1].shape, reduced_axes("prod_backward", in[1].shape, of(attributes)));
  visit_floating(in[1].dtype, "prod_backward", [&]<class T>(TypeTag<T>) {
    const std::int64_t smallest = detail::kElementsPerThread / std::max<std::int64_t>(1, plan.reduced.count);
    detail::parallel_ranges(plan.kept.count, std::max<std::int64_t>(1, smallest), [&](auto begin, auto end) {
      for (std::int64_t i = begin; i < end; ++i)
        products_of_others(plan, i, in[0].as<const T>(), in[1].as<const T>(), out[0].as<T>());
    });
  });
}

std::vector<Gradient> l2_gradient(const OpCall& call, const std::vector<NDArray>& gradients) {
  const NDArray norm = with_kept_axes(call.outputs[0], call);
  return {where(equal(norm, 0), 0, with_kept_axes(gradients[0], call) * (call.inputs[0] / norm))};
}

std::vector<Gradient> max_norm_gradient(const OpCall& call, const std::vector<NDArray>& gradients) {
  const NDArray& x = call.inputs[0];
  // Where an element is NaN, the norm is NaN. Such an element then counts as the chosen one.
  const NDArray largest = cast(equal(abs(x), with_kept_axes(call.outputs[0], call)), x.dtype());
  const NDArray chosen = where(equal(x, x), largest, 1);
  return {sign(x) * chosen * shared_by(chosen, call, gradients[0])};
}

// (sum |x|^order)^(1 / order), in float32 at least.
NDArray lp_norm(const NDArray& given, const NormAttributes& how) {
  const NDArray x = widened(given);
  return in_type(power(sum(power(abs(x), how.order), how.axes, how.keep_dims), 1 / how.order), given.dtype());
}

std::vector<Gradient> lp_gradient(const OpCall& call, const std::vector<NDArray>& gradients) {
  const NDArray x = widened(call.inputs[0]);
  const double order = call.attributes<NormAttributes>().order;
  const NDArray norm = widened(with_kept_axes(call.outputs[0], call));
  // The quotient is taken before the power, because a power of |x| or of the norm alone may leave the type's range.
  const NDArray slope = sign(x) * power(abs(x) / norm, order - 1);
  const NDArray gradient = widened(with_kept_axes(gradients[0], call)) * slope;
  // By convention the gradient is 0 where the norm is 0. For an order below 1 it is also 0 where x is 0, because the
  // slope there is infinite.
  const NDArray inside = where(equal(norm, 0), 0, gradient);
  return {in_type(order < 1 ? where(equal(x, 0), 0, inside) : inside, call.inputs[0].dtype())};
}

// log(sum(exp(x - top))) + top; top is 0 where the largest element is infinite.
NDArray log_sum_exp(const NDArray& x, const std::vector<int>& axes, const Shape& shape) {
  if (x.size() == 0)
    return NDArray::full(shape, -std::numeric_limits<double>::infinity(), x.dtype(), x.device(), x.engine());
  const NDArray largest = max(x, axes, true);
  const NDArray top = where(less(abs(largest), std::numeric_limits<double>::infinity()), largest, 0);
  return (log(sum(exp(x - top), axes, true)) + top).view(shape);
}

}  // namespace

const OpDef& prod_operator();
const OpDef& l1_norm_operator();
const OpDef& l2_norm_operator();
const OpDef& max_norm_operator();
const OpDef& logsumexp_operator();
const OpDef& lp_norm_operator();
const OpDef& prod_backward_operator();
const OpDef& sum_operator();
const OpDef& mean_operator();
const OpDef& max_operator();
const OpDef& min_operator();
const OpDef& reshape_operator();

OpDef sum_op() {
  return reduction<Sum>("sum").gradient(
      [](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {broadcast_to(with_kept_axes(gradients[0], call), call.input_specs[0].shape)};
      });
}

OpDef mean_op() {
  return reduction<Mean>("mean").gradient(
      [](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const Shape& whole = call.input_specs[0].shape;
        const double share = static_cast<double>(gradients[0].size()) / static_cast<double>(whole.size());
        // A small share has few digits in float16, or none.
        const NDArray each = in_type(widened(gradients[0]) * share, gradients[0].dtype());
        return {broadcast_to(with_kept_axes(each, call), whole)};
      });
}

OpDef max_op() { return reduction<Max>("max").saves_inputs({0}).saves_outputs({0}).gradient(extreme_gradient); }
OpDef min_op() { return reduction<Min>("min").saves_inputs({0}).saves_outputs({0}).gradient(extreme_gradient); }

OpDef prod_op() {
  return reduction<Prod>("prod").saves_inputs({0}).gradient(
      [](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const std::vector<NDArray> inputs{widened(gradients[0]), widened(call.inputs[0])};
        return {in_type(invoke(prod_backward_operator(), inputs, call.attribute_data)[0], call.inputs[0].dtype())};
      });
}
OpDef prod_backward_op() {
  return OpDef("prod_backward")
      .attributes<ReduceAttributes>()
      .input("gradient")
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[1];
        const std::vector<bool> reduced = reduced_axes("prod_backward", x.shape(), of(attributes));
        const Shape shape = reduced_shape(x.shape(), reduced, of(attributes).keep_dims);
        require(is_floating(x.dtype()) && inputs[0].dtype() == x.dtype() && inputs[0].shape() == shape,
                "[prod_backward] gradient is ", inputs[0].describe(), ", expected ", shape, " of the floating type of ",
                x.describe());
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}};
      })
      .cpu(prod_backward_cpu);
}
OpDef lp_norm_op() {
  return schema("lp_norm", false, true)
      .attributes<NormAttributes>()
      .saves_inputs({0})
      .saves_outputs({0})
      .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
        return std::vector<NDArray>{lp_norm(inputs[0], *static_cast<const NormAttributes*>(attributes))};
      })
      .gradient(lp_gradient)
      .text([](const void* attributes) {
        const auto& how = *static_cast<const NormAttributes*>(attributes);
        return AttributeText{
            {"axes", text_of(how.axes)}, {"keep_dims", how.keep_dims ? "1" : "0"}, {"order", str(how.order)}};
      });
}
OpDef l1_norm_op() {
  return reduction<L1Norm>("l1_norm").saves_inputs({0}).gradient(
      [](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {sign(call.inputs[0]) * with_kept_axes(gradients[0], call)};
      });
}
OpDef l2_norm_op() { return reduction<L2Norm>("l2_norm").saves_inputs({0}).saves_outputs({0}).gradient(l2_gradient); }
OpDef max_norm_op() {
  return reduction<MaxNorm>("max_norm").saves_inputs({0}).saves_outputs({0}).gradient(max_norm_gradient);
}
OpDef logsumexp_op() {
  return schema("logsumexp", false, true)
      .output("out")
      .auxiliary_output("unrounded")
      .saves_inputs({0})
      .saves_outputs({1})
      .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        const std::vector<bool> reduced = reduced_axes("logsumexp", x.shape(), of(attributes));
        const Shape shape = reduced_shape(x.shape(), reduced, of(attributes).keep_dims);
        const NDArray result = log_sum_exp(widened(x), of(attributes).axes, shape);
        return std::vector<NDArray>{in_type(result, x.dtype()), result};
      })
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const NDArray& x = call.inputs[0];
        const NDArray share = exp(widened(x) - with_kept_axes(call.outputs[1], call));
        return {in_type(widened(with_kept_axes(gradients[0], call)) * share, x.dtype())};
      });
}

NDArray prod(const NDArray& x, std::vector<int> axes, bool keep_dims) {
  return invoke(prod_operator(), {x}, ReduceAttributes{std::move(axes), keep_dims});
}

NDArray logsumexp(const NDArray& x, std::vector<int> axes, bool keep_dims) {
  return invoke(logsumexp_operator(), {x}, ReduceAttributes{std::move(axes), keep_dims});
}

NDArray norm(const NDArray& x, double order, std::vector<int> axes, bool keep_dims) {
  require(order > 0, "[norm] order is ", order, ", expected a positive number or infinity, for x, ", x.describe());
  ReduceAttributes attributes{std::move(axes), keep_dims};
  if (order == 1) return invoke(l1_norm_operator(), {x}, std::move(attributes));
  if (order == 2) return invoke(l2_norm_operator(), {x}, std::move(attributes));
  if (std::isinf(order)) return invoke(max_norm_operator(), {x}, std::move(attributes));
  return invoke(lp_norm_operator(), {x}, NormAttributes{std::move(attributes), order});
}

NDArray sum(const NDArray& x, std::vector<int> axes, bool keep_dims) {
  return invoke(sum_operator(), {x}, ReduceAttributes{std::move(axes), keep_dims});
}

NDArray mean(const NDArray& x, std::vector<int> axes, bool keep_dims) {
  return invoke(mean_operator(), {x}, ReduceAttributes{std::move(axes), keep_dims});
}

NDArray max(const NDArray& x, std::vector<int> axes, bool keep_dims) {
  return invoke(max_operator(), {x}, ReduceAttributes{std::move(axes), keep_dims});
}

NDArray min(const NDArray& x, std::vector<int> axes, bool keep_dims) {
  return invoke(min_operator(), {x}, ReduceAttributes{std::move(axes), keep_dims});
}

NDArray any(const NDArray& x, std::vector<int> axes, bool keep_dims) {
  return greater(sum(not_equal(x, 0), std::move(axes), keep_dims), 0);
}

NDArray all(const NDArray& x, std::vector<int> axes, bool keep_dims) {
  return equal(sum(equal(x, 0), std::move(axes), keep_dims), 0);
}

NDArray var(const NDArray& x, const std::vector<int>& axes, double correction, bool keep_dims) {
  require(is_floating(x.dtype()), "[var] x is ", x.describe(), ", expected a floating type");
  require(correction >= 0, "[var] correction is ", correction, ", expected at least 0");
  const NDArray wide = widened(x);
  const NDArray squares = sum(square(wide - mean(wide, axes, true)), axes, keep_dims);
  const std::int64_t results = squares.size();
  const double count = results > 0 ? static_cast<double>(x.size() / results) : 0;
  return in_type(squares / std::max(count - correction, 0.0), x.dtype());
}

NDArray std(const NDArray& x, const std::vector<int>& axes, double correction, bool keep_dims) {
  require(is_floating(x.dtype()), "[std] x is ", x.describe(), ", expected a floating type");
  // The variance of halves may leave their range where its root does not.
  if (is_half(x.dtype())) return cast(std(cast(x, DType::kFloat32), axes, correction, keep_dims), x.dtype());
  const NDArray variance = var(x, axes, correction, keep_dims), none = equal(variance, 0);
  return where(none, 0, sqrt(where(none, 1, variance)));
}

NDArray sum_to(const NDArray& x, const Shape& shape) {
  if (x.shape() == shape) return x;
  const int extra = x.ndim() - shape.ndim();
  std::vector<int> axes;
  for (int i = 0; i < x.ndim(); ++i)
    if (i < extra || (shape[i - extra] == 1 && x.size(i) != 1)) axes.push_back(i);
  return invoke(reshape_operator(), {axes.empty() ? x : sum(x, axes, true)}, ReshapeAttributes{shape, true});
}

}  // namespace paceline
