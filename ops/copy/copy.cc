#include "copy/copy.h"

#include "reduce/reduce.h"
#include "reshape/reshape.h"
#include "shared/channels.h"
#include "shared/rows.h"
#include "shared/text.h"

namespace paceline {

const OpDef& copy_operator();
const OpDef& cast_operator();
const OpDef& channels_last_operator();
const OpDef& broadcast_to_operator();
const OpDef& reshape_operator();

OpDef copy_op() {
  return OpDef("copy")
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        return std::vector<ArraySpec>{{inputs[0].shape(), inputs[0].dtype()}};
      })
      .composed_of(
          [](const std::vector<NDArray>& inputs, const void*) { return std::vector<NDArray>{inputs[0].clone()}; });
}

OpDef channels_last_op() {
  return OpDef("channels_last")
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        const NDArray& x = inputs[0];
        require(may_have_channels_last(x.shape()), "[channels_last] x is ", x.describe(),
                ", expected (n, channels, sizes...)");
        return std::vector<ArraySpec>{{x.shape(), x.dtype()}};
      })
      .composed_of([](const std::vector<NDArray>& inputs, const void*) {
        return std::vector<NDArray>{as_channels_last(inputs[0])};
      });
}

OpDef cast_op() {
  return OpDef("cast")
      .attributes<CastAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        return std::vector<ArraySpec>{{inputs[0].shape(), static_cast<const CastAttributes*>(attributes)->dtype}};
      })
      .composed_of([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        const DType dtype = static_cast<const CastAttributes*>(attributes)->dtype;
        if (!have_channels_last(std::span(&x, 1))) return std::vector<NDArray>{x.cast(dtype)};
        const NDArray out = new_channels_last(x.shape(), dtype, x);
        out.copy_from(x);
        return std::vector<NDArray>{out};
      })
      .text([](const void* attributes) {
        return AttributeText{{"dtype", name_of(static_cast<const CastAttributes*>(attributes)->dtype)}};
      });
}

OpDef broadcast_to_op() {
  return OpDef("broadcast_to")
      .attributes<BroadcastToAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        const Shape& from = inputs[0].shape();
        const Shape& to = static_cast<const BroadcastToAttributes*>(attributes)->shape;
        bool fits = from.ndim() <= to.ndim();
        for (int i = 1; fits && i <= from.ndim(); ++i) {
          const std::int64_t size = from[from.ndim() - i];
          fits = size == 1 || size == to[to.ndim() - i];
        }
        require(fits, "[broadcast_to] x has shape ", from, ", which does not repeat to ", to);
        return std::vector<ArraySpec>{{to, inputs[0].dtype()}};
      })
      .composed_of([](const std::vector<NDArray>& inputs, const void* attributes) {
        const NDArray& x = inputs[0];
        const NDArray out(static_cast<const BroadcastToAttributes*>(attributes)->shape, x.dtype(), x.device(),
                          x.engine());
        out.copy_from(x);
        return std::vector<NDArray>{out};
      })
      .text([](const void* attributes) {
        return AttributeText{{"shape", static_cast<const BroadcastToAttributes*>(attributes)->shape.text()}};
      });
}

NDArray channels_last(const NDArray& x) { return invoke(channels_last_operator(), {x})[0]; }
NDArray copy(const NDArray& x) { return invoke(copy_operator(), {x})[0]; }

NDArray cast(const NDArray& x, DType dtype) { return invoke(cast_operator(), {x}, CastAttributes{dtype}); }

NDArray broadcast_to(const NDArray& x, const Shape& shape) {
  return invoke(broadcast_to_operator(), {x}, BroadcastToAttributes{shape});
}

namespace {

// x as (before, 1, after), repeated along the middle, in the shape `to`.
NDArray repeat_middle(const NDArray& x, std::int64_t before, std::int64_t times, std::int64_t after, const Shape& to) {
  const NDArray flat = invoke(reshape_operator(), {x}, ReshapeAttributes{{before, 1, after}, true});
  return invoke(reshape_operator(), {broadcast_to(flat, {before, times, after})}, ReshapeAttributes{to, true});
}

}  // namespace

NDArray tile(const NDArray& x, const std::vector<std::int64_t>& times) {
  bool right = static_cast<int>(times.size()) == x.ndim();
  for (const std::int64_t number : times) right = right && number >= 0;
  require(right, "[tile] times ", text_of(times), " does not say how often for each of the axes of x, ", x.describe());
  NDArray result = x;
  for (int i = 0; i < x.ndim(); ++i) {
    const std::int64_t number = times[static_cast<std::size_t>(i)];
    const AxisView view = around_axis(result.shape(), i);
    Shape to = result.shape();
    to[i] = checked_product("tile", to[i], number);
    if (number != 1) result = repeat_middle(result, view.outer, number, view.size * view.inner, to);
  }
  return result;
}

NDArray repeat(const NDArray& x, std::int64_t times, int axis) {
  require(times >= 0, "[repeat] times is ", times, ", expected none negative, for x, ", x.describe());
  const int place = normalize_axis(axis, x.ndim(), "repeat");
  const AxisView view = around_axis(x.shape(), place);
  Shape to = x.shape();
  to[place] = checked_product("repeat", to[place], times);
  return repeat_middle(x, view.outer * view.size, times, view.inner, to);
}

}  // namespace paceline
