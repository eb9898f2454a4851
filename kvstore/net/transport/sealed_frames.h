#pragma once
// Functions of the sealed transport (sealed.cc) that announce large frames, and seal and open their pieces.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/sealed_sessions.h"

namespace paceline::sealed {

// Make control messages. All except control_of() carry the number and round of the session. `key` is the key with which
// the sender of the message seals. The second socket listens at `port`, and admits the other side by `token`.
Control control_of(Control::Kind kind);
Control control_about(const Session& session, Control::Kind kind);
Control hello_of(const Session& session, const std::string& key);
Control answer_of(const Session& session, const std::string& key, const std::string& token, int port);
// Does `control` belong to the present round of the session?
bool is_current(const Session& session, const Control& control);
Frame frame_of(const Control& control);

// The identity of the session's peer at the second socket. It differs in each round.
std::string bulk_identity(const Session& session);

// Reads a little-endian number.
std::uint64_t number_at(const std::byte* at);
// The head of a piece.
std::string head_of(std::uint64_t session, std::uint64_t number);
// Returns a piece: its head, ciphertext and tag.
Frame seal_piece(Buffers& buffers, const SealingKey& key, std::uint64_t session, std::uint64_t number,
                 const std::byte* data, std::size_t bytes);
// Writes the plaintext of a piece to its place. False if it is not the piece that belongs there.
[[nodiscard]] bool open_piece(const SealingKey& key, std::uint64_t session, std::uint64_t number, const Frame& piece,
                              const Place& place);
// Was the piece sealed with this key, session and number? Its place need not be known.
bool is_genuine(const SealingKey& key, std::uint64_t session, std::uint64_t number, const Frame& piece);

// Allocates the memory of an announced packet, and lists the places of its pieces in `places`. Returns an empty text,
// or what the sender did wrong, as the end of the sentence "it sent ...".
std::string lay_out(const Control& control, Packet packet, std::int64_t max_frame_bytes,
                    const std::shared_ptr<Arriving>& arriving, std::vector<Place>& places);

}  // namespace paceline::sealed
