#include "reshape/reshape.h"

namespace paceline {

const OpDef& reshape_operator();

namespace {

// The shape without codes.
Shape resolve(const Shape& from, const void* attributes) {
  const auto& [codes, plain] = *static_cast<const ReshapeAttributes*>(attributes);
  if (plain) {
    require(codes.size() == from.size(), "[reshape] x has shape ", from, ", which does not fit ", codes);
    return codes;
  }
  Shape to;
  int unknown = -1;
  for (const std::int64_t code : codes) {
    const int place = to.ndim();
    if (code == -2) {
      for (int i = place; i < from.ndim(); ++i) to.push_back(from[i]);
    } else if (code == 0) {
      require(place < from.ndim(), "[reshape] code 0 at place ", place, " of ", codes, ", but x has shape ", from);
      to.push_back(from[place]);
    } else {
      require(code >= -1, "[reshape] unknown code ", code, " in ", codes, "; known: 0 -1 -2");
      require(code != -1 || unknown < 0, "[reshape] code -1 occurs twice in ", codes);
      if (code == -1) unknown = place;
      to.push_back(code == -1 ? 1 : code);
    }
  }
  if (unknown >= 0 && to.size() > 0 && from.size() % to.size() == 0) to[unknown] = from.size() / to.size();
  require(to.size() == from.size(), "[reshape] x has shape ", from, ", which does not fit ", codes);
  return to;
}

NDArray reshape_or_copy(const NDArray& x, const Shape& shape) { return x.contiguous().view(shape); }

}  // namespace

OpDef reshape_op() {
  return OpDef("reshape")
      .attributes<ReshapeAttributes>()
      .input("x")
      .infer([](const std::vector<NDArray>& inputs, const void* attributes) {
        return std::vector<ArraySpec>{{resolve(inputs[0].shape(), attributes), inputs[0].dtype()}};
      })
      .composed_of([](const std::vector<NDArray>& inputs, const void* attributes) {
        return std::vector<NDArray>{reshape_or_copy(inputs[0], resolve(inputs[0].shape(), attributes))};
      })
      .text([](const void* attributes) {
        return AttributeText{{"shape", static_cast<const ReshapeAttributes*>(attributes)->shape.text()}};
      });
}

NDArray reshape(const NDArray& x, const Shape& shape) {
  return invoke(reshape_operator(), {x}, ReshapeAttributes{shape});
}

NDArray flatten(const NDArray& x) {
  require(x.ndim() >= 1, "[flatten] x is ", x.describe(), ", expected at least 1 dimension");
  std::int64_t rest = 1;
  for (int i = 1; i < x.ndim(); ++i) rest *= x.size(i);
  return invoke(reshape_operator(), {x}, ReshapeAttributes{{x.size(0), rest}, true});
}

NDArray expand_dims(const NDArray& x, int axis) {
  require(axis >= -x.ndim() - 1 && axis <= x.ndim(), "[expand_dims] axis is ", axis, " and x ", x.describe(),
          ", expected ", -x.ndim() - 1, " to ", x.ndim());
  const int place = normalize_axis(axis, x.ndim() + 1, "expand_dims");
  Shape shape;
  for (int i = 0; i <= x.ndim(); ++i) shape.push_back(i < place ? x.size(i) : i == place ? 1 : x.size(i - 1));
  return invoke(reshape_operator(), {x}, ReshapeAttributes{shape, true});
}

NDArray squeeze(const NDArray& x, int axis) {
  require(axis >= -x.ndim() && axis < x.ndim(), "[squeeze] axis is ", axis, " and x ", x.describe(),
          ", expected the number of one of its axes");
  const int place = normalize_axis(axis, x.ndim(), "squeeze");
  require(x.size(place) == 1, "[squeeze] axis ", axis, " of x, ", x.describe(), ", has size ", x.size(place),
          ", expected 1");
  Shape shape;
  for (int i = 0; i < x.ndim(); ++i)
    if (i != place) shape.push_back(x.size(i));
  return invoke(reshape_operator(), {x}, ReshapeAttributes{shape, true});
}

}  // namespace paceline
