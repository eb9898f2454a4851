#include "transport/sealed_frames.h"

#include <paceline/detail/host_memory.h>
#include <paceline/error.h>

#include <algorithm>
#include <utility>

namespace paceline::sealed {
namespace {

std::shared_ptr<std::byte[]> memory_for(std::size_t bytes) {
  try {
    return detail::allocate_host(bytes);
  } catch (const OutOfMemory&) {
    return nullptr;
  }
}

}  // namespace

Control control_of(Control::Kind kind) {
  Control control;
  control.set_kind(kind);
  return control;
}

Control control_about(const Session& session, Control::Kind kind) {
  Control control = control_of(kind);
  control.set_session(session.number);
  control.set_round(session.round);
  return control;
}

Control hello_of(const Session& session, const std::string& key) {
  Control hello = control_about(session, Control::HELLO);
  hello.set_key(key);
  return hello;
}

Control answer_of(const Session& session, const std::string& key, const std::string& token, int port) {
  Control answer = control_about(session, Control::ANSWER);
  answer.set_key(key);
  answer.set_token(token);
  answer.set_port(static_cast<std::uint32_t>(port));
  return answer;
}

bool is_current(const Session& session, const Control& control) {
  return session.number == control.session() && session.round == control.round();
}

Frame frame_of(const Control& control) {
  return Frame::of(std::string(kMagic, kMagicBytes) + control.SerializeAsString());
}

std::string bulk_identity(const Session& session) { return str(session.number, ".", session.round); }

std::uint64_t number_at(const std::byte* at) {
  std::uint64_t number = 0;
  for (std::size_t i = 0; i < sizeof(number); ++i) number |= std::to_integer<std::uint64_t>(at[i]) << (8 * i);
  return number;
}

std::string head_of(std::uint64_t session, std::uint64_t number) {
  std::string head(kHeadBytes, '\0');
  for (std::size_t i = 0; i < 8; ++i) {
    head[i] = static_cast<char>(session >> (8 * i));
    head[8 + i] = static_cast<char>(number >> (8 * i));
  }
  return head;
}

Frame seal_piece(Buffers& buffers, const SealingKey& key, std::uint64_t session, std::uint64_t number,
                 const std::byte* data, std::size_t bytes) {
  const std::string head = head_of(session, number);
  const std::shared_ptr<std::byte[]> buffer = buffers.take(head.size() + bytes + kTagBytes);
  std::copy_n(reinterpret_cast<const std::byte*>(head.data()), head.size(), buffer.get());
  key.seal(number, head, data, bytes, buffer.get() + head.size());
  return {buffer, buffer.get(), head.size() + bytes + kTagBytes};
}

bool open_piece(const SealingKey& key, std::uint64_t session, std::uint64_t number, const Frame& piece,
                const Place& place) {
  return piece.size == kHeadBytes + place.bytes + kTagBytes &&
         key.open(number, head_of(session, number), piece.data + kHeadBytes, place.bytes, place.to);
}

bool is_genuine(const SealingKey& key, std::uint64_t session, std::uint64_t number, const Frame& piece) {
  if (piece.size < kHeadBytes + kTagBytes) return false;
  std::vector<std::byte> opened(piece.size - kHeadBytes - kTagBytes);
  return open_piece(key, session, number, piece, {nullptr, opened.data(), opened.size()});
}

std::string lay_out(const Control& control, Packet packet, std::int64_t max_frame_bytes,
                    const std::shared_ptr<Arriving>& arriving, std::vector<Place>& places) {
  std::size_t next = 1;
  for (const Control::Frame& frame : control.frames()) {
    if (!frame.sealed()) {
      if (next >= packet.size()) return "fewer frames than it announced";
      arriving->packet.push_back(std::move(packet[next++]));
      continue;
    }
    const std::size_t size = frame.bytes();
    if (size == 0 || size > static_cast<std::size_t>(max_frame_bytes)) return str("a frame of ", size, " bytes");
    const std::shared_ptr<std::byte[]> memory = memory_for(size);
    if (!memory) return str("a frame of ", size, " bytes, for which there is no memory");
    for (std::size_t at = 0; at < size; at += kPieceBytes)
      places.push_back({arriving, memory.get() + at, std::min(kPieceBytes, size - at)});
    arriving->packet.push_back({memory, memory.get(), size});
  }
  if (next != packet.size() || places.empty()) return "other frames than it announced";
  arriving->missing = places.size();
  return {};
}

}  // namespace paceline::sealed
