#pragma once
// Requests to one process, sent by priority. Only a few megabytes are in flight at a time, as flow_window.h decides. A
// request of higher priority therefore never waits behind many earlier bytes.

#include <paceline/mutex.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <vector>

#include "node.h"
#include "send/flow_window.h"

namespace paceline {

class Outbox {
 public:
  // `message_bytes`: a fixed size of messages; 0: measured. `narrow`: see FlowWindow.
  Outbox(Node& node, PeerId server, std::size_t message_bytes = 0, bool narrow = false)
      : node_(node), server_(server), credit_(message_bytes, narrow) {}

  // Sends a request now, or when others were answered. Larger priorities go first. Requests of equal priority go in the
  // order given. `bytes` count against the bytes in flight. A request with `bytes` = 0 takes no room, whatever its
  // size, and overtakes requests that wait for room. If a request cannot be sent, for instance because it is
  // too large, `on_reply` gets the error. If submit() itself runs out of memory, it throws and does not call
  // `on_reply`. Thread-safe.
  void submit(int priority, std::size_t bytes, Message request, Node::ReplyHandler on_reply);
  // Would the server read this frame without a copy? See Transport::reads_in_place().
  bool reads_in_place(const void* data, std::size_t bytes) const { return node_.reads_in_place(server_, data, bytes); }
  // Fails the requests that were not sent. The outbox does not use the node afterwards.
  void close();

  // The bytes that may be in flight now, and the best size of one message.
  std::size_t window() const;
  std::size_t message_bytes() const;
  // Ends a step: everything submitted since the last call belongs to it.
  void end_step();

 private:
  // The part of a request that stays here until the request is answered, exactly once.
  struct Sent {
    FlowWindow::Ticket ticket;
    std::size_t bytes = 0;
    Node::ReplyHandler on_reply;
  };

  struct Entry {
    int priority = 0;
    std::uint64_t number = 0;
    Message request;
    std::shared_ptr<Sent> sent;  // made by submit(), because the thread that sends must not run out of memory
    // The heap's order: is this one to be sent after `other`?
    bool operator<(const Entry& other) const {
      if ((sent->bytes == 0) != (other.sent->bytes == 0)) return sent->bytes != 0;
      return priority != other.priority ? priority < other.priority : number > other.number;
    }
  };

  void pump();
  void send(Entry entry, bool closed);
  void answered(const std::shared_ptr<Sent>& sent, std::optional<Message> answer, std::exception_ptr error);

  Node& node_;
  const PeerId server_;
  mutable Mutex mutex_;
  CondVar idle_;
  std::vector<Entry> heap_ PACELINE_GUARDED_BY(mutex_);
  std::uint64_t submitted_ PACELINE_GUARDED_BY(mutex_) = 0;
  FlowWindow credit_ PACELINE_GUARDED_BY(mutex_);
  std::size_t under_way_ PACELINE_GUARDED_BY(mutex_) = 0;
  bool pumping_ PACELINE_GUARDED_BY(mutex_) = false;  // one thread sends, so that the order is kept
  bool closed_ PACELINE_GUARDED_BY(mutex_) = false;
};

}  // namespace paceline
