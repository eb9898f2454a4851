#include "batch_norm/batch_norm.h"

#include "shared/lanes.h"
#include "shared/wide.h"

#include <paceline/detail/elementwise.h>

#include <cmath>

namespace paceline {

const OpDef& batch_norm_operator();
const OpDef& batch_norm_backward_operator();

namespace {

const BatchNormAttributes& of(const void* attributes) { return *static_cast<const BatchNormAttributes*>(attributes); }

AttributeText text(const void* attributes) {
  return {{"momentum", str(of(attributes).momentum)},
          {"epsilon", str(of(attributes).epsilon)},
          {"training", of(attributes).training ? "1" : "0"}};
}

// The runs of memory that belong to one channel: `examples` runs of `plane` elements.
struct Layout {
  std::int64_t examples, channels, plane = 1;

  explicit Layout(const Shape& x) : examples(x[0]), channels(x[1]) {
    for (int i = 2; i < x.ndim(); ++i) plane *= x[i];
  }
  std::int64_t count() const { return examples * plane; }
  std::int64_t run(std::int64_t example, std::int64_t channel) const { return (example * channels + channel) * plane; }
};

// Sum over a channel of value(i), i being a position in x.
template <class A, class Value>
double channel_sum(const Layout& layout, std::int64_t channel, const Value& value) {
  double total = 0;
  for (std::int64_t n = 0; n < layout.examples; ++n) {
    const std::int64_t first = layout.run(n, channel);
    total += static_cast<double>(sum_lanes<A>(layout.plane, [&](std::int64_t i) { return value(first + i); }));
  }
  return total;
}

template <class Body>
void for_each_channel(const Layout& layout, const Body& body) {
  const std::int64_t smallest = std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, layout.count()));
  detail::parallel_ranges(layout.channels, smallest, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t c = begin; c < end; ++c) body(c);
  });
}

// Inputs: x, gamma, beta, running mean and variance. Outputs: y, used mean, 1 / deviation, running mean and variance.
void forward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                 const void* attributes) {
  const auto [momentum, epsilon, training] = of(attributes);
  const Layout layout(in[0].shape);
  visit_floating(
      in[0].dtype, "batch_norm", [&, momentum = momentum, epsilon = epsilon, training = training]<class T>(TypeTag<T>) {
        using A = accumulator_t<T>;
        const T* const x = in[0].as<const T>();
        T* const y = out[0].as<T>();
        A* const running_mean = out[3].as<A>();
        A* const running_variance = out[4].as<A>();
        for_each_channel(layout, [&](std::int64_t c) {
          double mean = static_cast<double>(running_mean[c]);
          double variance = static_cast<double>(running_variance[c]);
          if (training && layout.count() > 0) {
            const auto count = static_cast<double>(layout.count());
            mean = channel_sum<A>(layout, c, [x](std::int64_t i) { return static_cast<A>(x[i]); }) / count;
            const A center = static_cast<A>(mean);
            variance = channel_sum<A>(layout, c,
                                      [x, center](std::int64_t i) {
                                        const A distance = static_cast<A>(x[i]) - center;
                                        return distance * distance;
                                      }) /
                       count;
            running_mean[c] = static_cast<A>(momentum * static_cast<double>(running_mean[c]) + (1 - momentum) * mean);
            running_variance[c] =
                static_cast<A>(momentum * static_cast<double>(running_variance[c]) + (1 - momentum) * variance);
          }
          const double inverse = 1 / std::sqrt(variance + epsilon);
          out[1].as<A>()[c] = static_cast<A>(mean);
          out[2].as<A>()[c] = static_cast<A>(inverse);
          const A center = static_cast<A>(mean);
          const A slope = static_cast<A>(inverse) * in[1].as<const A>()[c];
          const A shift = in[2].as<const A>()[c];
          for (std::int64_t n = 0; n < layout.examples; ++n) {
            const std::int64_t first = layout.run(n, c);
            for (std::int64_t i = first; i < first + layout.plane; ++i)
              y[i] = T((static_cast<A>(x[i]) - center) * slope + shift);
          }
        });
      });
}

