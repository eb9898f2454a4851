// Encoded gradients of a peer, and what our encoders write.

#include <paceline/compression.h>

#include <bit>
#include <vector>

#include "fuzz.h"

namespace paceline::fuzz {
namespace {

std::vector<std::uint32_t> decoded(const Codec& codec, EncodedBytes bytes, std::int64_t count, std::int64_t piece) {
  std::vector<float> values(static_cast<std::size_t>(count));
  for (std::int64_t begin = 0; begin < count; begin += piece) {
    const auto length = static_cast<std::size_t>(std::min(piece, count - begin));
    codec.decode(bytes, count, begin, std::span(values).subspan(static_cast<std::size_t>(begin), length));
  }
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

// What encode() writes of these values must pass check().
void check_encoder(const Codec& codec, std::string_view bytes, const EncodeContext& context) {
  std::vector<float> values(bytes.size() / sizeof(float));
  if (!values.empty()) std::memcpy(values.data(), bytes.data(), values.size() * sizeof(float));
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<std::vector<float>> states(codec.state_names().size(), std::vector<float>(values.size()));
  std::vector<float*> state;
  for (auto& array : states) state.push_back(array.data());
  std::vector<std::byte> out(codec.max_bytes(count));
  const std::size_t written = codec.encode(values, context, state, out.data());
  expect(written <= out.size(), "the encoder wrote ", written, " bytes into ", out.size());
  codec.check({out.data(), written}, count);
}

}  // namespace

// The codec, the number of elements and whether they are encoded or decoded; then the bytes.
void codec(std::string_view input) {
  Cutter cut(input);
  const auto& known = compression_catalog().entries();
  const auto choice = cut.number<std::uint8_t>();
  const auto entry = std::next(known.begin(), static_cast<std::ptrdiff_t>(choice / 2 % known.size()));
  const auto codec = make_codec({entry->first, {}});
  const std::int64_t count = cut.number<std::uint16_t>() % 4096;
  const std::int64_t columns = cut.number<std::uint8_t>() % 16;
  if (!codec) return;
  if (choice % 2 == 0)
    return check_encoder(*codec, cut.rest(),
                         {.slice = 1, .push = count, .worker = 0, .workers = 2, .columns = columns});
  // A copy without spare bytes, so that the sanitizer sees reads behind the end.
  const std::vector<std::byte> bytes(reinterpret_cast<const std::byte*>(cut.rest().data()),
                                     reinterpret_cast<const std::byte*>(cut.rest().data()) + cut.rest().size());
  const bool good = parsed<Corrupt>([&] {
                      codec->check(bytes, count);
                      return true;
                    }).has_value();
  if (good)
    expect(decoded(*codec, bytes, count, count) == decoded(*codec, bytes, count, 7), "pieces differ from the whole");
}

}  // namespace paceline::fuzz
