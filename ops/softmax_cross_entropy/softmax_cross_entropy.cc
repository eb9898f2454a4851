#include "softmax_cross_entropy/softmax_cross_entropy.h"

#include "binary/binary.h"
#include "copy/copy.h"
#include "index/index.h"
#include "reduce/reduce.h"
#include "shared/fast_math.h"
#include "shared/labels.h"
#include "shared/lanes.h"
#include "shared/wide.h"
#include "softmax/softmax.h"
#include "unary/unary.h"
#include "where/where.h"

#include <paceline/detail/elementwise.h>

#include <algorithm>
#include <cmath>

namespace paceline {

const OpDef& softmax_cross_entropy_operator();
const OpDef& softmax_cross_entropy_backward_operator();

namespace {

const SoftmaxCrossEntropyAttributes& of(const void* attributes) {
  return *static_cast<const SoftmaxCrossEntropyAttributes*>(attributes);
}
Reduction reduction_of(const void* attributes) { return of(attributes).reduction; }

AttributeText text(const void* attributes) {
  constexpr const char* kNames[] = {"mean", "sum", "none"};
  const auto& [reduction, smoothing, ignored] = of(attributes);
  return {{"reduction", kNames[static_cast<int>(reduction)]},
          {"label_smoothing", str(smoothing)},
          {"ignored_label", ignored ? str(*ignored) : "none"}};
}

// Outputs: loss, probabilities. The workspace takes the losses of the rows.
void forward_cpu(const KernelContext& context, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const Labels labels("softmax_cross_entropy", in[1], in[0].shape[1], of(attributes).ignored_label);
  visit_floating(in[0].dtype, "softmax_cross_entropy", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const std::int64_t rows = in[0].shape[0];
    const std::int64_t classes = in[0].shape[1];
    A* const losses = static_cast<A*>(context.workspace);
    const A smoothing = static_cast<A>(of(attributes).label_smoothing);
    detail::parallel_ranges(rows, 256, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const T* x = in[0].as<const T>() + row * classes;
        T* p = out[1].as<T>() + row * classes;
        const auto load = [x](std::int64_t i) { return static_cast<A>(x[i]); };
        const A top = fold_lanes(classes, load(0), load, [](A a, A b) { return b > a || b != b ? b : a; });
        const A total = sum_lanes<A>(classes, [=](std::int64_t i) { return fast_exp(load(i) - top); });
        const A scale = A(1) / total;
        for (std::int64_t i = 0; i < classes; ++i) p[i] = T(fast_exp(load(i) - top) * scale);
        losses[row] = A(0);
        if (labels.is_ignored(row)) continue;
        losses[row] = std::log(total) - (load(labels[row]) - top);
        if (smoothing == A(0)) continue;
        const A mean = sum_lanes<A>(classes, [=](std::int64_t i) { return load(i) - top; }) / static_cast<A>(classes);
        losses[row] = (A(1) - smoothing) * losses[row] + smoothing * (std::log(total) - mean);
      }
    });
    T* const loss = out[0].as<T>();
    const Reduction reduction = reduction_of(attributes);
    if (reduction == Reduction::kNone) {
      for (std::int64_t row = 0; row < rows; ++row) loss[row] = T(losses[row]);
      return;
    }
    const A sum = sum_lanes<A>(rows, [losses](std::int64_t i) { return losses[i]; });
    loss[0] = T(reduction == Reduction::kMean ? sum / static_cast<A>(labels.counted()) : sum);
  });
}

// Inputs: gradient, probabilities, labels.
void backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const std::int64_t rows = in[1].shape[0];
  const std::int64_t classes = in[1].shape[1];
  const Labels labels("softmax_cross_entropy_backward", in[2], classes, of(attributes).ignored_label);
  visit_floating(in[0].dtype, "softmax_cross_entropy_backward", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const bool by_row = reduction_of(attributes) == Reduction::kNone;
    const A share = reduction_of(attributes) == Reduction::kMean ? A(1) / static_cast<A>(labels.counted()) : A(1);
    const A smoothing = static_cast<A>(of(attributes).label_smoothing);
    const A everywhere = smoothing / static_cast<A>(classes);
    const T* const gradients = in[0].as<const T>();
    for (std::int64_t row = 0; row < rows; ++row) {
      const A gradient = static_cast<A>(gradients[by_row ? row : 0]) * share;
      const T* p = in[1].as<const T>() + row * classes;
      T* dx = out[0].as<T>() + row * classes;
      if (labels.is_ignored(row)) {
        std::fill_n(dx, classes, T(0));
        continue;
      }
      for (std::int64_t i = 0; i < classes; ++i) dx[i] = T((static_cast<A>(p[i]) - everywhere) * gradient);
      const std::int64_t label = labels[row];
      dx[label] = T((static_cast<A>(p[label]) - everywhere - (A(1) - smoothing)) * gradient);
    }
  });
}

std::size_t row_bytes(const std::vector<NDArray>& inputs, const void*) {
  return static_cast<std::size_t>(inputs[0].size(0)) * sizeof(double);
}

}  // namespace

