#include "environment.h"

#include <paceline/error.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace paceline::detail {

std::uint64_t schedule_seed_wanted() {
  const char* wanted = std::getenv("PACELINE_SCHEDULE_SEED");  // NOLINT(concurrency-mt-unsafe): nobody sets variables
  if (!wanted) return 0;
  char* end = nullptr;
  const std::uint64_t seed = std::strtoull(wanted, &end, 10);
  require(*wanted >= '0' && *wanted <= '9' && *end == '\0', "PACELINE_SCHEDULE_SEED is '", wanted,
          "', expected a number");
  return seed;
}

bool serial_engine_wanted() {
  const char* wanted = std::getenv("PACELINE_ENGINE");  // NOLINT(concurrency-mt-unsafe): nobody sets variables
  if (!wanted || std::strcmp(wanted, "threaded") == 0) return false;
  require(std::strcmp(wanted, "serial") == 0, "PACELINE_ENGINE is '", wanted, "'; known: serial threaded");
  return true;
}

}  // namespace paceline::detail
