// A build without CUDA.
#include <paceline/error.h>

#include "device/device_decoder.h"

namespace paceline::io {

std::vector<std::unique_ptr<DeviceDecoder>> make_device_decoders(Device, const ExampleFormat&, int) {
  throw NotAvailable("this build is without CUDA; configure with PACELINE_CUDA=ON");
}

}  // namespace paceline::io
