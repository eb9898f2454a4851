// Divides a slice by a power of two and sends it as IEEE binary16 numbers. The division brings the largest finite
// magnitude of the slice to at least 2^14 and below 2^15. So no finite value overflows, and a slice of small gradients
// does not vanish. The exponent of the divisor is stored in front.
#include <paceline/dtype.h>

#include "compression/encoded.h"

namespace paceline {
namespace {

constexpr int kLargestExponent = 14;
constexpr std::int32_t kFarthest = 200;  // every exponent that encode() writes lies between -200 and 200

class Fp16 final : public Codec {
 public:
  std::size_t max_bytes(std::int64_t count) const override { return 4 + 2 * static_cast<std::size_t>(count); }

  std::size_t encode(std::span<const float> values, const EncodeContext&, std::span<float* const>,
                     std::byte* out) const override {
    std::uint32_t largest = 0;
    for (const float value : values) {
      const std::uint32_t bits = encoded::magnitude_bits(value);
      largest = std::max(largest, bits < 0x7f800000u ? bits : 0);
    }
    const std::int32_t exponent = largest == 0 ? 0 : std::ilogb(std::bit_cast<float>(largest)) - kLargestExponent;
    encoded::store(out, exponent);
    // The scale has two factors, because their product may lie outside the range of float32.
    const float first = std::ldexp(1.0f, -exponent / 2), second = std::ldexp(1.0f, -exponent - -exponent / 2);
    for (std::size_t i = 0; i < values.size(); ++i)
      encoded::store(out + 4 + 2 * i, float16(values[i] * first * second).bits);
    return max_bytes(static_cast<std::int64_t>(values.size()));
  }
  void check(EncodedBytes bytes, std::int64_t count) const override {
    encoded::expect_bytes("fp16", bytes, max_bytes(count), count);
    const auto exponent = encoded::load<std::int32_t>(bytes.data());
    if (std::abs(std::int64_t{exponent}) > kFarthest)
      throw Corrupt(str("a gradient encoded as fp16 has the scale 2^", exponent));
  }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    const auto exponent = encoded::load<std::int32_t>(bytes.data());
    const float first = std::ldexp(1.0f, exponent / 2), second = std::ldexp(1.0f, exponent - exponent / 2);
    const std::byte* from = bytes.data() + 4 + 2 * begin;
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = static_cast<float>(encoded::load<float16>(from + 2 * i)) * first * second;
  }
  bool biased() const override { return false; }
  bool suits_weights() const override { return true; }
};

}  // namespace

std::unique_ptr<Codec> make_fp16_compression(const Options&) { return std::make_unique<Fp16>(); }

}  // namespace paceline
