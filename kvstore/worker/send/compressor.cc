#include "send/compressor.h"

#include <paceline/error.h>
#include <paceline/kernel.h>
#include <paceline/log.h>
#include <paceline/random.h>
#include <paceline/updater.h>

#include <algorithm>
#include <array>
#include <chrono>

namespace paceline {
namespace {

constexpr const char* kPushes = "pushes";
constexpr const char* kVelocity = "raw_velocity";

// Applies momentum as the optimizer would (MomentumRule).
template <class T>
void accumulate(T momentum, bool nesterov, std::int64_t count, const T* gradient, T* velocity, T* update) {
  for (std::int64_t i = 0; i < count; ++i) {
    velocity[i] = momentum * velocity[i] + gradient[i];
    update[i] = nesterov ? gradient[i] + momentum * velocity[i] : velocity[i];
  }
}

std::shared_ptr<const WireCodec> wire_codec(const CompressionSetting& setting, const Spec& spec, const Options& more) {
  Spec whole = spec;
  for (const char* key : {"momentum", "nesterov"})
    if (more.has(key) && !spec.options.has(key)) whole.options.set(key, more.get(key, ""));
  auto codec = setting.make(whole);
  if (!codec) return nullptr;
  return std::make_shared<WireCodec>(WireCodec{spec.text(), std::move(codec)});
}

}  // namespace

Compressor::Compressor(const CompressionSetting& setting, Engine& engine, const Options& momentum)
    : setting_(setting), engine_(engine), bandwidth_(setting.bandwidth) {
  for (std::size_t rule = 0; rule <= setting.rules.size(); ++rule) {
    const KeyCodecs& codecs = setting.codecs(rule);
    Choice& choice = choices_.emplace_back();
    choice.push = wire_codec(setting, codecs.push, rule == setting.rules.size() ? momentum : Options());
    choice.pull = wire_codec(setting, codecs.pull, {});
    if (choice.push) choice.names = choice.push->codec->state_names();
    if (setting.measured && choice.push) choice.push_speed = measure(*choice.push->codec);
    if (setting.measured && choice.pull) choice.pull_speed = measure(*choice.pull->codec);
  }
  if (push_codec() && push_codec()->codec->takes_momentum()) {
    const Options& own = setting.push.options;
    momentum_ = (own.has("momentum") ? own : momentum).get("momentum", 0.0);
    nesterov_ = (own.has("nesterov") ? own : momentum).get("nesterov", false);
  }
}

Compressor::Speed Compressor::measure(const Codec& codec) {
  constexpr std::int64_t kCount = 1 << 18;
  std::vector<float> values(kCount);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = random_uniform(1, i) - 0.5f;
  std::vector<std::vector<float>> arrays(codec.state_names().size(), std::vector<float>(values.size()));
  std::vector<float*> state;
  for (auto& array : arrays) state.push_back(array.data());
  std::vector<std::byte> out(codec.max_bytes(kCount));
  std::vector<float> decoded(values.size());
  // Measures a late push, because a codec with a warm-up sends more in its first pushes. Measures a matrix, because
  // some codecs do not shorten a vector.
  constexpr std::int64_t kPush = 1 << 20, kColumns = 512;
  const auto now = [] { return std::chrono::steady_clock::now(); };
  const auto per_byte = [](auto from, auto to) {
    return std::chrono::duration<double>(to - from).count() / (sizeof(float) * kCount);
  };
  Speed best{1, 1, 0};
  for (int round = 0; round < 3; ++round) {
    const auto start = now();
    const std::size_t bytes = codec.encode(values, {.push = kPush + round, .columns = kColumns}, state, out.data());
    const auto middle = now();
    codec.decode({out.data(), bytes}, kCount, 0, decoded);
    best.encode_seconds = std::min(best.encode_seconds, per_byte(start, middle));
    best.decode_seconds = std::min(best.decode_seconds, per_byte(middle, now()));
    best.bytes = static_cast<double>(bytes) / (sizeof(float) * kCount);
  }
  return best;
}

void Compressor::saw_transfer(double bytes, double seconds) {
  if (setting_.bandwidth == 0) bandwidth_ = std::max(bandwidth_, bytes / seconds);
}

bool Compressor::encodes(const KeyInfo& key, const Speed& speed) const {
  if (!setting_.covers(key)) return false;
  if (!setting_.measured || bandwidth_ == 0) return true;
  const auto bytes = static_cast<double>(key.bytes());
  return worth_compressing({bytes, bytes * speed.bytes, bytes * speed.encode_seconds, bytes * speed.decode_seconds},
                           bandwidth_);
}

std::shared_ptr<const WireCodec> Compressor::pull_codec(const KeyInfo& key) const {
  const Choice& choice = choice_of(key.name);
  return choice.pull && encodes(key, choice.pull_speed) ? choice.pull : nullptr;
}

Compressor::Slot& Compressor::slot_of(const std::string& key, const Shape& shape) {
  Slot& slot = slots_[key];
  slot.arrays.resize(choice_of(key).names.size());
  for (NDArray& array : slot.arrays) {
    if (array.is_none()) array = NDArray::zeros(shape, DType::kFloat32, {}, engine_);
    require(array.size() == shape.size(), "the compression's state of key '", key, "' is ", array.describe(),
            ", but the key has shape ", shape.text());
  }
  if (slot.pushes.is_none()) slot.pushes = NDArray::zeros({1}, DType::kFloat64, {}, engine_);
  return slot;
}

bool Compressor::encodes(const KeyInfo& key) const {
  // A key that was encoded once stays encoded, because only encoding delivers what is in its state.
  const Choice& choice = choice_of(key.name);
  return choice.push && (slots_.count(key.name) > 0 || encodes(key, choice.push_speed));
}

std::shared_ptr<const EncodedGradient> Compressor::encode(const KeyInfo& key, Ranges ranges, const NDArray& gradient,
                                                          int rank, int workers, int priority) {
  const auto encoded = std::make_shared<EncodedGradient>();
  encoded->codec = choice_of(key.name).push;
  encoded->slices.resize(ranges.size());
  std::size_t most = 0;
  for (std::size_t s = 0; s < ranges.size(); ++s) {
    encoded->slices[s].offset = most;
    most += (encoded->codec->codec->max_bytes(ranges[s].second - ranges[s].first) + 7) / 8 * 8;
  }
  encoded->bytes = NDArray(Shape{static_cast<std::int64_t>(most)}, DType::kUint8, {}, engine_);

  Slot& slot = slot_of(key.name, key.shape);
  // The task changes the state in place, and does not name it as read. If a gradient has failed, the state stays as it
  // is, and the next gradient goes on from there.
  std::vector<NDArray> outputs = slot.arrays;
  outputs.push_back(slot.pushes);
  outputs.push_back(encoded->bytes);
  EncodeContext context;
  context.slice = hash_key(key.name);
  context.worker = rank;
  context.workers = workers;
  if (key.shape.ndim() > 1) context.columns = key.shape.size() / key.shape[0];
  const bool plain = encoded->codec->codec->takes_momentum();
  launch_host(
      "store.encode", std::array{plain ? gradient : with_momentum(key, gradient, priority)}, outputs,
      [encoded, context, figures = figures_, ranges = std::move(ranges)](
          const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out) {
        const std::size_t states = out.size() - 2;
        double* pushes = out[states].as<double>();
        EncodeContext own = context;
        own.push = static_cast<std::int64_t>(*pushes);
        for (std::size_t s = 0; s < ranges.size(); ++s) {
          const auto [begin, end] = ranges[s];
          std::vector<float*> state;
          for (std::size_t i = 0; i < states; ++i) state.push_back(out[i].as<float>() + begin);
          own.slice = context.slice + static_cast<std::uint64_t>(begin);
          EncodedGradient::Slice& slice = encoded->slices[s];
          slice.bytes =
              encoded->codec->codec->encode({in[0].as<float>() + begin, static_cast<std::size_t>(end - begin)}, own,
                                            state, out.back().as<std::byte>() + slice.offset);
          if (slice.bytes == 0 && end > begin)  // in messages, 0 bytes stand for a slice that is not encoded
            throw Error("the codec '" + encoded->codec->text + "' has written 0 bytes; it must write one at least");
          figures->raw += (end - begin) * static_cast<std::int64_t>(sizeof(float));
          figures->encoded += static_cast<std::int64_t>(slice.bytes);
        }
        *pushes += 1;
      },
      {.priority = priority});
  return encoded;
}

NDArray Compressor::with_momentum(const KeyInfo& key, const NDArray& gradient, int priority) {
  if (momentum_ == 0 || key.average) return gradient;
  Velocity& slot = velocities_[key.name];
  if (slot.velocity.is_none()) slot.velocity = NDArray::zeros(key.shape, key.dtype, {}, engine_);
  if (slot.update.is_none()) slot.update = NDArray(key.shape, key.dtype, {}, engine_);
  require(slot.velocity.size() == gradient.size() && slot.velocity.dtype() == gradient.dtype(), "the velocity of key '",
          key.name, "' is ", slot.velocity.describe(), ", but the key is ", key.describe());
  // As in encode(), the task does not name the state as read. Here the state is the velocity.
  launch_host("store.momentum", std::array{gradient}, std::array{slot.velocity, slot.update},
              [momentum = momentum_, nesterov = nesterov_](const KernelContext&, std::span<const Tensor> in,
                                                           std::span<const Tensor> out) {
                if (in[0].dtype == DType::kFloat32)
                  accumulate(static_cast<float>(momentum), nesterov, in[0].size(), in[0].as<float>(),
                             out[0].as<float>(), out[1].as<float>());
                else
                  accumulate(momentum, nesterov, in[0].size(), in[0].as<double>(), out[0].as<double>(),
                             out[1].as<double>());
              },
              {.priority = priority});
  return slot.update;
}

NamedArrays Compressor::state() const {
  NamedArrays arrays;
  for (const auto& [key, slot] : velocities_) arrays.emplace_back(key + "/" + kVelocity, slot.velocity);
  for (const auto& [key, slot] : slots_) {
    const std::vector<std::string>& names = choice_of(key).names;
    // A checkpoint of another codec may have brought only some of the arrays.
    for (std::size_t i = 0; i < std::min(names.size(), slot.arrays.size()); ++i)
      if (!slot.arrays[i].is_none()) arrays.emplace_back(key + "/" + names[i], slot.arrays[i]);
    arrays.emplace_back(key + "/" + kPushes, slot.pushes);
  }
  return arrays;
}

void Compressor::load(NamedArrays* state) {
  slots_.clear();
  velocities_.clear();
  const auto expect = [](const std::string& name, bool fits, const NDArray& array) {
    require(fits, "the compression's state '", name, "' cannot be ", array.describe());
  };
  std::erase_if(*state, [this, &expect](const auto& entry) {
    const auto& [name, array] = entry;
    const std::size_t mark = name.rfind('/');
    if (mark == std::string::npos) return false;
    const std::string key = name.substr(0, mark), kind = name.substr(mark + 1);
    const std::vector<std::string>& names = choice_of(key).names;
    const auto found = std::find(names.begin(), names.end(), kind);
    if (kind == kVelocity) {
      velocities_[key].velocity = array.clone();
    } else if (kind == kPushes) {
      expect(name, array.dtype() == DType::kFloat64 && array.size() == 1, array);
      slots_[key].pushes = array.clone();
    } else if (found != names.end()) {
      expect(name, array.dtype() == DType::kFloat32, array);
      slots_[key].arrays.resize(names.size());
      slots_[key].arrays[static_cast<std::size_t>(found - names.begin())] = array.clone();
    } else {
      return false;
    }
    return true;
  });
}

void Compressor::add_to(StoreReport& report) const {
  report.raw_bytes += figures_->raw;
  report.encoded_bytes += figures_->encoded;
}

void Compressor::log_figures() const {
  const auto raw = static_cast<double>(figures_->raw), encoded = static_cast<double>(figures_->encoded);
  if (raw > 0)
    LOG(INFO) << "compression: " << raw / 1e6 << " MB of gradients went as " << encoded / 1e6 << " MB, "
              << 100 * encoded / raw << " %";
}

void Compressor::take_state(Compressor& other) {
  figures_ = other.figures_;
  bandwidth_ = other.bandwidth_;
  velocities_ = std::move(other.velocities_);
  // Takes the arrays themselves. An array that carries the error of a failed gradient cannot be copied.
  for (const auto& [key, theirs] : other.slots_) {
    Slot& slot = slots_[key];
    slot.pushes = theirs.pushes;
    const std::vector<std::string>& names = choice_of(key).names;
    const std::vector<std::string>& before = other.choice_of(key).names;
    slot.arrays.resize(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto found = std::ranges::find(before, names[i]) - before.begin();
      if (static_cast<std::size_t>(found) < theirs.arrays.size())
        slot.arrays[i] = theirs.arrays[static_cast<std::size_t>(found)];
    }
  }
}

}  // namespace paceline
