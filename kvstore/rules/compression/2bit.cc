// Sends two bits for each element: +t, -t or 0. A byte holds four elements, the first in the highest bits. With the
// option `threshold`, t is fixed, and the bytes are those of MXNet. A push then delivers at most t of an element.
// Without `threshold`, the codec sends t in front of the elements. It sends +t or -t for the elements whose magnitude
// is at least the mean magnitude, and t is the mean magnitude of these elements. t thus grows with the elements, so
// error feedback delivers any constant gradient in full. If an element is NaN, all elements arrive as NaN.
#include "compression/encoded.h"

namespace paceline {
namespace {

// The code is 3 for +t, 2 for -t and 0 for 0. There are no branches, because processors could not predict them.
unsigned code_of(float value, float threshold) {
  const unsigned plus = value >= threshold, minus = value <= -threshold;
  return (plus | minus) << 1 | plus;
}

class TwoBit final : public Codec {
 public:
  explicit TwoBit(float threshold) : threshold_(threshold), header_(threshold > 0 ? 0 : sizeof(float)) {}

  std::size_t max_bytes(std::int64_t count) const override {
    return header_ + (static_cast<std::size_t>(count) + 15) / 16 * 4;
  }

  std::size_t encode(std::span<const float> values, const EncodeContext&, std::span<float* const>,
                     std::byte* out) const override {
    const std::size_t bytes = max_bytes(static_cast<std::int64_t>(values.size()));
    std::byte* const codes = out + header_;
    float threshold = threshold_;
    if (header_ > 0) {
      threshold = static_cast<float>(encoded::sum_of_magnitudes(values) / static_cast<double>(values.size()));
      // Magnitudes compare like their bit patterns. The mask avoids a branch.
      const std::uint32_t least = encoded::magnitude_bits(threshold);
      const double sum = encoded::sum_of(values, [least](float value) {
        const std::uint32_t bits = encoded::magnitude_bits(value);
        return std::bit_cast<float>(bits & (0u - std::uint32_t{bits >= least}));
      });
      const double chosen = encoded::sum_of(
          values, [least](float value) { return static_cast<int>(encoded::magnitude_bits(value) >= least); });
      // If all elements have the same magnitude, rounding may leave the mean above it.
      const float mean = chosen > 0 ? static_cast<float>(sum / chosen) : threshold;
      encoded::store(out, mean);
      if (std::isnan(mean)) {  // nothing compares with NaN, so every element is sent as +t
        std::fill(codes, out + bytes, std::byte{0xff});
        return bytes;
      }
      if (chosen == 0) threshold = std::nextafter(threshold, 0.0f);
    }
    const std::size_t whole = values.size() / 4 * 4;
    for (std::size_t i = 0; i < whole; i += 4)
      codes[i / 4] =
          static_cast<std::byte>(code_of(values[i], threshold) << 6 | code_of(values[i + 1], threshold) << 4 |
                                 code_of(values[i + 2], threshold) << 2 | code_of(values[i + 3], threshold));
    std::fill(codes + whole / 4, out + bytes, std::byte{0});
    for (std::size_t i = whole; i < values.size(); ++i)
      codes[i / 4] |= static_cast<std::byte>(code_of(values[i], threshold) << (6 - 2 * (i % 4)));
    return bytes;
  }

  void check(EncodedBytes bytes, std::int64_t count) const override {
    encoded::expect_bytes("2bit", bytes, max_bytes(count), count);
  }

  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    const float threshold = header_ > 0 ? encoded::load<float>(bytes.data()) : threshold_;
    const std::array<float, 4> levels{0, 0, -threshold, threshold};
    const std::byte* const codes = bytes.data() + header_;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::size_t place = static_cast<std::size_t>(begin) + i;
      out[i] = levels[std::to_integer<unsigned>(codes[place / 4]) >> (6 - 2 * (place % 4)) & 3];
    }
  }

 private:
  const float threshold_;
  const std::size_t header_;
};

}  // namespace

std::unique_ptr<Codec> make_2bit_compression(const Options& options) {
  const float threshold = options.get("threshold", 0.0f);
  require(threshold > 0 || !options.has("threshold"), "threshold is ", threshold, ", expected more than 0");
  return std::make_unique<TwoBit>(threshold);
}

}  // namespace paceline
