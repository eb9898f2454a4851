#pragma once
// NCCL, opened at run time. This header declares all functions of NCCL that are used, so the build needs no header of
// NCCL.

#include <paceline/detail/shared_library.h>
#include <paceline/dtype.h>

#include <cstddef>
#include <string>

namespace paceline::nccl {

// Types and values of nccl.h, version 2. The values do not change.
using Result = int;
constexpr Result kSuccess = 0, kInProgress = 7;
constexpr int kSum = 0;
int type_of(DType dtype);  // for float32 and float64 only
using Comm = struct ncclComm*;

struct Library {
  // `name` as for dlopen. Throws NotAvailable if the library cannot be opened, or is too old.
  explicit Library(const std::string& name);

  // Throws DeviceError with NCCL's own message unless `result` is success.
  void check(Result result, const char* what) const;

  const detail::SharedLibrary file;
  int version = 0;
  std::string version_text() const;

  Result (*get_version)(int* version);
  const char* (*get_error_string)(Result result);
  Result (*comm_init_all)(Comm* comms, int count, const int* devices);
  Result (*comm_destroy)(Comm comm);
  Result (*comm_abort)(Comm comm);
  Result (*comm_get_async_error)(Comm comm, Result* error);
  Result (*group_start)();
  Result (*group_end)();
  // The last argument is a cudaStream_t.
  Result (*reduce)(const void* send, void* receive, std::size_t count, int type, int operation, int root, Comm comm,
                   void* stream);
  Result (*broadcast)(const void* send, void* receive, std::size_t count, int type, int root, Comm comm, void* stream);
};

}  // namespace paceline::nccl
