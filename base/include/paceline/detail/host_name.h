#pragma once

#include <unistd.h>

#include <string>

namespace paceline::detail {

// "unknown" where the system does not say it.
inline std::string host_name() {
  char name[256] = {};
  return ::gethostname(name, sizeof name - 1) == 0 ? name : "unknown";
}

}  // namespace paceline::detail
