// Sends the upper half of each float32, rounded to nearest even.
#include <paceline/dtype.h>

#include "compression/encoded.h"
#include "prefetch.h"

namespace paceline {
namespace {

// Processors stop prefetching at the end of a page. encode() therefore prefetches two kilobytes ahead. Gradients that
// are not in a cache are then encoded more than twice as fast.
constexpr std::size_t kBlock = 128, kAhead = 512;

class Bf16 final : public Codec {
 public:
  std::size_t max_bytes(std::int64_t count) const override { return 2 * static_cast<std::size_t>(count); }

  std::size_t encode(std::span<const float> values, const EncodeContext&, std::span<float* const>,
                     std::byte* out) const override {
    for (std::size_t begin = 0; begin < values.size(); begin += kBlock) {
      const std::size_t end = std::min(begin + kBlock, values.size());
      if (end + kAhead <= values.size())
        prefetch_lines<Cache::kFirst>(std::as_bytes(values.subspan(begin + kAhead)).data(), kBlock * sizeof(float));
      for (std::size_t i = begin; i < end; ++i) encoded::store(out + 2 * i, bfloat16(values[i]).bits);
    }
    return 2 * values.size();
  }
  void check(EncodedBytes bytes, std::int64_t count) const override {
    encoded::expect_bytes("bf16", bytes, max_bytes(count), count);
  }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    const std::byte* from = bytes.data() + 2 * begin;
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = std::bit_cast<float>(std::uint32_t{encoded::load<std::uint16_t>(from + 2 * i)} << 16);
  }
  bool biased() const override { return false; }
  bool suits_weights() const override { return true; }
};

}  // namespace

std::unique_ptr<Codec> make_bf16_compression(const Options&) { return std::make_unique<Bf16>(); }

}  // namespace paceline
