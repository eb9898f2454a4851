#pragma once
// Decodes the images of a batch in the memory of a CUDA device: JPEGs by nvJPEG, what it leaves by ImageCodec.
//
// The host reads a JPEG's codes on the calling thread; all that the device does goes to a stream of the decoder's own,
// which the caller waits for before it hands the batch on. So nothing of it is a task of the engine, the lanes of the
// device issue kernels meanwhile, and the batch is an array that nobody writes any more.

#include <paceline/ndarray.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "example_decoder.h"

namespace paceline::io {

// One thread at a time. Failures of the device throw DeviceError, OutOfMemory; the batch is given up then.
class DeviceDecoder {
 public:
  virtual ~DeviceDecoder() = default;
  // A batch of at most `examples`; one that was not finished is given up.
  virtual void begin(std::int64_t examples) = 0;
  // The next example, as ExampleDecoder::decode(). Throws Corrupt with the reason alone; nothing is added then.
  virtual void add(std::string record, std::uint64_t seed, void* label) = 0;
  // (examples, channels, height, width) on the device, complete; none where nothing was added.
  virtual NDArray finish() = 0;
};

// `count` of them, for a CUDA device. Throws NotAvailable where it cannot be used, or nvJPEG is not there or does not
// start.
std::vector<std::unique_ptr<DeviceDecoder>> make_device_decoders(Device device, const ExampleFormat& format, int count);

}  // namespace paceline::io
