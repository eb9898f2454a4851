#pragma once
// The arrays that examples consist of.

#include <paceline/decoder.h>
#include <paceline/error.h>

#include <set>
#include <string>
#include <vector>

namespace paceline::io {

// Throws InvalidArgument, with whose arrays they are, where there are none, or two have one name.
inline void require_distinct(const std::vector<ExampleArray>& arrays, const std::string& whose) {
  require(!arrays.empty(), whose, " makes no arrays");
  std::set<std::string> names;
  for (const ExampleArray& array : arrays) {
    require(!array.name.empty() && names.insert(array.name).second, whose, " makes two arrays '", array.name,
            "', or one without a name");
    require(array.shape.size() > 0, whose, " makes an array '", array.name, "' of shape ", array.shape,
            ", which has no elements");
  }
}

}  // namespace paceline::io
