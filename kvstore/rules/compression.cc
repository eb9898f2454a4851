#include <paceline/compression.h>
#include <paceline/tile.h>

#include <algorithm>
#include <array>

#include "own_objects.h"

namespace paceline {
namespace {

class ErrorFeedback final : public Codec {
 public:
  explicit ErrorFeedback(std::shared_ptr<const Codec> codec) : codec_(std::move(codec)) {}

  std::size_t max_bytes(std::int64_t count) const override { return codec_->max_bytes(count); }

  std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const> state,
                     std::byte* out) const override {
    float* const residual = state.front();
    const auto count = static_cast<std::int64_t>(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) residual[i] += values[i];
    const std::size_t bytes = codec_->encode({residual, values.size()}, context, state.subspan(1), out);
    std::array<float, static_cast<std::size_t>(Tile<float>::kElements)> sent;
    for (std::int64_t begin = 0; begin < count; begin += Tile<float>::kElements) {
      const auto length = static_cast<std::size_t>(std::min(Tile<float>::kElements, count - begin));
      codec_->decode({out, bytes}, count, begin, {sent.data(), length});
      float* const kept = residual + begin;
      for (std::size_t i = 0; i < length; ++i) {
        const float left = kept[i] - sent[i];
        // A NaN or an infinity is sent once, and does not stay in the residual.
        kept[i] = left - left == 0 ? left : 0;
      }
    }
    return bytes;
  }

  void check(EncodedBytes bytes, std::int64_t count) const override { codec_->check(bytes, count); }
  void decode(EncodedBytes bytes, std::int64_t count, std::int64_t begin, std::span<float> out) const override {
    codec_->decode(bytes, count, begin, out);
  }
  std::vector<std::string> state_names() const override {
    std::vector<std::string> names = codec_->state_names();
    names.insert(names.begin(), "residual");
    return names;
  }
  bool biased() const override { return false; }
  bool suits_weights() const override { return codec_->suits_weights(); }
  bool votes() const override { return codec_->votes(); }
  bool takes_momentum() const override { return codec_->takes_momentum(); }
  Options in_lockstep() const override { return codec_->in_lockstep(); }
  bool by_rows() const override { return codec_->by_rows(); }

 private:
  const std::shared_ptr<const Codec> codec_;
};

}  // namespace

std::unique_ptr<Codec> with_error_feedback(std::shared_ptr<const Codec> codec) {
  return std::make_unique<ErrorFeedback>(std::move(codec));
}

std::shared_ptr<const Codec> make_codec(const Spec& spec, const Extensions& own) {
  std::shared_ptr<const Codec> codec = make_object(own.codecs, compression_catalog(), spec.name, spec.options);
  const bool feedback = codec && spec.options.get("error_feedback", codec->biased());
  spec.options.reject_unknown("compression '" + spec.name + "'");
  require(!feedback || codec->biased() || codec->suits_weights(), "compression '", spec.text(),
          "' needs no error feedback, or has its own: leave out error_feedback=1");
  if (feedback) codec = with_error_feedback(std::move(codec));
  return codec;
}

bool worth_compressing(const CompressionCost& cost, double link_bytes_per_second) {
  return cost.encode_seconds + cost.decode_seconds < (cost.raw_bytes - cost.encoded_bytes) / link_bytes_per_second;
}

}  // namespace paceline
