#pragma once
// Logging through glog: LOG(INFO), LOG(WARNING), LOG(ERROR). Lines go to standard error.

#include <glog/logging.h>

#include <string>

namespace paceline {

// Sets glog up for a program; call once at the start of main(). Never aborts, writes no log files.
void start_logging(const char* program);

// Puts `identity`, for instance "worker 3@hostB", into every line from now on. Thread-safe.
void set_log_identity(const std::string& identity);

}  // namespace paceline
