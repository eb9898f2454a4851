#pragma once
// Large frames of the sealed transport: how they are announced, and their pieces.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/sealed_sessions.h"

namespace paceline::sealed {

Control control_of(Control::Kind kind);
Control control_about(const Session& session, Control::Kind kind);
// `key`: that the sender of the word seals with. `token`, `port`: by which the second socket admits the other side.
Control hello_of(const Session& session, const std::string& key);
Control answer_of(const Session& session, const std::string& key, const std::string& token, int port);
// Is it about the present round of the session?
bool is_current(const Session& session, const Control& control);
Frame frame_of(const Control& control);

// By which the second socket knows who connected to it.
std::string bulk_identity(const Session& session);

std::uint64_t number_at(const std::byte* at);
// What a piece begins with.
std::string head_of(std::uint64_t session, std::uint64_t number);
Frame seal_piece(Buffers& buffers, const SealingKey& key, std::uint64_t session, std::uint64_t number,
                 const std::byte* data, std::size_t bytes);
// False: it is not the piece that belongs there.
[[nodiscard]] bool open_piece(const SealingKey& key, std::uint64_t session, std::uint64_t number, const Frame& piece,
                              const Place& place);
// Was it sealed with this key, wherever it belongs?
bool is_genuine(const SealingKey& key, std::uint64_t session, std::uint64_t number, const Frame& piece);

// Prepares the memory of an announced packet and finds the places of its pieces. Returns what the sender did wrong, as
// the end of the sentence "it sent ...", or an empty text.
std::string lay_out(const Control& control, Packet packet, std::int64_t max_frame_bytes,
                    const std::shared_ptr<Arriving>& arriving, std::vector<Place>& places);

}  // namespace paceline::sealed
