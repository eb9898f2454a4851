// The sign of each element. By default times the slice's mean magnitude (EF-SignSGD, Karimireddy et al. 2019). With
// `majority` signs alone, without error feedback: in a round every worker has one vote per element and the majority's
// sign is applied, a tie counting as positive (Bernstein et al. 2019); it wants learning rates like Adam's. The vote of
// a gradient of 0 changes from push to push: were it always the same, weights that nothing pulls at would drift away.
#include "compression/encoded.h"

namespace paceline {
namespace {

class Sign final : public Codec {
 public:
  explicit Sign(bool majority) : majority_(majority) {}

  std::size_t max_bytes(std::int64_t count) const override {
    return sizeof(float) + (static_cast<std::size_t>(count) + 7) / 8;
  }

  std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const>,
                     std::byte* out) const override {
    const double mean = encoded::sum_of_magnitudes(values) / static_cast<double>(values.size());
    encoded::store(out, majority_ ? 1.0f : static_cast<float>(mean));
    encoded::write_bits(values, out + sizeof(float));
    if (majority_ && context.push % 2 != 0) turn_zeros(values, out + sizeof(float));
    return max_bytes(static_cast<std::int64_t>(values.size()));
  }
  void check(EncodedBytes bytes, std::int64_t count) const override {
    encoded::expect_bytes("sign", bytes, max_bytes(count), count);
    if (majority_ && encoded::load<float>(bytes.data()) != 1) throw Corrupt("a vote that counts more than one");
  }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    const float scale = encoded::load<float>(bytes.data());
    encoded::read_bits(bytes.data() + sizeof(float), begin, {-scale, scale}, out);
  }
  bool biased() const override { return !majority_; }
  bool votes() const override { return majority_; }

 private:
  static void turn_zeros(std::span<const float> values, std::byte* bits) {
    for (std::size_t i = 0; i < values.size(); ++i)
      bits[i / 8] ^= static_cast<std::byte>(unsigned{values[i] == 0} << (7 - i % 8));
  }

  const bool majority_;
};

}  // namespace

std::unique_ptr<Codec> make_sign_compression(const Options& options) {
  return std::make_unique<Sign>(options.get("majority", false));
}

}  // namespace paceline
