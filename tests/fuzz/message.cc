#include "message.h"

#include "fuzz.h"

namespace paceline::fuzz {
namespace {

// Without spare bytes, so that the sanitizer sees reads behind the end.
Frame frame_of(std::string_view bytes) { return Frame::copy_of(bytes.data(), bytes.size()); }

}  // namespace

// The number of payload frames, for each its size and bytes, then the head.
void message(std::string_view input) {
  constexpr int kMostFrames = 8;
  Cutter cut(input);
  std::vector<Frame> payload;
  for (int left = cut.number<std::uint8_t>() % kMostFrames; left > 0; --left) payload.push_back(frame_of(cut.text()));
  Packet packet{frame_of(cut.rest())};
  packet.insert(packet.end(), payload.begin(), payload.end());

  const auto read = within(4096 + 2 * input.size(), [&] { return parsed<Corrupt>([&] { return decode(packet); }); });
  if (!read) return;
  const Packet again = encode(*read);
  expect(again.size() == packet.size(), again.size(), " frames instead of ", packet.size());
  for (std::size_t i = 0; i < packet.size(); ++i)
    expect(again[i].size == packet[i].size && std::memcmp(again[i].data, packet[i].data, packet[i].size) == 0, "frame ",
           i, " has other bytes");
}

}  // namespace paceline::fuzz
