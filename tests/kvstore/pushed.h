#pragma once
// One push of a codec, in memory.

#include <paceline/compression.h>

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

namespace paceline::test {

inline std::shared_ptr<const Codec> codec_of(const std::string& text) { return make_codec(Spec::parse(text)); }

inline std::vector<float> gaussian(std::int64_t count, unsigned seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

struct Pushed {
  std::vector<std::byte> bytes;
  std::vector<float> decoded;
};

// Encodes, checks, decodes; `state` is made where it is empty.
inline Pushed push(const Codec& codec, const std::vector<float>& values,
                   std::vector<std::vector<float>>* state = nullptr, const EncodeContext& context = {}) {
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::vector<float>> own(codec.state_names().size(), std::vector<float>(values.size()));
  if (state && state->empty()) *state = own;
  std::vector<float*> pointers;
  for (auto& array : state ? *state : own) pointers.push_back(array.data());
  Pushed pushed{std::vector<std::byte>(codec.max_bytes(count)), std::vector<float>(values.size())};
  pushed.bytes.resize(codec.encode(values, context, pointers, pushed.bytes.data()));
  codec.check(pushed.bytes, count);
  codec.decode(pushed.bytes, count, 0, pushed.decoded);
  return pushed;
}

}  // namespace paceline::test
