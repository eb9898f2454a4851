#include <paceline/mode.h>

#include "own_objects.h"

namespace paceline {

Aggregate parse_aggregate(const Options& options, Aggregate otherwise) {
  const std::string text = options.get("aggregate", otherwise == Aggregate::kSum ? "sum" : "mean");
  require(text == "mean" || text == "sum", "aggregate is '", text, "', expected mean or sum");
  return text == "sum" ? Aggregate::kSum : Aggregate::kMean;
}

std::shared_ptr<const Mode> make_mode(const Spec& spec, const Extensions& own) {
  auto mode = make_object(own.modes, mode_catalog(), spec.name, spec.options);
  spec.options.reject_unknown("mode '" + spec.name + "'");
  return mode;
}

}  // namespace paceline
