// Two bits for each element: +t, -t or 0. A byte holds four elements, the first in the highest bits. With a fixed
// `threshold` these are MXNet's bytes, and no more than t of an element leaves the worker in a push. Without
// `threshold`, t is the mean magnitude of the elements at or above the mean, and is sent in front. This is the largest
// step towards the gradient that three levels can make, so error feedback delivers any constant gradient in full.
#include "compression/encoded.h"

namespace paceline {
namespace {

// 3: +t, 2: -t, 0: nothing. Without branches: which it will be cannot be predicted.
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
    float threshold = threshold_;
    if (header_ > 0) {
      threshold = static_cast<float>(encoded::sum_of_magnitudes(values) / static_cast<double>(values.size()));
      // Magnitudes compare as their bits do; the mask keeps this free of branches, too.
      const std::uint32_t least = encoded::magnitude_bits(threshold);
      const double sum = encoded::sum_of(values, [least](float value) {
        const std::uint32_t bits = encoded::magnitude_bits(value);
        return std::bit_cast<float>(bits & (0u - std::uint32_t{bits >= least}));
      });
      const double chosen = encoded::sum_of(
          values, [least](float value) { return static_cast<int>(encoded::magnitude_bits(value) >= least); });
      // Rounding may leave the mean above every element of a constant gradient.
      encoded::store(out, chosen > 0 ? static_cast<float>(sum / chosen) : threshold);
      if (chosen == 0) threshold = std::nextafter(threshold, 0.0f);
    }
    const std::size_t bytes = max_bytes(static_cast<std::int64_t>(values.size()));
    std::byte* const codes = out + header_;
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
