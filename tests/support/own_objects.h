#pragma once
// A mode of each kind, a staleness policy and a codec that the library does not have. The suites of conformance run
// them beside the library's.

#include <paceline/compression.h>
#include <paceline/error.h>
#include <paceline/extensions.h>
#include <paceline/mode.h>
#include <paceline/staleness.h>

#include <algorithm>
#include <cstring>

namespace paceline::test {

// Asynchronous: nobody computes more than a step ahead of the slowest.
struct Near final : Mode {
  ModeTraits traits() const override { return {.applies = Applies::kAtOnce}; }
  bool may_pull(const Progress& progress) const override { return progress.mine - progress.slowest <= 1; }
};

// Rounds as those of dist_sync.
struct Together final : Mode {
  ModeTraits traits() const override { return {.applies = Applies::kInRounds, .lockstep = true}; }
  bool round_complete(const Round& round) const override { return round.contributed >= round.expected; }
};

// A round closes without the last worker. "More than half" would not do: it lacks one of three workers, but none of
// two. When one of three has entered a barrier, each of the others could be late at another server, and both would
// wait.
struct AllButOne final : Mode {
  ModeTraits traits() const override { return {.applies = Applies::kWithBackups, .holds_tables = false}; }
  bool round_complete(const Round& round) const override {
    return round.contributed >= std::max(1, round.expected - 1);
  }
};

// Halves a late gradient, and adds a trace of the late ones before it.
class Traced final : public Staleness {
 public:
  std::vector<std::string> state_names() const override { return {"trace"}; }
  bool corrects(const StaleContext& context) const override { return context.delay > 0; }
  void correct(const Tile<float>& tile, const StaleContext& context) const override { run(tile, context); }
  void correct(const Tile<double>& tile, const StaleContext& context) const override { run(tile, context); }

 private:
  template <class T>
  static void run(const Tile<T>& tile, const StaleContext& context) {
    if (context.delay == 0) return;
    T* const trace = tile.state[0];
    for (std::int64_t i = 0; i < tile.count; ++i) {
      tile.gradient[i] = tile.gradient[i] / 2 + trace[i] / 8;
      trace[i] = tile.gradient[i];
    }
  }
};

// The upper three bytes of each float: cut, not rounded, and so biased.
class ThreeBytes final : public Codec {
 public:
  std::size_t max_bytes(std::int64_t count) const override { return 3 * static_cast<std::size_t>(count); }
  std::size_t encode(std::span<const float> values, const EncodeContext&, std::span<float* const>,
                     std::byte* out) const override {
    for (std::size_t i = 0; i < values.size(); ++i)
      std::memcpy(out + 3 * i, reinterpret_cast<const std::byte*>(&values[i]) + 1, 3);
    return 3 * values.size();
  }
  void check(EncodedBytes bytes, std::int64_t count) const override {
    if (bytes.size() != max_bytes(count)) throw Corrupt(str(bytes.size(), " bytes for ", count, " elements"));
  }
  void decode(EncodedBytes bytes, std::int64_t, std::int64_t begin, std::span<float> out) const override {
    const std::byte* const from = bytes.data() + 3 * begin;
    for (std::size_t i = 0; i < out.size(); ++i) {
      out[i] = 0;
      std::memcpy(reinterpret_cast<std::byte*>(&out[i]) + 1, from + 3 * i, 3);
    }
  }
};

inline Extensions own_objects() {
  return {.modes = {{"near", std::make_shared<Near>()},
                    {"together", std::make_shared<Together>()},
                    {"all_but_one", std::make_shared<AllButOne>()}},
          .policies = {{"traced", std::make_shared<Traced>()}},
          .codecs = {{"three_bytes", std::make_shared<ThreeBytes>()}}};
}

}  // namespace paceline::test
