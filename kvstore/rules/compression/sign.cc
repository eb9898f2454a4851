// Sends the sign of each element. By default decoding multiplies the signs by the slice's mean magnitude (EF-SignSGD,
// Karimireddy et al. 2019).
//
// With `majority`, the signs are votes, and there is no error feedback. In a round every worker has one vote for each
// element, and the sign of the majority is applied (Bernstein et al. 2019). The vote is the sign of the optimizer's
// momentum, which the worker keeps (Signum). An update moves a weight by the learning rate or not at all. The learning
// rate should therefore be like that of Adam, and fall to 0. Weights without a gradient must not drift. A tie therefore
// moves nothing: if the gradient is noise, two workers have a tie half of the time. For the same reason, the vote for
// an element of exactly 0 changes its sign with every push.
#include "compression/encoded.h"

namespace paceline {
namespace {

std::size_t bytes_of(std::size_t count) { return sizeof(float) + (count + 7) / 8; }

void check_size(EncodedBytes bytes, std::int64_t count) {
  encoded::expect_bytes("sign", bytes, bytes_of(static_cast<std::size_t>(count)), count);
}

void decode_signs(EncodedBytes bytes, std::int64_t begin, std::span<float> out) {
  const float scale = encoded::load<float>(bytes.data());
  encoded::read_bits(bytes.data() + sizeof(float), begin, {-scale, scale}, out);
}

class ScaledSign final : public Codec {
 public:
  std::size_t max_bytes(std::int64_t count) const override { return bytes_of(static_cast<std::size_t>(count)); }
  std::size_t encode(std::span<const float> values, const EncodeContext&, std::span<float* const>,
                     std::byte* out) const override {
    const double mean = encoded::sum_of_magnitudes(values) / static_cast<double>(values.size());
    encoded::store(out, static_cast<float>(mean));
    encoded::write_bits(values, out + sizeof(float));
    return bytes_of(values.size());
  }
  void check(EncodedBytes bytes, std::int64_t count) const override { check_size(bytes, count); }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    decode_signs(bytes, begin, out);
  }
};

class Vote final : public Codec {
 public:
  explicit Vote(const Options& options)
      : momentum_(options.get("momentum", 0.0f)), nesterov_(options.get("nesterov", false)) {
    require(momentum_ >= 0 && momentum_ < 1, "momentum is ", momentum_, ", expected at least 0, less than 1");
  }

  std::size_t max_bytes(std::int64_t count) const override { return bytes_of(static_cast<std::size_t>(count)); }
  std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const> state,
                     std::byte* out) const override {
    encoded::store(out, 1.0f);
    std::byte* const bits = out + sizeof(float);
    float* const velocity = state[0];
    std::array<float, 1024> ballot;
    for (std::size_t begin = 0; begin < values.size(); begin += ballot.size()) {
      const std::size_t count = std::min(ballot.size(), values.size() - begin);
      for (std::size_t i = 0; i < count; ++i) {
        float& kept = velocity[begin + i];
        const float gradient = values[begin + i], next = momentum_ * kept + gradient;
        ballot[i] = nesterov_ ? gradient + momentum_ * next : next;
        // A NaN or an infinity would stay in the momentum for ever.
        kept = next - next == 0 ? next : 0;
      }
      encoded::write_bits({ballot.data(), count}, bits + begin / 8);
      if (context.push % 2 != 0) turn_zeros({ballot.data(), count}, bits + begin / 8);
    }
    return bytes_of(values.size());
  }
  void check(EncodedBytes bytes, std::int64_t count) const override {
    check_size(bytes, count);
    if (encoded::load<float>(bytes.data()) != 1) throw Corrupt("a vote that counts more than one");
  }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    decode_signs(bytes, begin, out);
  }
  std::vector<std::string> state_names() const override { return {"velocity"}; }
  bool biased() const override { return false; }
  bool votes() const override { return true; }
  bool takes_momentum() const override { return true; }

 private:
  static void turn_zeros(std::span<const float> values, std::byte* bits) {
    for (std::size_t i = 0; i < values.size(); ++i)
      bits[i / 8] ^= static_cast<std::byte>(unsigned{values[i] == 0} << (7 - i % 8));
  }

  const float momentum_;
  const bool nesterov_;
};

}  // namespace

std::unique_ptr<Codec> make_sign_compression(const Options& options) {
  if (options.get("majority", false)) return std::make_unique<Vote>(options);
  return std::make_unique<ScaledSign>();
}

}  // namespace paceline
