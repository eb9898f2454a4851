#include "pad/pad.h"

#include "shared/rows.h"

namespace paceline {

const OpDef& pad_operator();

namespace {

const PadAttributes& of(const void* attributes) { return *static_cast<const PadAttributes*>(attributes); }

Shape padded(const NDArray& x, const PadAttributes& attributes) {
  const auto& widths = attributes.widths;
  require(static_cast<int>(widths.size()) == x.ndim(), "[pad] got ", widths.size(), " pairs of widths for x, ",
          x.describe(), ", expected one for each axis");
  Shape shape = x.shape();
  for (int i = 0; i < x.ndim(); ++i) {
    const auto& [before, after] = widths[static_cast<std::size_t>(i)];
    require(before >= 0 && after >= 0, "[pad] widths of axis ", i, " are ", before, " and ", after,
            ", expected none negative");
    shape[i] = checked_sum("pad", shape[i], checked_sum("pad", before, after));
  }
  return shape;
}

// The part of `whole` that x fills.
NDArray inside(NDArray whole, const Shape& shape, const PadAttributes& attributes) {
  for (int i = 0; i < whole.ndim(); ++i) {
    const std::int64_t begin = attributes.widths[static_cast<std::size_t>(i)].first;
    whole = whole.narrow(i, begin, begin + shape[i]);
  }
  return whole;
}

}  // namespace

OpDef pad_op() {
  return OpDef("pad")
      .attributes<PadAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        return std::vector<ArraySpec>{{padded(inputs[0], of(attributes)), inputs[0].dtype()}};
      })
      .forward([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        const NDArray out =
            NDArray::full(padded(x, of(attributes)), of(attributes).value, x.dtype(), x.device(), x.engine());
        if (x.size() > 0) inside(out, x.shape(), of(attributes)).copy_from(x);
        return std::vector<NDArray>{out};
      })
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {inside(gradients[0], call.input_specs[0].shape, call.attributes<PadAttributes>())};
      })
      .text([](const void* attributes) {
        std::string widths;
        for (const auto& [before, after] : of(attributes).widths)
          widths += (widths.empty() ? "" : " ") + str(before) + "," + str(after);
        return AttributeText{{"widths", widths}, {"value", str(of(attributes).value)}};
      });
}

NDArray pad(const NDArray& x, std::vector<std::pair<std::int64_t, std::int64_t>> widths, double value) {
  return invoke(pad_operator(), {x}, PadAttributes{std::move(widths), value});
}

}  // namespace paceline
