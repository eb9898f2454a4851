#pragma once
// The way of a request to one process. A Coalescer puts several small requests into one message. An Outbox sends
// messages by priority. A FlowWindow says how large a message is best, and how many bytes may be in flight.

#include <paceline/mutex.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "node.h"
#include "send/remote_slice.h"

namespace paceline {

// The size and number of messages in flight on a link, from measurements. A pipeline of sending, applying and answering
// is fastest with messages of s* = sqrt(latency x bandwidth x bytes of a step / 2). Three of them may be in flight to
// one server. This keeps the link and the server busy, and a request of higher priority waits behind few others. At
// least the bytes that the link carries in 20 ms or in two round trips, whichever is more, may be in flight, because a
// busy machine answers late. The limit is 16 MiB.
class FlowWindow {
 public:
  using Time = std::chrono::steady_clock::time_point;
  // Issued when a request is sent, and passed back when it is answered.
  struct Ticket {
    Time sent;
    Time since;  // the last answer before the request was sent; `sent` if none has come since the start or idle()
    double answered_before = 0;
  };

  // `narrow`: messages are answered at once, and should stay in the caches on their way. Then only as many are in
  // flight as keep the link busy.
  explicit FlowWindow(std::size_t message_bytes = 0, bool narrow = false)
      : fixed_message_(message_bytes), narrow_(narrow) {}

  // Records that `bytes` wait to be sent.
  void submitted(std::size_t bytes) { burst_ += static_cast<double>(bytes); }
  Ticket sent(Time now) const { return {now, last_answer_ == Time() ? now : last_answer_, answered_}; }
  void answered(const Ticket& ticket, std::size_t bytes, Time now);
  // Call it when nothing is in flight, and nothing waits.
  void idle();
  // Ends a step: everything submitted since the last call belongs to it. A worker that is never idle needs this call.
  void step_over();

  // The best size of a message. If the constructor got a size, it is that size. Otherwise it is s*, between 256 KiB and
  // 4 MiB, or 1 MiB until the bandwidth is known.
  std::size_t message_bytes() const;
  // The number of bytes that may be in flight.
  std::size_t bytes() const;
  // The latency in one direction. An assumed value until a small request was answered.
  double latency_seconds() const { return latency_; }
  // The bandwidth; 0 until a large request was answered.
  double bytes_per_second() const;

 private:
  std::size_t fixed_message_;  // 0: measured
  bool narrow_;
  double burst_ = 0, last_burst_ = 0;  // bytes of this step, and of the last step
  double answered_ = 0;
  Time last_answer_;  // unset after idle(), until the next answer
  double latency_ = 100e-6;
  bool latency_known_ = false;
  double fastest_ = 0, fastest_before_ = 0;  // bandwidth: the largest of the latest samples, and of the samples before
  int samples_ = 0;
};

// Requests to one process, sent by priority. Only a few megabytes are in flight at a time, as the FlowWindow decides. A
// request of higher priority therefore never waits behind many earlier bytes.
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

struct SmallRun {
  RemoteSlice* slice = nullptr;
  bool push = false, pull = false;
  const std::byte* gradient = nullptr;  // may be null if the array is empty
  std::byte* out = nullptr;
  std::size_t bytes = 0;
  std::uint64_t need = 0;
};

// A caller that makes small requests. It holds the arrays that the runs of the requests point to.
class SmallCaller {
 public:
  // Called when a request of this caller is answered: the weights are in place, or there is an error.
  virtual void on_answered(std::uint64_t waited_microseconds, const std::exception_ptr& error) = 0;

 protected:
  ~SmallCaller() = default;
};

struct SmallRequest {
  int priority = 0;
  std::int64_t examples = 0;
  std::uint64_t round = 0;
  std::vector<SmallRun> runs;
  std::shared_ptr<SmallCaller> caller;
};

// Sends small requests to one server, several in one message. While two messages are in flight, later requests gather.
// A request that is more urgent than all messages in flight is sent at once.
class Coalescer {
 public:
  static constexpr std::size_t kSmall = std::size_t{16} << 10;  // bytes of push and pull together

  explicit Coalescer(Outbox& outbox) : outbox_(outbox) {}
  // Submits a request. The request is answered when the server has answered the whole message that contains it. Submit
  // only requests that the server answers at once. Two unanswered requests may not name the same slice. Thread-safe.
  void submit(SmallRequest request);

 private:
  struct Group {
    std::vector<SmallRequest> requests;
    std::vector<SmallRun> runs;  // runs of all requests, in the order of the message
  };

  static bool fit(const SmallRequest& a, const SmallRequest& b);
  // Takes the requests to send next. Returns none if no message should be sent now.
  std::vector<SmallRequest> take() PACELINE_REQUIRES(mutex_);
  void send(std::vector<SmallRequest> requests);
  Message message_for(Group& group) const;
  void answered(const Group& group, int priority, const std::optional<Message>& answer, std::exception_ptr error);
  static std::uint64_t take_answer(const Group& group, const Message& answer);

  Outbox& outbox_;
  Mutex mutex_;
  std::map<int, std::deque<SmallRequest>, std::greater<>> waiting_ PACELINE_GUARDED_BY(mutex_);  // by priority
  std::multiset<int> under_way_ PACELINE_GUARDED_BY(mutex_);  // priorities of the messages in flight
};

}  // namespace paceline
