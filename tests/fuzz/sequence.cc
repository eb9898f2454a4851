#include "sequence.h"

#include "fuzz.h"

namespace paceline::fuzz {
namespace {

constexpr std::size_t kMostFrames = 4;

template <class T>
void append(std::string& bytes, T number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

}  // namespace

Sequence read_sequence(std::string_view input) {
  Cutter cut(input);
  Sequence sequence;
  sequence.setup = cut.number<std::uint8_t>();
  while (!cut.empty() && sequence.messages.size() < kMostSent) {
    Sent sent;
    for (std::uint8_t* const field : {&sent.to, &sent.from, &sent.kind, &sent.epoch, &sent.request})
      *field = cut.number<std::uint8_t>();
    for (std::size_t left = cut.number<std::uint8_t>() % (kMostFrames + 1); left > 0; --left)
      sent.frames.push_back(cut.number<std::uint16_t>());
    sent.body = cut.long_text();
    sequence.messages.push_back(std::move(sent));
  }
  return sequence;
}

std::string write_sequence(const Sequence& sequence) {
  std::string bytes;
  append(bytes, sequence.setup);
  for (const Sent& sent : sequence.messages) {
    for (const std::uint8_t field : {sent.to, sent.from, sent.kind, sent.epoch, sent.request}) append(bytes, field);
    append(bytes, static_cast<std::uint8_t>(sent.frames.size()));
    for (const std::uint16_t size : sent.frames) append(bytes, size);
    append(bytes, static_cast<std::uint16_t>(sent.body.size()));
    bytes += sent.body;
  }
  return bytes;
}

}  // namespace paceline::fuzz
