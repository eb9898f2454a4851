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
  // `momentum`: what a codec that takes it over gets from the optimizer.
  Compressor(const CompressionSetting& setting, Engine& engine, const Options& momentum = {});

  // The link moved `bytes` in `seconds`; the fastest of all counts.
  void saw_transfer(double bytes, double seconds);

  // The codec of this key's weights on their way to the worker; null: raw.
  const WireCodec* pull_codec(const KeyInfo& key) const;
  // Encodes each of `slices` (that have a begin and an end) of `gradient` (of the key's size, on the CPU) in one engine
  // task. Returns null where this key travels raw.
  template <class Slices>
  std::shared_ptr<const EncodedGradient> encode(const KeyInfo& key, const Slices& slices, const NDArray& gradient,
                                                int rank, int workers, int priority) {
    if (!encodes(key)) return nullptr;
    Ranges ranges;
    for (const auto& slice : slices) ranges.emplace_back(slice.begin, slice.end);
    return encode(key, std::move(ranges), gradient, rank, workers, priority);
  }

  // What a key sends that the codec does not encode, where that takes the optimizer's momentum: the same momentum, kept
  // here, too.
  NDArray with_momentum(const KeyInfo& key, const NDArray& gradient, int priority);

  // What is left to do of the push of a proposal, where the codec takes two rounds (two_round_push.h).
  bool two_rounds() const { return push_codec() && push_codec()->codec->two_rounds(); }
  const std::shared_ptr<const WireCodec>& push_codec() const { return choices_.back().push; }
  const std::vector<NDArray>& arrays_of(const std::string& key) const { return slots_.at(key).arrays; }

  // State arrays as "<key>/<slot>"; wait for them. load() takes those arrays that are its own out of `state`.
  NamedArrays state() const;
  void load(NamedArrays* state);
  void forget_state() { load(std::make_unique<NamedArrays>().get()); }
  // Goes on with the state of `other`, as far as the slots are the same.
  void take_state(Compressor& other);

  // Bytes of the gradients that were encoded.
  void add_to(StoreReport& report) const;
  // The same, as a line in the log.
  void log_figures() const;

 private:
  struct Slot {
    std::vector<NDArray> arrays;  // one per state name, in the key's shape
    NDArray pushes;               // one float64: how many there were
  };
  // What encoding takes, for each raw byte.
  struct Speed {
    double encode_seconds = 0, decode_seconds = 0, bytes = 0;
  };
  struct Figures {
    std::atomic<std::int64_t> raw{0}, encoded{0};
  };
  struct Velocity {
    NDArray velocity, update;
  };
  // The codecs of a rule; the last: of the keys that no rule names.
  struct Choice {
    std::shared_ptr<const WireCodec> push, pull;
    Speed push_speed, pull_speed;
    std::vector<std::string> names;  // of the state of `push`
  };
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  static Speed measure(const Codec& codec);
  bool encodes(const KeyInfo& key) const;  // its gradients
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
  double momentum_ = 0;  // that the codec takes
  bool nesterov_ = false;
  std::map<std::string, Velocity> velocities_;  // of keys that it does not encode
};

}  // namespace paceline
