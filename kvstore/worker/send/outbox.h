#pragma once
// Requests to one server, sent by priority. Few megabytes are under way at a time, so that a request of higher priority
// never waits behind much that was handed over before it: as many as flow_window.h finds good for this server.

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
  // `message_bytes`: what is best in one message, whatever is measured; 0: as measured. `narrow`: see FlowWindow.
  Outbox(Node& node, PeerId server, std::size_t message_bytes = 0, bool narrow = false)
      : node_(node), server_(server), credit_(message_bytes, narrow) {}

  // Sends now or when others were answered; larger priorities first, equal ones in the order given. `bytes` count
  // against what may be under way; requests of 0 bytes, whatever they carry, pass others that need room. What cannot
  // be sent, for want of memory or because it is too large, is answered with the error. Thread-safe.
  void submit(int priority, std::size_t bytes, Message request, Node::ReplyHandler on_reply);
  // The server would read this frame where it lies (Transport::reads_in_place).
  bool reads_in_place(const void* data, std::size_t bytes) const { return node_.reads_in_place(server_, data, bytes); }
  // Fails what was not sent; no use of the node begins afterwards.
  void close();

  // What may be under way now, and what of it is best in one message.
  std::size_t window() const;
  std::size_t message_bytes() const;
  // What was submitted since the last call is a step's.
  void end_step();

 private:
  struct Entry {
    int priority = 0;
    std::uint64_t number = 0;
    std::size_t bytes = 0;
    Message request;
    Node::ReplyHandler on_reply;
    // The heap's order: is this one to be sent after `other`?
    bool operator<(const Entry& other) const {
      if ((bytes == 0) != (other.bytes == 0)) return bytes != 0;
      return priority != other.priority ? priority < other.priority : number > other.number;
    }
  };

  // A request under way: answered once, whatever happens.
  struct Sent {
    FlowWindow::Ticket ticket;
    std::size_t bytes = 0;
    Node::ReplyHandler on_reply;
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
