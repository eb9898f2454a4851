#pragma once
// What the two sources of the binary family share: the tables' entries with shape rules.

#include "binary/binary.h"
#include "binary/functors.h"

#include <paceline/detail/convert.h>

namespace paceline {

using functors::kIsComparison;
using functors::Operands;
using functors::operands_of;

void check_binary_type(const char* name, DType dtype, Operands operands);

// Schema of name(a, b) without kernels; kAll are comparisons, with a result of bool.
OpDef binary_schema(const char* name, Operands operands);
// Schema of name(a) with ScalarAttributes, without kernels.
OpDef scalar_schema(const char* name, Operands operands);

// Calls visitor(TypeTag<T>) for the types that F takes.
template <class F, class Visitor>
void visit_operand(DType dtype, Visitor&& visitor) {
  visit_dtype(dtype, [&]<class T>(TypeTag<T> tag) {
    if constexpr (functors::takes<F, T>()) visitor(tag);
  });
}

// Hands the scalar of the attributes to visitor as a Tensor of one element of the given type.
template <class T, class Visitor>
void with_scalar(const void* attributes, const Visitor& visitor) {
  const auto& scalar = *static_cast<const ScalarAttributes*>(attributes);
  T value = detail::convert<T>(scalar.scalar);
  visitor(Tensor{&value, Shape(), Strides(), dtype_of<T>()}, scalar.scalar_first);
}

}  // namespace paceline
