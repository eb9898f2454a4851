// A codec of one's own: a byte for each element of a gradient, in steps of a 127th of the largest. Error feedback adds
// what rounding loses to the next gradient. It is an object without registration. The servers need it too, so they run
// this program:
//   launch.py -n 2 -s 2 --every-role custom_codec
#include <paceline/compression.h>
#include <paceline/error.h>
#include <paceline/exit_code.h>
#include <paceline/kernel.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>

using namespace paceline;

class Bytes final : public Codec {
 public:
  std::size_t max_bytes(std::int64_t count) const override { return sizeof(float) + static_cast<std::size_t>(count); }

  std::size_t encode(std::span<const float> values, const EncodeContext&, std::span<float* const>,
                     std::byte* out) const override {
    float largest = 0;
    for (const float value : values) largest = std::max(largest, std::abs(value));
    const float step = largest / 127;
    std::memcpy(out, &step, sizeof step);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float steps = values[i] / step;  // no number where all are 0, or one is infinite
      out[sizeof step + i] = static_cast<std::byte>(std::isfinite(steps) ? std::lround(steps) : 0);
    }
    return sizeof step + values.size();
  }
  void check(EncodedBytes bytes, std::int64_t count) const override {
    if (bytes.size() != max_bytes(count)) throw Corrupt(str(bytes.size(), " bytes for ", count, " elements"));
  }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    float step = 0;
    std::memcpy(&step, bytes.data(), sizeof step);
    const std::byte* const from = bytes.data() + sizeof step + begin;
    for (std::size_t i = 0; i < out.size(); ++i) out[i] = step * static_cast<float>(static_cast<std::int8_t>(from[i]));
  }
};

int main(int, char** argv) {
  start_logging(argv[0]);
  try {
    StoreOptions options;
    options.own.codecs["bytes"] = std::make_shared<Bytes>();
    const auto kv = KVStore::create("dist_sync:compression=bytes", options);
    constexpr std::int64_t kCount = 1 << 16;
    std::vector<float> target(kCount);
    for (std::size_t i = 0; i < target.size(); ++i) target[i] = static_cast<float>(i % 7);
    const NDArray weight = NDArray::zeros({kCount}), wanted = NDArray::from<float>(target, {kCount});
    kv->init({{"weight", weight}});
    kv->set_optimizer(optim::SGD{.lr = 0.5});
    for (int step = 0; step < 40; ++step) {
      // The gradient of (weight - wanted)^2 / 2.
      const NDArray gradient = weight.clone();
      kernels::axpy(-1, wanted, gradient);
      kv->push_pull({{"weight", gradient}}, {{"weight", weight}});
      kv->step_end();
    }
    kv->barrier();
    double error = 0;
    const std::vector<float> result = weight.to_vector<float>();
    for (std::size_t i = 0; i < result.size(); ++i)
      error = std::max(error, static_cast<double>(std::abs(result[i] - target[i])));
    const StoreReport report = kv->report();
    if (kv->rank() == 0)
      std::printf("largest error %.3f, gradients sent as %.1f %% of their bytes\n", error,
                  100.0 * static_cast<double>(report.encoded_bytes) / static_cast<double>(report.raw_bytes));
    kv->finish();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "custom_codec: %s\n", error.what());
    return exit_code_of(error);
  }
}
