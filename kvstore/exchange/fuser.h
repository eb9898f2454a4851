#pragma once
// Small requests to one server, several to a message: while one is under way the next ones gather.

#include <paceline/mutex.h>

#include <cstddef>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "exchange/outbox.h"
#include "payload.h"
#include "store.pb.h"

namespace paceline {

struct SmallRequest {
  int priority = 0;
  std::size_t pushed_bytes = 0;
  wire::PushPullRequest body;  // without codecs
  std::vector<Frame> payload;
  int pulled = 0;  // slices; the answer holds so many versions and runs for this request
  // Its versions begin at `first` of the answer and `payload` stands at its runs; or why there is no answer.
  std::function<void(const wire::PushPullReply* answer, int first, PayloadReader* payload, std::exception_ptr error)>
      on_answer;
};

class Fuser {
 public:
  static constexpr std::size_t kSmall = std::size_t{16} << 10;  // bytes, of what is pushed and pulled together

  explicit Fuser(Outbox& outbox) : outbox_(outbox) {}
  // An answer comes when the server has answered all that went with it: only for requests that wait for nobody.
  // Thread-safe.
  void submit(SmallRequest request);

 private:
  using Group = std::vector<SmallRequest>;

  static bool fit(const SmallRequest& a, const SmallRequest& b);
  // What is to be sent next; empty where that is nothing.
  Group take() REQUIRES(mutex_);
  void send(Group group);
  void on_answer(const Group& group, const std::optional<Message>& answer, std::exception_ptr error);

  Outbox& outbox_;
  Mutex mutex_;
  std::map<int, std::deque<SmallRequest>, std::greater<>> waiting_ GUARDED_BY(mutex_);  // by priority
  int under_way_ GUARDED_BY(mutex_) = 0;
};

}  // namespace paceline
