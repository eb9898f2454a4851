// Deep gradient compression (Lin et al. 2018). The worker keeps the optimizer's momentum u, and the sum v of the
// momentum that it has not sent. It sends the largest elements of v, and sets u and v to 0 at the places of these
// elements (masking). The share of elements that it sends is a quarter at first. It falls by a factor of four every
// `warmup` pushes, down to `ratio`. `clip_norm` limits the norm of a slice's gradient to clip_norm / sqrt(workers).
#include "compression/sparse_values.h"

namespace paceline {
namespace {

class Dgc final : public Codec {
 public:
  explicit Dgc(const Options& options)
      : ratio_(encoded::parse_ratio(options, 0.001)),
        warmup_(options.get("warmup", std::int64_t{100})),
        clip_norm_(options.get("clip_norm", 0.0)),
        momentum_(options.get("momentum", 0.0f)),
        nesterov_(options.get("nesterov", false)) {
    require(warmup_ >= 0, "warmup is ", warmup_, ", expected at least 0 pushes");
    require(clip_norm_ >= 0, "clip_norm is ", clip_norm_, ", expected at least 0");
    require(momentum_ >= 0 && momentum_ < 1, "momentum is ", momentum_, ", expected at least 0, less than 1");
  }

  std::size_t max_bytes(std::int64_t count) const override {
    return sparse_values::bytes_of(encoded::share_of(warmup_ > 0 ? std::max(ratio_, kFirst) : ratio_, count));
  }

  std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const> state,
                     std::byte* out) const override {
    float* const unsent = state[0];
    float* const velocity = state[1];
    const float scale = clipped(values, context.workers);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float gradient = values[i] * scale;
      velocity[i] = nesterov_ ? momentum_ * (velocity[i] + gradient) : momentum_ * velocity[i] + gradient;
      unsent[i] += nesterov_ ? velocity[i] + gradient : velocity[i];
    }
    const std::int64_t kept = encoded::share_of(ratio_at(context.push), static_cast<std::int64_t>(values.size()));
    const std::size_t bytes = sparse_values::write_largest({unsent, values.size()}, kept, out);
    sparse_values::for_each_index({out, bytes}, [&](std::uint32_t index) { unsent[index] = velocity[index] = 0; });
    return bytes;
  }

  void check(EncodedBytes bytes, std::int64_t count) const override { sparse_values::check("dgc", bytes, count); }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    sparse_values::decode(bytes, begin, out);
  }
  std::vector<std::string> state_names() const override { return {"residual", "velocity"}; }
  bool biased() const override { return false; }
  bool takes_momentum() const override { return true; }

 private:
  static constexpr double kFirst = 0.25;

  double ratio_at(std::int64_t push) const {
    if (warmup_ == 0) return ratio_;
    const auto stage = static_cast<double>(std::min<std::int64_t>(push / warmup_, 100));
    return std::max(ratio_, kFirst * std::pow(kFirst, stage));
  }

  float clipped(std::span<const float> values, int workers) const {
    if (clip_norm_ == 0) return 1;
    const double norm = std::sqrt(
        encoded::sum_of(values, [](float value) { return static_cast<double>(value) * static_cast<double>(value); }));
    const double bound = clip_norm_ / std::sqrt(static_cast<double>(workers));
    return norm > bound ? static_cast<float>(bound / norm) : 1;
  }

  const double ratio_;
  const std::int64_t warmup_;
  const double clip_norm_;
  const float momentum_;
  const bool nesterov_;
};

}  // namespace

std::unique_ptr<Codec> make_dgc_compression(const Options& options) { return std::make_unique<Dgc>(options); }

}  // namespace paceline
