#pragma once
// The worker's half of compression: encodes gradients before they are pushed and keeps the codec's state.

#include <paceline/ndarray.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "compression_setting.h"
#include "exchange/transfer.h"

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

  // What a key that travels raw sends where the codec takes the optimizer's momentum: the same momentum, kept here, too.
  NDArray with_momentum(const RemoteKey& key, const NDArray& gradient, int priority);

  // What is left to do of the push of a proposal, where the codec takes two rounds (two_round_push.h).
  bool two_rounds() const { return push_ && push_->codec->two_rounds(); }
  const std::shared_ptr<const WireCodec>& push_codec() const { return push_; }
  const std::vector<NDArray>& arrays_of(const std::string& key) const { return slots_.at(key).arrays; }

  // State arrays as "<key>/<slot>"; wait for them. load() takes those arrays that are its own out of `state`.
  NamedArrays state() const;
  void load(NamedArrays* state);
  void forget_state() { load(std::make_unique<NamedArrays>().get()); }
  // Goes on with the state of `other`, as far as the slots are the same.
  void take_state(Compressor& other);

 private:
  struct Slot {
    std::vector<NDArray> arrays;  // one per state name, in the key's shape
    NDArray pushes;               // one float64: how many there were
  };
  // What encoding takes, for each raw byte.
  struct Speed {
    double encode_seconds = 0, decode_seconds = 0, bytes = 0;
  };
  struct Velocity {
    NDArray velocity, update;
  };
  using Ranges = std::vector<std::pair<std::int64_t, std::int64_t>>;
  static Speed measure(const Codec& codec);
  bool encodes(const KeyInfo& key) const;  // its gradients
  std::shared_ptr<const EncodedGradient> encode(const KeyInfo& key, Ranges ranges, const NDArray& gradient, int rank,
                                                int workers, int priority);
  Slot& slot_of(const std::string& key, const Shape& shape);
  bool encodes(const KeyInfo& key, const Speed& speed) const;

  const CompressionSetting setting_;
  Engine& engine_;
  std::shared_ptr<const WireCodec> push_, pull_;
  Speed push_speed_, pull_speed_;
  double bandwidth_ = 0;            // 0: unknown
  std::vector<std::string> names_;  // of the codec's state
  std::map<std::string, Slot> slots_;
  double momentum_ = 0;  // that the codec takes
  bool nesterov_ = false;
  std::map<std::string, Velocity> velocities_;  // of keys that travel raw
};

}  // namespace paceline
