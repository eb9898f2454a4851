// packet := head payload*                      one frame each
// head   := magic:u32 "PCL\x01"  format:u8 (2)  kind:u8  reserved:u16 (0)
//           job:u64  incarnation:u64  request:u64  epoch:u64
//           body_bytes:u32  payload_count:u32  payload_bytes:u64
//           seal:16 bytes (always 0; reserved for authentication)
//           body:body_bytes
// All numbers are little-endian. payload_bytes is the sum over the payload frames.

#include "message.h"

#include <paceline/error.h>

#include <algorithm>
#include <cstring>

namespace paceline {
namespace {

constexpr std::uint32_t kMagic = 0x014c4350;
constexpr std::uint8_t kFormat = 2;
constexpr std::size_t kSealBytes = 16;
constexpr std::size_t kHeadBytes = 8 + 4 * 8 + 4 + 4 + 8 + kSealBytes;
constexpr std::size_t kMaxBody = std::size_t{64} << 20;

class Writer {
 public:
  explicit Writer(std::byte* at) : at_(at) {}
  template <class T>
  void put(T value) {
    for (std::size_t i = 0; i < sizeof(T); ++i) *at_++ = static_cast<std::byte>(value >> (8 * i) & 0xff);
  }
  void put_bytes(const void* data, std::size_t size) {
    if (size > 0) std::memcpy(at_, data, size);
    at_ += size;
  }
  void put_zeros(std::size_t size) { at_ = std::fill_n(at_, size, std::byte{0}); }

 private:
  std::byte* at_;
};

class Reader {
 public:
  explicit Reader(const std::byte* at) : at_(at) {}
  template <class T>
  T get() {
    T value = 0;
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(*at_++) << (8 * i));
    return value;
  }
  bool zeros(std::size_t size) {
    const std::byte* begin = at_;
    at_ += size;
    return std::all_of(begin, at_, [](std::byte b) { return b == std::byte{0}; });
  }
  const std::byte* at() const { return at_; }

 private:
  const std::byte* at_;
};

const char* known_name(MessageKind kind) {
  switch (kind) {
    case MessageKind::kReply: return "reply";
    case MessageKind::kRefusal: return "refusal";
    case MessageKind::kJoin: return "join";
    case MessageKind::kHeartbeat: return "heartbeat";
    case MessageKind::kRoster: return "roster";
    case MessageKind::kLeave: return "leave";
    case MessageKind::kEnter: return "enter";
    case MessageKind::kProbe: return "probe";
    case MessageKind::kReceived: return "received";
    case MessageKind::kResend: return "resend";
    case MessageKind::kInit: return "init";
    case MessageKind::kBarrier: return "barrier";
    case MessageKind::kDataPart: return "data_part";
    case MessageKind::kDataBegin: return "data_begin";
    case MessageKind::kDataCommit: return "data_commit";
    case MessageKind::kDataTakeOver: return "data_take_over";
    case MessageKind::kSetOptimizer: return "set_optimizer";
    case MessageKind::kDataCommitted: return "data_committed";
    case MessageKind::kPutFact: return "put_fact";
    case MessageKind::kGetFacts: return "get_facts";
    case MessageKind::kPlaceTables: return "place_tables";
    case MessageKind::kFillTable: return "fill_table";
    case MessageKind::kInitValues: return "init_values";
    case MessageKind::kPushPull: return "push_pull";
    case MessageKind::kStepEnd: return "step_end";
    case MessageKind::kSetRules: return "set_rules";
    case MessageKind::kReport: return "report";
    case MessageKind::kSave: return "save";
    case MessageKind::kLoad: return "load";
    case MessageKind::kAgree: return "agree";
    case MessageKind::kDeclareTable: return "declare_table";
    case MessageKind::kPushPullRows: return "push_pull_rows";
    case MessageKind::kSaveRows: return "save_rows";
    case MessageKind::kLoadRows: return "load_rows";
    case MessageKind::kRingPush: return "ring_push";
    case MessageKind::kRingResult: return "ring_result";
    case MessageKind::kRingTell: return "ring_tell";
    case MessageKind::kRingAsk: return "ring_ask";
    case MessageKind::kGossipMeet: return "gossip_meet";
    case MessageKind::kGossipTaken: return "gossip_taken";
    case MessageKind::kGossipFetch: return "gossip_fetch";
  }
  return nullptr;
}

}  // namespace

