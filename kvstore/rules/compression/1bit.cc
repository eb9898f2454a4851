// Sends one sign bit for each element, and two numbers for the slice: the mean of the negative elements and the mean of
// the others (Seide et al. 2014).
#include "compression/encoded.h"

namespace paceline {
namespace {

class OneBit final : public Codec {
 public:
  std::size_t max_bytes(std::int64_t count) const override {
    return 2 * sizeof(float) + (static_cast<std::size_t>(count) + 7) / 8;
  }

  std::size_t encode(std::span<const float> values, const EncodeContext&, std::span<float* const>,
                     std::byte* out) const override {
    const double magnitudes = encoded::sum_of_magnitudes(values);
    const double sum = encoded::sum_of(values, [](float value) { return value; });
    const double negative = encoded::sum_of(values, [](float value) { return value < 0; });
    const double others = static_cast<double>(values.size()) - negative;
    encoded::store(out, static_cast<float>((sum - magnitudes) / 2 / std::max(negative, 1.0)));
    encoded::store(out + sizeof(float), static_cast<float>((sum + magnitudes) / 2 / std::max(others, 1.0)));
    encoded::write_bits(values, out + 2 * sizeof(float));
    return max_bytes(static_cast<std::int64_t>(values.size()));
  }
  void check(EncodedBytes bytes, std::int64_t count) const override {
    encoded::expect_bytes("1bit", bytes, max_bytes(count), count);
  }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    const std::array<float, 2> means{encoded::load<float>(bytes.data()), encoded::load<float>(bytes.data() + 4)};
    encoded::read_bits(bytes.data() + 2 * sizeof(float), begin, means, out);
  }
};

}  // namespace

std::unique_ptr<Codec> make_1bit_compression(const Options&) { return std::make_unique<OneBit>(); }

}  // namespace paceline
