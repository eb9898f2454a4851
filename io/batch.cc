#include <paceline/data_iterator.h>
#include <paceline/error.h>

namespace paceline {

const NDArray& Batch::array(std::string_view name) const {
  const NDArray* found = name == "data" ? &data : name == "label" ? &label : nullptr;
  std::string known = "data label";
  for (const auto& [other, array] : others) {
    if (other == name) found = &array;
    known += " " + other;
  }
  require(found && !found->is_none(), "the batch holds no array '", name, "'; known: ", known);
  return *found;
}

}  // namespace paceline
