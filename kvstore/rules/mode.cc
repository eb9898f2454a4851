#include <paceline/mode.h>

namespace paceline {

std::unique_ptr<Mode> make_mode(const Spec& spec) {
  auto mode = mode_catalog().at(spec.name)(spec.options);
  spec.options.reject_unknown("mode '" + spec.name + "'");
  return mode;
}

}  // namespace paceline