// Inputs: gradient, x, gamma, used mean, 1 / deviation. Outputs: gradients of x, gamma, beta.
void backward_cpu(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const bool training = of(attributes).training;
  const Layout layout(in[0].shape);
  visit_floating(in[0].dtype, "batch_norm_backward", [&]<class T>(TypeTag<T>) {
    using A = accumulator_t<T>;
    const T* const dy = in[0].as<const T>();
    const T* const x = in[1].as<const T>();
    T* const dx = out[0].as<T>();
    for_each_channel(layout, [&](std::int64_t c) {
      const A center = in[3].as<const A>()[c];
      const A inverse = in[4].as<const A>()[c];
      const double sum = channel_sum<A>(layout, c, [dy](std::int64_t i) { return static_cast<A>(dy[i]); });
      const double product =
          channel_sum<A>(layout, c,
                         [=](std::int64_t i) { return static_cast<A>(dy[i]) * (static_cast<A>(x[i]) - center); }) *
          static_cast<double>(inverse);
      out[1].as<A>()[c] = static_cast<A>(product);
      out[2].as<A>()[c] = static_cast<A>(sum);
      const A slope = in[2].as<const A>()[c] * inverse;
      const auto count = static_cast<double>(layout.count());
      const A mean_gradient = static_cast<A>(sum / count);
      const A mean_product = static_cast<A>(product / count) * inverse;
      for (std::int64_t n = 0; n < layout.examples; ++n) {
        const std::int64_t first = layout.run(n, c), last = first + layout.plane;
        if (training) {
          for (std::int64_t i = first; i < last; ++i)
            dx[i] = T(slope * (static_cast<A>(dy[i]) - mean_gradient - (static_cast<A>(x[i]) - center) * mean_product));
        } else {  // running statistics do not depend on x
          for (std::int64_t i = first; i < last; ++i) dx[i] = T(slope * static_cast<A>(dy[i]));
        }
      }
    });
  });
}

void check_per_channel(const OpDef::Input& input, const NDArray& array, const NDArray& x) {
  require(array.shape() == Shape{x.size(1)} && array.dtype() == wide_type(x.dtype()), "[batch_norm] ", input.name,
          " is ", array.describe(), ", expected ", name_of(wide_type(x.dtype())), " ", Shape{x.size(1)});
}

}  // namespace

OpDef batch_norm_op() {
  return OpDef("batch_norm")
      .attributes<BatchNormAttributes>()
      .input("x")
      .input("gamma")
      .input("beta")
      .mutated_input("running_mean")
      .mutated_input("running_variance")
      .output("out")
      .auxiliary_output("mean")
      .auxiliary_output("inverse_deviation")
      .saves_inputs({0, 1})
      .saves_outputs({1, 2})
      .channels_last()
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        const NDArray& x = inputs[0];
        require(x.ndim() >= 2, "[batch_norm] x has ", x.ndim(), " dimensions, expected at least 2");
        require(is_floating(x.dtype()), "[batch_norm] x is ", name_of(x.dtype()), ", expected a floating type");
        const auto& names = batch_norm_operator().inputs();
        for (std::size_t i = 1; i < inputs.size(); ++i) check_per_channel(names[i], inputs[i], x);
        const ArraySpec statistics{{x.size(1)}, wide_type(x.dtype())};
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}, statistics, statistics};
      })
      .cpu(forward_cpu)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        const auto results = invoke(batch_norm_backward_operator(),
                                    {gradients[0], call.inputs[0], call.inputs[1], call.outputs[1], call.outputs[2]},
                                    call.attribute_data);
        return {results[0], results[1], results[2], Gradient(), Gradient()};
      })
      .text(text);
}

OpDef batch_norm_backward_op() {
  return OpDef("batch_norm_backward")
      .attributes<BatchNormAttributes>()
      .input("gradient")
      .input("x")
      .input("gamma")
      .input("mean")
      .input("inverse_deviation")
      .output("x_gradient")
      .output("gamma_gradient")
      .output("beta_gradient")
      .channels_last()
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        const NDArray& x = inputs[1];
        require(inputs[0].shape() == x.shape() && inputs[0].dtype() == x.dtype(), "[batch_norm_backward] gradient is ",
                inputs[0].describe(), ", expected ", x.describe());
        const ArraySpec statistics{inputs[2].shape(), inputs[2].dtype()};
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}, statistics, statistics};
      })
      .cpu(backward_cpu)
      .text(text);
}

NDArray batch_norm(const NDArray& x, const NDArray& gamma, const NDArray& beta, const NDArray& running_mean,
                   const NDArray& running_variance, const BatchNormAttributes& attributes) {
  return invoke(batch_norm_operator(), {x, gamma, beta, running_mean, running_variance}, attributes);
}

}  // namespace paceline
