#include "batch_decoder.h"

#include <string>
#include <utility>

#include "array_memory.h"

namespace paceline::io {
namespace {

class HostBatchDecoder final : public BatchDecoder {
 public:
  HostBatchDecoder(std::unique_ptr<Decoder> decoder, std::shared_ptr<BatchMemory> memory)
      : decoder_(std::move(decoder)), memory_(std::move(memory)) {
    for (ExampleArray& array : decoder_->arrays()) arrays_.emplace_back(std::move(array));
    places_.resize(arrays_.size());
  }

  void begin(std::int64_t examples) override {
    examples_ = 0;
    for (ArrayMemory& array : arrays_) array.allocate(*memory_, examples);
  }
  void add(std::string_view record, std::uint64_t seed) override {
    for (std::size_t i = 0; i < arrays_.size(); ++i) places_[i] = arrays_[i].place(examples_);
    decoder_->decode(record, seed, places_);
    ++examples_;
  }
  NamedArrays finish() override {
    NamedArrays result;
    for (ArrayMemory& array : arrays_) result.push_back(array.take(examples_));
    return result;
  }

 private:
  std::unique_ptr<Decoder> decoder_;
  std::shared_ptr<BatchMemory> memory_;
  std::vector<ArrayMemory> arrays_;
  std::vector<void*> places_;
};

class DeviceBatchDecoder final : public BatchDecoder {
 public:
  DeviceBatchDecoder(DeviceDecoder& decoder, const ExampleFormat& format, std::shared_ptr<BatchMemory> memory)
      : decoder_(decoder), label_(ExampleDecoder(format).arrays().back()), memory_(std::move(memory)) {}

  void begin(std::int64_t examples) override {
    examples_ = 0;
    decoder_.begin(examples);
    label_.allocate(*memory_, examples);
  }
  void add(std::string_view record, std::uint64_t seed) override {
    decoder_.add(std::string(record), seed, label_.place(examples_));
    ++examples_;
  }
  NamedArrays finish() override { return {{"data", decoder_.finish()}, label_.take(examples_)}; }

 private:
  DeviceDecoder& decoder_;
  ArrayMemory label_;
  std::shared_ptr<BatchMemory> memory_;
};

}  // namespace

std::unique_ptr<BatchDecoder> on_host(std::unique_ptr<Decoder> decoder, std::shared_ptr<BatchMemory> memory) {
  return std::make_unique<HostBatchDecoder>(std::move(decoder), std::move(memory));
}

std::unique_ptr<BatchDecoder> on_device(DeviceDecoder& decoder, const ExampleFormat& format,
                                        std::shared_ptr<BatchMemory> memory) {
  return std::make_unique<DeviceBatchDecoder>(decoder, format, std::move(memory));
}

}  // namespace paceline::io
