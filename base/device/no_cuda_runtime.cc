#include <paceline/detail/device_runtime.h>
#include <paceline/detail/physical_device.h>
#include <paceline/error.h>

namespace paceline::detail {

std::unique_ptr<DeviceRuntime> make_cuda_runtime(int index) {
  throw NotAvailable(str("cuda:", index,
                         " cannot be used: built without CUDA; configure with the preset cuda, or "
                         "-DPACELINE_CUDA=ON"));
}

int cuda_device_count() { return 0; }
int physical_cuda_device(int index) { return index; }

}  // namespace paceline::detail
