// Sends the elements of largest magnitude with their places. `ratio` is their share of all elements.
#include "compression/sparse_values.h"

namespace paceline {
namespace {

class TopK final : public Codec {
 public:
  explicit TopK(double ratio) : ratio_(ratio) {}

  std::size_t max_bytes(std::int64_t count) const override {
    return sparse_values::bytes_of(encoded::share_of(ratio_, count));
  }
  std::size_t encode(std::span<const float> values, const EncodeContext&, std::span<float* const>,
                     std::byte* out) const override {
    const std::int64_t kept = encoded::share_of(ratio_, static_cast<std::int64_t>(values.size()));
    return sparse_values::write_largest(values, kept, out);
  }
  void check(EncodedBytes bytes, std::int64_t count) const override { sparse_values::check("top_k", bytes, count); }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    sparse_values::decode(bytes, begin, out);
  }

 private:
  const double ratio_;
};

}  // namespace

std::unique_ptr<Codec> make_top_k_compression(const Options& options) {
  return std::make_unique<TopK>(encoded::parse_ratio(options, 0.01));
}

}  // namespace paceline
