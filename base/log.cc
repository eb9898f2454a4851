#include <paceline/log.h>

#include <iomanip>
#include <mutex>
#include <ostream>

namespace paceline {
namespace {

std::mutex identity_mutex;
std::string& identity() {
  static std::string& text = *new std::string;
  return text;
}

void write_prefix(std::ostream& out, const google::LogMessageInfo& line, void*) {
  out << line.severity[0] << std::setfill('0') << std::setw(2) << 1 + line.time.month() << std::setw(2)
      << line.time.day() << ' ' << std::setw(2) << line.time.hour() << ':' << std::setw(2) << line.time.min() << ':'
      << std::setw(2) << line.time.sec() << '.' << std::setw(6) << line.time.usec();
  {
    const std::lock_guard lock(identity_mutex);
    if (!identity().empty()) out << ' ' << identity();
  }
  out << ' ' << line.filename << ':' << line.line_number << ']';
}

}  // namespace

void start_logging(const char* program) {
  FLAGS_logtostderr = true;
  if (!google::IsGoogleLoggingInitialized()) google::InitGoogleLogging(program, write_prefix);
}

void set_log_identity(const std::string& name) {
  const std::lock_guard lock(identity_mutex);
  identity() = name;
}

}  // namespace paceline
