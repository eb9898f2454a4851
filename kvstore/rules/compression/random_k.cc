// Sends a random share `ratio` of the elements. The places of these elements follow from a seed, so no places are sent.
// The seed is sent in front, and is the same at every worker for the same push of a slice. Each block of elements gets
// its share of the places, so that any range can be decoded alone.
#include <paceline/random.h>

#include <numeric>

#include "compression/encoded.h"

namespace paceline {
namespace {

constexpr std::int64_t kBlock = 1024;
constexpr std::size_t kHeader = 12;  // seed: u64, number of sent elements: u32

// The places of one block whose values are sent, in the order of the values.
class Places {
 public:
  Places(std::uint64_t seed, std::int64_t kept, std::int64_t count, std::int64_t begin) : first_(kept * begin / count) {
    const std::int64_t length = std::min(kBlock, count - begin);
    size_ = static_cast<std::size_t>(kept * (begin + length) / count - first_);
    std::iota(places_.begin(), places_.begin() + length, std::uint16_t{0});
    const std::uint64_t block = static_cast<std::uint64_t>(begin / kBlock);
    RandomBits bits{};
    for (std::size_t i = 0; i < size_; ++i) {
      if (i % 4 == 0) bits = random_bits(seed, i / 4, block);
      const std::uint64_t left = static_cast<std::uint64_t>(length) - i;
      std::swap(places_[i], places_[i + static_cast<std::size_t>((bits.word[i % 4] * left) >> 32)]);
    }
  }
  std::int64_t first() const { return first_; }  // index of the block's first value among all sent values
  std::size_t size() const { return size_; }
  std::int64_t operator[](std::size_t i) const { return places_[i]; }

 private:
  std::array<std::uint16_t, kBlock> places_;
  std::int64_t first_;
  std::size_t size_;
};

class RandomK final : public Codec {
 public:
  explicit RandomK(double ratio) : ratio_(ratio) {}

  std::size_t max_bytes(std::int64_t count) const override {
    return kHeader + 4 * static_cast<std::size_t>(encoded::share_of(ratio_, count));
  }

  std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const>,
                     std::byte* out) const override {
    const auto count = static_cast<std::int64_t>(values.size());
    const std::uint64_t seed = encoded::mix(context.slice, static_cast<std::uint64_t>(context.push));
    const std::int64_t kept = encoded::share_of(ratio_, count);
    encoded::store(out, seed);
    encoded::store(out + 8, static_cast<std::uint32_t>(kept));
    std::byte* to = out + kHeader;
    for (std::int64_t begin = 0; begin < count; begin += kBlock) {
      const Places places(seed, kept, count, begin);
      for (std::size_t i = 0; i < places.size(); ++i, to += 4)
        encoded::store(to, values[static_cast<std::size_t>(begin + places[i])]);
    }
    return max_bytes(count);
  }

  void check(EncodedBytes bytes, std::int64_t count) const override {
    encoded::expect_bytes("random_k", bytes, max_bytes(count), count);
    if (encoded::load<std::uint32_t>(bytes.data() + 8) != encoded::share_of(ratio_, count))
      throw Corrupt("a gradient encoded as random_k with another ratio");
  }

  void decode(EncodedBytes bytes, std::int64_t count, std::int64_t begin, std::span<float> out) const override {
    std::fill(out.begin(), out.end(), 0.0f);
    const auto seed = encoded::load<std::uint64_t>(bytes.data());
    const std::int64_t kept = encoded::load<std::uint32_t>(bytes.data() + 8);
    const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
    for (std::int64_t block = begin / kBlock * kBlock; block < end; block += kBlock) {
      const Places places(seed, kept, count, block);
      for (std::size_t i = 0; i < places.size(); ++i) {
        const std::int64_t place = block + places[i];
        if (place < begin || place >= end) continue;
        const auto value = kHeader + 4 * static_cast<std::size_t>(places.first() + static_cast<std::int64_t>(i));
        out[static_cast<std::size_t>(place - begin)] = encoded::load<float>(bytes.data() + value);
      }
    }
  }

 private:
  const double ratio_;
};

}  // namespace

std::unique_ptr<Codec> make_random_k_compression(const Options& options) {
  return std::make_unique<RandomK>(encoded::parse_ratio(options, 0.01));
}

}  // namespace paceline