OpDef softmax_cross_entropy_op() {
  return OpDef("softmax_cross_entropy")
      .attributes<SoftmaxCrossEntropyAttributes>()
      .input("scores")
      .input("labels")
      .output("loss")
      .auxiliary_output("probabilities")
      .saves_inputs({1})
      .saves_outputs({1})
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& scores = inputs[0];
        check_scores("softmax_cross_entropy", scores, inputs[1]);
        require(is_floating(scores.dtype()), "[softmax_cross_entropy] scores is ", name_of(scores.dtype()),
                ", expected a floating type");
        const bool by_row = reduction_of(attributes) == Reduction::kNone;
        return std::vector<ArraySpec>{{by_row ? Shape{scores.size(0)} : Shape(), scores.dtype()},
                                      {scores.shape(), scores.dtype()}};
      })
      .workspace(row_bytes)
      .cpu(forward_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {invoke(softmax_cross_entropy_backward_operator(), {gradients[0], call.outputs[1], call.inputs[1]},
                       call.attribute_data)[0],
                Gradient()};
      })
      .text(text);
}

OpDef softmax_cross_entropy_backward_op() {
  return OpDef("softmax_cross_entropy_backward")
      .attributes<SoftmaxCrossEntropyAttributes>()
      .input("gradient")
      .input("probabilities")
      .input("labels")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& probabilities = inputs[1];
        check_scores("softmax_cross_entropy_backward", probabilities, inputs[2]);
        const bool by_row = reduction_of(attributes) == Reduction::kNone;
        require(inputs[0].size() == (by_row ? probabilities.size(0) : 1) && inputs[0].dtype() == probabilities.dtype(),
                "[softmax_cross_entropy_backward] gradient is ", inputs[0].describe(), ", which does not fit ",
                probabilities.describe());
        return std::vector<ArraySpec>{{probabilities.shape(), probabilities.dtype()}};
      })
      .cpu(backward_cpu)
      .text(text);
}

NDArray softmax_cross_entropy(const NDArray& scores, const NDArray& labels, Reduction reduction) {
  return invoke(softmax_cross_entropy_operator(), {scores, labels}, SoftmaxCrossEntropyAttributes{reduction});
}

NDArray softmax_cross_entropy(const NDArray& scores, const NDArray& labels,
                              const SoftmaxCrossEntropyAttributes& attributes) {
  require(attributes.label_smoothing >= 0 && attributes.label_smoothing < 1,
          "[softmax_cross_entropy] label_smoothing is ", attributes.label_smoothing, ", expected [0, 1), for scores, ",
          scores.describe());
  return invoke(softmax_cross_entropy_operator(), {scores, labels}, attributes);
}

namespace {

void check_class_weights(const char* name, const NDArray& scores, const NDArray& weights) {
  require(weights.shape() == Shape{scores.size(1)} && weights.dtype() == scores.dtype(), "[", name,
          "] class_weights is ", weights.describe(), ", expected ", name_of(scores.dtype()), " ",
          Shape{scores.size(1)});
}

NDArray reduced(const NDArray& losses, Reduction reduction) {
  if (reduction == Reduction::kNone) return losses;
  return reduction == Reduction::kMean ? mean(losses) : sum(losses);
}

}  // namespace

NDArray softmax_cross_entropy(const NDArray& scores, const NDArray& labels,
                              const SoftmaxCrossEntropyAttributes& attributes, const NDArray& class_weights) {
  check_scores("softmax_cross_entropy", scores, labels);
  check_class_weights("softmax_cross_entropy", scores, class_weights);
  // The sum of the weights leaves the range of float16 at 65,520 rows.
  if (is_half(scores.dtype()))
    return cast(
        softmax_cross_entropy(cast(scores, DType::kFloat32), labels, attributes, cast(class_weights, DType::kFloat32)),
        scores.dtype());
  SoftmaxCrossEntropyAttributes by_row = attributes;
  by_row.reduction = Reduction::kNone;
  by_row.label_smoothing = 0;
  NDArray losses = softmax_cross_entropy(scores, labels, by_row);  // which also checks the labels
  const auto counted = [&](const NDArray& rows) {
    if (!attributes.ignored_label) return rows;
    return where(equal(labels, static_cast<double>(*attributes.ignored_label)), 0, rows);
  };
  const NDArray weights = counted(take(class_weights, counted(labels.cast(DType::kInt64))));
  losses = losses * weights;
  if (attributes.label_smoothing > 0) {
    const NDArray of_all_classes = counted(sum(log_softmax(scores) * class_weights, {1}));
    losses = losses * (1 - attributes.label_smoothing) -
             of_all_classes * (attributes.label_smoothing / static_cast<double>(scores.size(1)));
  }
  if (attributes.reduction != Reduction::kMean) return reduced(losses, attributes.reduction);
  return sum(losses) / sum(weights);
}

NDArray soft_cross_entropy(const NDArray& scores, const NDArray& targets, Reduction reduction,
                           const NDArray& class_weights) {
  require(scores.ndim() == 2 && targets.shape() == scores.shape() && targets.dtype() == scores.dtype(),
          "[soft_cross_entropy] scores is ", scores.describe(), " and targets ", targets.describe(),
          ", expected one shape (n, classes) and type");
  NDArray shares = targets * log_softmax(scores);
  if (!class_weights.is_none()) {
    check_class_weights("soft_cross_entropy", scores, class_weights);
    shares = shares * class_weights;
  }
  return reduced(-sum(shares, {1}), reduction);
}

}  // namespace paceline
