#pragma once
// Sees what the calling thread does with arrays while a function is captured.

#include "launch.h"
#include "storage.h"

#include <paceline/kernel.h>

namespace paceline::detail {

class CaptureListener {
 public:
  virtual void created(const Storage& storage) = 0;
  // The memory holds values that came from the host, not from a launch.
  virtual void filled(const NDArray& array) = 0;
  virtual void launched(const Kernel& kernel, KernelFunction function, References inputs, References outputs,
                        const std::shared_ptr<const void>& attributes, const LaunchOptions& options) = 0;
  // Throws InvalidArgument: `what` cannot be replayed.
  [[noreturn]] virtual void refuse(const char* what) = 0;

  // Of the calling thread; null while nothing is captured.
  static CaptureListener*& current();

 protected:
  ~CaptureListener() = default;
};

}  // namespace paceline::detail
