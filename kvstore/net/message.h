#pragma once
// Messages between processes. A message has a header of fixed size, a body that depends on its kind, and payload
// frames. The body is a Protocol Buffers message of one of the .proto files. Only kProbe and kResend have a number as
// text instead. The payload holds elements of arrays, raw or encoded. The top of message.cc shows the layout of the
// bytes.

#include <paceline/error.h>
#include <paceline/transport.h>

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

enum class MessageKind : std::uint8_t {
  kReply = 0,
  kRefusal = 1,
  // membership, answered by the scheduler's Node
  kJoin = 2,
  kHeartbeat = 3,
  kRoster = 4,
  kLeave = 5,
  kEnter = 6,
  // between Nodes: kProbe asks whether a request arrived. A peer that has answered the request repeats its answer. A
  // peer that has not answered yet sends kReceived. A peer that does not know the request sends kResend to get it.
  kProbe = 8,
  kReceived = 9,
  kResend = 10,
  // the store's control, answered by the scheduler
  kInit = 16,
  kBarrier = 17,
  kDataPart = 18,
  kDataBegin = 19,
  kDataCommit = 20,
  kDataTakeOver = 21,
  kSetOptimizer = 22,
  kDataCommitted = 23,
  kPutFact = 24,
  kGetFacts = 25,
  kPlaceTables = 26,
  kFillTable = 27,
  // the store, answered by servers
  kInitValues = 32,
  kPushPull = 33,
  kStepEnd = 34,
  kSetRules = 35,
  kReport = 36,
  kSave = 37,
  kLoad = 38,
  kAgree = 39,
  // row-sparse tables, answered by servers
  kDeclareTable = 48,
  kPushPullRows = 49,
  kSaveRows = 50,
  kLoadRows = 51,
  // mode ring, answered by workers
  kRingPush = 60,
  kRingResult = 61,
  kRingTell = 62,
  kRingAsk = 63,
  // mode gossip, answered by workers
  kGossipMeet = 70,
  kGossipTaken = 71,
  kGossipFetch = 72,
};

const char* name_of(MessageKind kind);  // "push_pull", for logs and errors
// Returns the number that stands for the job with this id in message headers.
std::uint64_t number_of_job(const std::string& id);

struct MessageHeader {
  MessageKind kind = MessageKind::kReply;
  std::uint64_t job = 0;          // number_of_job(); without an id: a random number, or 0 before the sender has joined
  std::uint64_t incarnation = 0;  // the sender's incarnation
  std::uint64_t request = 0;      // number of the request; its answer repeats the number
  std::uint64_t epoch = 0;        // epoch of the sender's roster
};

struct Message {
  MessageHeader header;
  std::string body;            // serialised Protocol Buffers message, or a number as text; may be empty
  std::vector<Frame> payload;  // elements of arrays, raw or encoded
};

// Thrown for a message in another format version, which another release of Paceline has sent.
class OtherFormat : public Corrupt {
 public:
  using Corrupt::Corrupt;
};

// Throws InvalidArgument on a body over 64 MiB.
Packet encode(const Message& message);
// Throws OtherFormat on another format version, Corrupt on anything else that encode() does not produce: wrong magic,
// unknown kind, a body over 64 MiB, sizes that do not add up. The payload frames of the packet are shared, not copied.
Message decode(const Packet& packet);

}  // namespace paceline
