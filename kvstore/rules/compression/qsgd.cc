// QSGD (Alistarh et al. 2017). Sends the norm of each bucket of 512 elements. An element becomes a sign and a multiple
// of norm / `levels`, rounded at random so that its expected value is right. The codec is unbiased, so it needs no
// state.
#include <paceline/random.h>

#include <limits>

#include "compression/encoded.h"

namespace paceline {
namespace {

constexpr std::int64_t kBucket = 512;

class Qsgd final : public Codec {
 public:
  explicit Qsgd(int levels) : levels_(levels), bits_(levels <= 1 ? 2 : levels <= 7 ? 4 : 8) {}

  std::size_t max_bytes(std::int64_t count) const override {
    const std::int64_t last = count % kBucket;
    return static_cast<std::size_t>(count / kBucket) * bucket_bytes(kBucket) + (last > 0 ? bucket_bytes(last) : 0);
  }

  std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const>,
                     std::byte* out) const override {
    const std::uint64_t seed = encoded::mix(context.slice, static_cast<std::uint64_t>(context.push));
    const std::byte* const start = out;
    for (std::size_t begin = 0; begin < values.size(); begin += kBucket) {
      const std::span bucket = values.subspan(begin, std::min<std::size_t>(kBucket, values.size() - begin));
      const float norm = static_cast<float>(std::sqrt(encoded::sum_of(
          bucket, [](float value) { return static_cast<double>(value) * static_cast<double>(value); })));
      encoded::store(out, norm);
      write(bucket, norm > 0 && std::isfinite(norm) ? norm : 0, seed, begin / 4,
            static_cast<std::uint64_t>(context.worker), out + sizeof(float));
      out += bucket_bytes(static_cast<std::int64_t>(bucket.size()));
    }
    return static_cast<std::size_t>(out - start);
  }

  void check(EncodedBytes bytes, std::int64_t count) const override {
    encoded::expect_bytes("qsgd", bytes, max_bytes(count), count);
  }

  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    const unsigned sign = 1u << (bits_ - 1), mask = 2 * sign - 1, per_byte = 8 / bits_;
    for (std::size_t i = 0; i < out.size();) {
      const std::size_t place = static_cast<std::size_t>(begin) + i, inside = place % kBucket;
      const std::byte* const bucket = bytes.data() + place / kBucket * bucket_bytes(kBucket);
      const float step = encoded::load<float>(bucket) / static_cast<float>(levels_);
      const std::byte* const codes = bucket + sizeof(float);
      const std::size_t end = std::min(out.size(), i + kBucket - inside);
      for (std::size_t j = inside; i < end; ++i, ++j) {
        const unsigned code = std::to_integer<unsigned>(codes[j / per_byte]) >> (j % per_byte * bits_) & mask;
        const float magnitude = step * static_cast<float>(code & ~sign);
        out[i] = std::bit_cast<float>(std::bit_cast<std::uint32_t>(magnitude) ^ (code & sign) << (32 - bits_));
      }
    }
  }
  bool biased() const override { return false; }

 private:
  std::size_t bucket_bytes(std::int64_t count) const {
    return sizeof(float) + (static_cast<std::size_t>(count) * bits_ + 31) / 32 * 4;
  }

  void write(std::span<const float> bucket, float norm, std::uint64_t seed, std::uint64_t first, std::uint64_t worker,
             std::byte* codes) const {
    const unsigned sign = 1u << (bits_ - 1), per_byte = 8 / bits_;
    const auto highest = static_cast<float>(levels_);
    // For a norm below levels / 3.4e38 the quotient is infinite, and 0 times infinity is NaN. The limit makes the
    // elements of such a bucket too small, but zeros stay zeros.
    const float scale = norm > 0 ? std::min(highest / norm, std::numeric_limits<float>::max()) : 0;
    std::fill_n(codes, bucket_bytes(static_cast<std::int64_t>(bucket.size())) - sizeof(float), std::byte{0});
    RandomBits bits{};
    for (std::size_t i = 0; i < bucket.size(); ++i) {
      if (i % 4 == 0) bits = random_bits(seed, first + i / 4, worker);
      const float level = norm > 0 ? std::abs(bucket[i]) * scale + uniform_float(bits.word[i % 4]) : 0;
      const unsigned code = static_cast<unsigned>(std::min(highest, level)) |
                            (std::bit_cast<std::uint32_t>(bucket[i]) >> (32 - bits_) & sign);
      codes[i / per_byte] |= static_cast<std::byte>(code << (i % per_byte * bits_));
    }
  }

  const int levels_;
  const unsigned bits_;  // per element
};

}  // namespace

std::unique_ptr<Codec> make_qsgd_compression(const Options& options) {
  const int levels = options.get("levels", 7);
  require(levels >= 1 && levels <= 127, "levels is ", levels,
          ", expected 1 to 127 (1 takes 2 bits an element, 7 take 4, "
          "127 take 8)");
  return std::make_unique<Qsgd>(levels);
}

}  // namespace paceline
