#pragma once
// Arrays whose contents could not be computed.

#include <paceline/engine.h>
#include <paceline/error.h>
#include <paceline/ndarray.h>

#include <array>

namespace paceline::test {

// Pushes a task that throws InvalidArgument instead of writing the array.
inline void fail(const NDArray& array) {
  array.engine().push({"fails"}, {}, std::array{array.variable()}, [](TaskContext&) { throw InvalidArgument("test"); });
}

}  // namespace paceline::test
