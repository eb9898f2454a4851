#pragma once
// The requests that arrived at one process: which are still unanswered, so that a repetition is not delivered twice,
// and the last small answers, so that a repetition after a lost answer costs no work. Kept per asking incarnation.

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

  // Where `request` of `sender` stands; kNew makes it open. kAnswered sets `answer`.
  Known arrive(std::uint64_t sender, std::uint64_t request, Packet& answer);
  // The same without opening it.
  Known look(std::uint64_t sender, std::uint64_t request, Packet& answer) const;
  void answered(std::uint64_t sender, std::uint64_t request, const Packet& answer);
  // A sender that is lost: nothing of it will come again.
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
