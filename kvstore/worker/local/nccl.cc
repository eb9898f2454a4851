#include "local/nccl.h"

#include <paceline/error.h>

namespace paceline::nccl {
namespace {

constexpr int kOldest = 21000;  // 2.10

}  // namespace

int type_of(DType dtype) { return dtype == DType::kFloat64 ? 8 : 7; }

Library::Library(const std::string& name) : file("NCCL", {name}) {
  file.find("ncclGetErrorString", &get_error_string);
  file.find("ncclGetVersion", &get_version);
  check(get_version(&version), "asking for the version");
  if (version < kOldest) throw NotAvailable(str(name, " is NCCL ", version_text(), ", older than 2.10"));
  file.find("ncclCommInitAll", &comm_init_all);
  file.find("ncclCommDestroy", &comm_destroy);
  file.find("ncclCommAbort", &comm_abort);
  file.find("ncclCommGetAsyncError", &comm_get_async_error);
  file.find("ncclGroupStart", &group_start);
  file.find("ncclGroupEnd", &group_end);
  file.find("ncclReduce", &reduce);
  file.find("ncclBroadcast", &broadcast);
}

std::string Library::version_text() const {
  // Up to NCCL 2.8, the code of a version had one digit for the minor version.
  const int unit = version < 10000 ? 10 : 100;
  return str(version / unit / (unit == 10 ? 100 : unit), ".", version / 100 % unit, ".", version % 100);
}

void Library::check(Result result, const char* what) const {
  if (result != kSuccess) throw DeviceError(str("NCCL, ", what, ": ", get_error_string(result), " (", result, ")"));
}

}  // namespace paceline::nccl
