#pragma once
// From records to the arrays of a batch, on the host or on a device.

#include <paceline/decoder.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "batch_memory.h"
#include "device/device_decoder.h"

namespace paceline::io {

// One thread at a time.
class BatchDecoder {
 public:
  virtual ~BatchDecoder() = default;
  // A batch of at most `examples`; one that was not finished is given up.
  virtual void begin(std::int64_t examples) = 0;
  // The next example, as Decoder::decode(). After Corrupt nothing was added.
  virtual void add(std::string_view record, std::uint64_t seed) = 0;
  // How many were added.
  std::int64_t examples() const { return examples_; }
  // The arrays of what was added, complete. At least one example was.
  virtual NamedArrays finish() = 0;

 protected:
  std::int64_t examples_ = 0;
};

std::unique_ptr<BatchDecoder> on_host(std::unique_ptr<Decoder> decoder, std::shared_ptr<BatchMemory> memory);
// Of images. `decoder` must outlive it.
std::unique_ptr<BatchDecoder> on_device(DeviceDecoder& decoder, const ExampleFormat& format,
                                        std::shared_ptr<BatchMemory> memory);

}  // namespace paceline::io
