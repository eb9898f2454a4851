#pragma once
// Labels that are numbers of classes.

#include <paceline/error.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

namespace paceline::io {

// The class that a label names, of `classes`; 0: their number is not known. Throws Corrupt with the reason alone.
inline std::int32_t class_number(float label, std::size_t classes) {
  constexpr float kMostClasses = 16777216.0f;  // from here on a float does not hold every number
  const bool known = label >= 0 && label < kMostClasses && label == std::floor(label) &&
                     (classes == 0 || label < static_cast<float>(classes));
  if (!known) throw Corrupt(str("its label ", label, " is no class of the data set"));
  return static_cast<std::int32_t>(label);
}

}  // namespace paceline::io
