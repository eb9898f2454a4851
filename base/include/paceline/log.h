#pragma once
// Logging through glog: LOG(INFO), LOG(WARNING), LOG(ERROR). Lines go to standard error.

#include <glog/logging.h>

#include <string>

namespace paceline {

// Sets glog up for a program: lines go to standard error, never to files. Call it once at the start of main(), with
// argv[0].
void start_logging(const char* program);

// Puts `identity`, for instance "worker 3@hostB", into every later line of this process. Thread-safe.
void set_log_identity(const std::string& identity);

}  // namespace paceline
