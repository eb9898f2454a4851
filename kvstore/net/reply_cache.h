#pragma once
// What a process remembers of the requests that arrived, for each sender's incarnation. A repetition of an unanswered
// request is not delivered. The latest small answers are kept, so that a repetition after a lost answer costs no work.

#include <paceline/mutex.h>
#include <paceline/transport.h>

#include <deque>
#include <map>
#include <unordered_set>
#include <utility>

namespace paceline {

class ReplyCache {
 public:
  enum class Known { kNew, kOpen, kAnswered };

  // Looks a request up. A new request becomes open, that is, unanswered. Sets `answer` if the result is kAnswered.
  Known arrive(std::uint64_t sender, std::uint64_t request, Packet& answer);
  // Like arrive(), but a new request does not become open.
  Known look(std::uint64_t sender, std::uint64_t request, Packet& answer) const;
  // Records the answer to a request. Keeps small answers.
  void answered(std::uint64_t sender, std::uint64_t request, const Packet& answer);
  // Drops all entries of a sender that was lost, or that was refused when it asked to join.
  void forget(std::uint64_t sender);

 private:
  struct Sender {
    std::unordered_set<std::uint64_t> open;
    std::deque<std::pair<std::uint64_t, Packet>> recent;
  };

  mutable Mutex mutex_;
  std::map<std::uint64_t, Sender> senders_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline
