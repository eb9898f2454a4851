#include "exchange/nccl.h"

#include <dlfcn.h>
#include <paceline/error.h>

namespace paceline::nccl {
namespace {

constexpr int kOldest = 21000;  // 2.10

template <class Function>
void find(void* handle, const std::string& library, const char* name, Function** function) {
  *function = reinterpret_cast<Function*>(dlsym(handle, name));
  if (!*function) throw NotAvailable(str(library, " has no ", name));
}

}  // namespace

int type_of(DType dtype) { return dtype == DType::kFloat64 ? 8 : 7; }

Library::Library(const std::string& name) : handle(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (!handle) throw NotAvailable(str("NCCL is not there: ", dlerror()));
  try {
    find(handle, name, "ncclGetVersion", &get_version);
    check(get_version(&version), "asking for the version");
    if (version < kOldest) throw NotAvailable(str(name, " is NCCL ", version_text(), ", older than 2.10"));
    find(handle, name, "ncclGetErrorString", &get_error_string);
    find(handle, name, "ncclCommInitAll", &comm_init_all);
    find(handle, name, "ncclCommDestroy", &comm_destroy);
    find(handle, name, "ncclCommAbort", &comm_abort);
    find(handle, name, "ncclCommGetAsyncError", &comm_get_async_error);
    find(handle, name, "ncclGroupStart", &group_start);
    find(handle, name, "ncclGroupEnd", &group_end);
    find(handle, name, "ncclReduce", &reduce);
    find(handle, name, "ncclBroadcast", &broadcast);
  } catch (...) {
    dlclose(handle);
    throw;
  }
}

Library::~Library() { dlclose(handle); }

std::string Library::version_text() const {
  // Up to 2.8 a part had one digit.
  const int unit = version < 10000 ? 10 : 100;
  return str(version / unit / (unit == 10 ? 100 : unit), ".", version / 100 % unit, ".", version % 100);
}

void Library::check(Result result, const char* what) const {
  if (result != kSuccess) throw DeviceError(str("NCCL, ", what, ": ", get_error_string(result), " (", result, ")"));
}

}  // namespace paceline::nccl