const char* name_of(MessageKind kind) {
  const char* name = known_name(kind);
  return name ? name : "unknown";
}

std::uint64_t number_of_job(const std::string& id) {
  std::uint64_t hash = 14695981039346656037u;  // FNV-1a
  for (const char c : id) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

Packet encode(const Message& message) {
  require(message.body.size() <= kMaxBody, "[message] the body of a ", name_of(message.header.kind), " has ",
          message.body.size(), " bytes; at most ", kMaxBody, " can be sent");
  const std::size_t size = kHeadBytes + message.body.size();
  const std::shared_ptr<std::byte[]> bytes(new std::byte[size]);
  std::uint64_t payload_bytes = 0;
  for (const Frame& frame : message.payload) payload_bytes += frame.size;

  Writer writer(bytes.get());
  writer.put<std::uint32_t>(kMagic);
  writer.put<std::uint8_t>(kFormat);
  writer.put<std::uint8_t>(static_cast<std::uint8_t>(message.header.kind));
  writer.put<std::uint16_t>(0);
  writer.put<std::uint64_t>(message.header.job);
  writer.put<std::uint64_t>(message.header.incarnation);
  writer.put<std::uint64_t>(message.header.request);
  writer.put<std::uint64_t>(message.header.epoch);
  writer.put<std::uint32_t>(static_cast<std::uint32_t>(message.body.size()));
  writer.put<std::uint32_t>(static_cast<std::uint32_t>(message.payload.size()));
  writer.put<std::uint64_t>(payload_bytes);
  writer.put_zeros(kSealBytes);
  writer.put_bytes(message.body.data(), message.body.size());

  Packet packet;
  packet.reserve(1 + message.payload.size());
  packet.push_back({bytes, bytes.get(), size});
  packet.insert(packet.end(), message.payload.begin(), message.payload.end());
  return packet;
}

Message decode(const Packet& packet) {
  if (packet.empty() || packet[0].size < kHeadBytes)
    throw Corrupt(
        str("[message] the head has ", packet.empty() ? 0 : packet[0].size, " bytes, expected at least ", kHeadBytes));
  Reader reader(packet[0].data);
  if (reader.get<std::uint32_t>() != kMagic) throw Corrupt("[message] it does not begin with Paceline's magic number");
  const int format = reader.get<std::uint8_t>();
  if (format != kFormat)
    throw OtherFormat(str("[message] it has format version ", format, "; this build speaks version ", int{kFormat},
                          ": use the same release everywhere"));

  Message message;
  const int kind = reader.get<std::uint8_t>();
  message.header.kind = static_cast<MessageKind>(kind);
  if (!known_name(message.header.kind)) throw Corrupt(str("[message] kind ", kind, " is unknown"));
  if (reader.get<std::uint16_t>() != 0) throw Corrupt("[message] reserved bytes are not zero");
  message.header.job = reader.get<std::uint64_t>();
  message.header.incarnation = reader.get<std::uint64_t>();
  message.header.request = reader.get<std::uint64_t>();
  message.header.epoch = reader.get<std::uint64_t>();
  const std::uint64_t body_bytes = reader.get<std::uint32_t>();
  const std::uint64_t payload_count = reader.get<std::uint32_t>();
  const std::uint64_t payload_bytes = reader.get<std::uint64_t>();
  if (!reader.zeros(kSealBytes)) throw Corrupt("[message] it carries a seal, which this build cannot open");

  if (body_bytes > kMaxBody || packet[0].size != kHeadBytes + body_bytes)
    throw Corrupt(str("[message] a body of ", body_bytes, " bytes in a head of ", packet[0].size, " bytes"));
  if (payload_count != packet.size() - 1)
    throw Corrupt(str("[message] ", packet.size() - 1, " payload frames where the head says ", payload_count));
  std::uint64_t found = 0;
  for (std::size_t i = 1; i < packet.size(); ++i) found += packet[i].size;
  if (found != payload_bytes)
    throw Corrupt(str("[message] ", found, " payload bytes where the head says ", payload_bytes));

  message.body.assign(reinterpret_cast<const char*>(reader.at()), body_bytes);
  message.payload.assign(packet.begin() + 1, packet.end());
  return message;
}

}  // namespace paceline
