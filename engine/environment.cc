#include "environment.h"

#include <paceline/error.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <system_error>

namespace paceline::detail {

std::uint64_t schedule_seed_wanted() {
  const char* wanted = std::getenv("PACELINE_SCHEDULE_SEED");  // NOLINT(concurrency-mt-unsafe): nobody sets variables
  if (!wanted) return 0;
  std::uint64_t seed = 0;
  const char* const end = wanted + std::strlen(wanted);
  const auto [stop, error] = std::from_chars(wanted, end, seed);
  require(stop == end && error == std::errc(), "PACELINE_SCHEDULE_SEED is '", wanted, "', expected a number");
  return seed;
}

bool serial_engine_wanted() {
  const char* wanted = std::getenv("PACELINE_ENGINE");  // NOLINT(concurrency-mt-unsafe): nobody sets variables
  if (!wanted || std::strcmp(wanted, "threaded") == 0) return false;
  require(std::strcmp(wanted, "serial") == 0, "PACELINE_ENGINE is '", wanted, "'; known: serial threaded");
  return true;
}

}  // namespace paceline::detail
