#include <paceline/detail/tf32.h>
#include <paceline/error.h>

#include <cstdlib>
#include <string_view>

namespace paceline::detail {

bool parse_tf32(const char* value) {
  const std::string_view wanted = value ? value : "0";
  require(wanted == "0" || wanted == "1", "PACELINE_TF32 is '", wanted, "', expected 0 or 1");
  return wanted == "1";
}

bool tf32_wanted() {
  static const bool wanted = parse_tf32(std::getenv("PACELINE_TF32"));  // NOLINT(concurrency-mt-unsafe)
  return wanted;
}

}  // namespace paceline::detail
