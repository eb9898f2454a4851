#include "augment/mixing.h"

#include <paceline/detail/array_builder.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>

#include "augment/draws.h"

namespace paceline::io {
namespace {

float mixed(float own, float other, float kept) { return kept * own + (1 - kept) * other; }
std::uint8_t mixed(std::uint8_t own, std::uint8_t other, float kept) {
  const float value = kept * static_cast<float>(own) + (1 - kept) * static_cast<float>(other);
  return static_cast<std::uint8_t>(value + 0.5f);  // NOLINT(bugprone-incorrect-roundings): fast, and not negative
}

class MixingBatchDecoder final : public BatchDecoder {
 public:
  MixingBatchDecoder(std::unique_ptr<BatchDecoder> decoder, const ExampleFormat& format,
                     std::shared_ptr<BatchMemory> memory)
      : decoder_(std::move(decoder)), format_(format), memory_(std::move(memory)) {}

  void begin(std::int64_t examples) override {
    examples_ = 0;
    decoder_->begin(examples);
  }
  void add(std::string_view record, std::uint64_t seed) override {
    decoder_->add(record, seed);
    if (examples_++ == 0) seed_ = seed;
  }
  NamedArrays finish() override {
    NamedArrays arrays = decoder_->finish();
    const auto mixture =
        draw_mixture(format_.pipeline->mixing(), format_.height, format_.width, mix(seed_, kStreamOfBatches));
    NDArray& data = arrays.at(0).second;
    if (mixture && format_.dtype == DType::kUint8)
      mix_values<std::uint8_t>(data, *mixture);
    else if (mixture)
      mix_values<float>(data, *mixture);
    arrays.at(1).second = shares(arrays.at(1).second.to_vector<std::int32_t>(), mixture ? mixture->kept : 1);
    return arrays;
  }

 private:
  // Apart from those that the steps of an image use.
  static constexpr std::uint64_t kStreamOfBatches = std::uint64_t{1} << 32;

  template <class T>
  void mix_values(NDArray& data, const MixedBatch& mixture) const {
    const std::size_t size = static_cast<std::size_t>(data.size() / examples_);
    T* const values = static_cast<T*>(ArrayBuilder::data(data));
    const std::vector<T> first(values, values + size);
    for (std::int64_t i = 0; i < examples_; ++i) {
      T* const own = values + static_cast<std::size_t>(i) * size;
      const T* const other = i + 1 < examples_ ? own + size : first.data();
      if (mixture.pasted.height == 0) {
        const float kept = static_cast<float>(mixture.kept);
        for (std::size_t j = 0; j < size; ++j) own[j] = mixed(own[j], other[j], kept);
      } else {
        paste(own, other, mixture.pasted);
      }
    }
  }

  template <class T>
  void paste(T* own, const T* other, const Rectangle& part) const {
    for (int c = 0; c < format_.channels; ++c)
      for (int y = part.top; y < part.top + part.height; ++y) {
        const std::ptrdiff_t at = (std::ptrdiff_t{c} * format_.height + y) * format_.width + part.left;
        std::copy_n(other + at, part.width, own + at);
      }
  }

  NDArray shares(const std::vector<std::int32_t>& classes, double kept) const {
    const std::size_t count = format_.class_count;
    const std::shared_ptr<void> memory = memory_->allocate(classes.size() * count * sizeof(float));
    auto* const values = static_cast<float*>(memory.get());
    std::fill_n(values, classes.size() * count, 0.0f);
    for (std::size_t i = 0; i < classes.size(); ++i) {
      const std::size_t other = (i + 1) % classes.size();
      values[i * count + static_cast<std::size_t>(classes[i])] += static_cast<float>(kept);
      values[i * count + static_cast<std::size_t>(classes[other])] += static_cast<float>(1 - kept);
    }
    return NDArray::wrap(values, {static_cast<std::int64_t>(classes.size()), static_cast<std::int64_t>(count)},
                         DType::kFloat32, memory);
  }

  const std::unique_ptr<BatchDecoder> decoder_;
  const ExampleFormat format_;
  const std::shared_ptr<BatchMemory> memory_;
  std::uint64_t seed_ = 0;  // of the first example
};

}  // namespace

std::optional<MixedBatch> draw_mixture(std::span<const CheckedStep> steps, int height, int width, std::uint64_t seed) {
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Random random(mix(seed, i));
    if (!happens(random, steps[i].number("p"))) continue;
    MixedBatch result;
    result.kept = beta(random, steps[i].number("alpha"));
    if (steps[i].name() == "mixup") return result;
    // A rectangle of the other's share, in the image's shape, about a middle anywhere; what is outside is cut off.
    const double side = std::sqrt(1 - result.kept) / 2;
    const auto cut = [&](int length) {
      const int middle = static_cast<int>(random.below(static_cast<std::uint64_t>(length)));
      const int half = static_cast<int>(side * length);
      return std::pair{std::max(middle - half, 0), std::min(middle + half, length)};
    };
    const auto [top, bottom] = cut(height);
    const auto [left, right] = cut(width);
    result.pasted = {top, left, bottom - top, right - left};
    const double area = static_cast<double>(bottom - top) * (right - left);
    if (area == 0) return {};
    result.kept = 1 - area / (static_cast<double>(height) * width);
    return result;
  }
  return {};
}

std::unique_ptr<BatchDecoder> mixing(std::unique_ptr<BatchDecoder> decoder, const ExampleFormat& format,
                                     std::shared_ptr<BatchMemory> memory) {
  return std::make_unique<MixingBatchDecoder>(std::move(decoder), format, std::move(memory));
}

}  // namespace paceline::io
