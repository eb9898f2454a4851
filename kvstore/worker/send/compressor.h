#pragma once
// The worker's half of compression: encodes gradients before they are pushed and keeps the codec's state.

#include <paceline/backend.h>
#include <paceline/ndarray.h>

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "send/compression_setting.h"
#include "send/transfer.h"

namespace paceline {

class Compressor {
 public:
  // `momentum`: the optimizer's options for a codec that takes over the momentum.
  Compressor(const CompressionSetting& setting, Engine& engine, const Options& momentum = {});

  // Records that the link moved `bytes` in `seconds`. The highest bandwidth so far counts as the link's, unless the
  // setting names one.
  void saw_transfer(double bytes, double seconds);

  // The codec of this key's pulled weights; null: raw.
  std::shared_ptr<const WireCodec> pull_codec(const KeyInfo& key) const;
  // Pushes one engine task that encodes all `slices` of `gradient`, each by itself. Slices have a begin and an end. The
  // gradient has the key's size, and is on the CPU. Returns null if this key travels raw.
  template <class Slices>
  std::shared_ptr<const EncodedGradient> encode(const KeyInfo& key, const Slices& slices, const NDArray& gradient,
                                                int rank, int workers, int priority) {
    if (!encodes(key)) return nullptr;
    Ranges ranges;
    for (const auto& slice : slices) ranges.emplace_back(slice.begin, slice.end);
    return encode(key, std::move(ranges), gradient, rank, workers, priority);
  }

  // For a key that travels raw, or whose own codec does not take over the momentum. If push_codec() takes over the
  // optimizer's momentum, applies it to the gradient. Otherwise, and for running statistics, returns the gradient.
  NDArray with_momentum(const KeyInfo& key, const NDArray& gradient, int priority);

  // The codec for the gradients of keys that no rule matches; null: raw.
  const std::shared_ptr<const WireCodec>& push_codec() const { return choices_.back().push; }
  // Does push_codec() take two rounds of messages for each push? See two_round_push.h.
  bool two_rounds() const { return push_codec() && push_codec()->codec->two_rounds(); }
  // The state arrays of a key's codec. The key must have been encoded before.
  const std::vector<NDArray>& arrays_of(const std::string& key) const { return slots_.at(key).arrays; }

  // State arrays as "<key>/<slot>". Wait for them before you read them. load() removes from `state` the arrays that it
  // has loaded.
  NamedArrays state() const;
  void load(NamedArrays* state);
  void forget_state() { load(std::make_unique<NamedArrays>().get()); }
  // Takes over each state array of `other` whose name the key's codec has here too. Also takes over the numbers of
  // pushes, the velocities, the bandwidth and the figures.
  void take_state(Compressor& other);

  // Adds to the report the bytes of the encoded gradients, before and after encoding.
  void add_to(StoreReport& report) const;
  // Logs the same numbers.
  void log_figures() const;

 private:
  struct Slot {
    std::vector<NDArray> arrays;  // one per state name, in the key's shape
    NDArray pushes;               // one float64: the number of pushes
  };
  // The cost of encoding, for each raw byte.
  struct Speed {
    double encode_seconds = 0, decode_seconds = 0, bytes = 0;
  };
  struct Figures {
    std::atomic<std::int64_t> raw{0}, encoded{0};
  };
  struct Velocity {
    NDArray velocity, update;
  };
  // The codecs of a rule. The last choice is for keys that no rule matches.
  struct Choice {
    std::shared_ptr<const WireCodec> push, pull;
    Speed push_speed, pull_speed;
    std::vector<std::string> names;  // names of the state of `push`
  };
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  static Speed measure(const Codec& codec);
  bool encodes(const KeyInfo& key) const;  // are the key's gradients encoded?
  std::shared_ptr<const EncodedGradient> encode(const KeyInfo& key, Ranges ranges, const NDArray& gradient, int rank,
                                                int workers, int priority);
  const Choice& choice_of(const std::string& key) const { return choices_[setting_.rule_of(key)]; }
  Slot& slot_of(const std::string& key, const Shape& shape);
  bool encodes(const KeyInfo& key, const Speed& speed) const;

  const CompressionSetting setting_;
  Engine& engine_;
  std::vector<Choice> choices_;
  double bandwidth_ = 0;  // 0: unknown
  std::map<std::string, Slot> slots_;
  std::shared_ptr<Figures> figures_ = std::make_shared<Figures>();
  double momentum_ = 0;  // the momentum that the codec takes over; 0: none
  bool nesterov_ = false;
  std::map<std::string, Velocity> velocities_;  // by key; only for keys to which with_momentum() applies momentum
};

}  // namespace paceline
