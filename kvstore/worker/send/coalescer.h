#pragma once
// Sends small requests to one server, several in one message. While two messages are in flight, later requests gather.
// A request that is more urgent than all messages in flight is sent at once.

#include <paceline/mutex.h>

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "send/outbox.h"
#include "send/remote_slice.h"

namespace paceline {

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
