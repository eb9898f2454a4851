#pragma once
// The scheduler's book of processes: who has joined, who is silent, who has left. It decides, Node carries the
// messages.
//
// Ranks: once every process has arrived, those of a role are numbered in the order of the launcher's task numbers;
// those without one follow in the order of arrival. Later a worker may take the place of a lost one, with a new
// incarnation.

#include <paceline/mutex.h>

#include <string>
#include <utility>
#include <vector>

#include "roster.h"

namespace paceline {

class Membership {
 public:
  // `address`: where the scheduler listens. `job`: what every message carries from the start on.
  Membership(const ClusterConfig& config, std::uint64_t incarnation, std::uint64_t job, const std::string& address);

  // Functions that say so return true when the roster has changed.

  // A process asks for its place: answered now, at the start, or refused.
  bool join(const Request& request, LinkId link);  // throws what to refuse it with
  // A sign of life; `sender` is an incarnation, `epoch` the roster it knows. False: it is not, or no longer, of this
  // job, and `why` says it.
  bool heard(std::uint64_t sender, LinkId link, std::uint64_t epoch, std::string& why);
  // True when the roster has changed.
  bool leave(std::uint64_t sender);
  // The process that the launcher started as `task` has failed; `how` ends the sentence that begins with its name. Who
  // has taken its place since is another process.
  bool ended(Role role, int task, const std::string& how);
  // It takes part in the rounds of mode ring; to say it again makes a new roster, too.
  bool enter(std::uint64_t sender);
  // `seconds` of silence more for everybody not heard. True when the roster has changed.
  bool tick(double seconds);
  // Refuses whoever still waits for the start.
  void give_up(const std::exception& reason);

  bool started() const;
  // "waiting for 1 of 2 workers; joined: server at hostA; the scheduler listens at 10.0.0.4:9091"; empty once started.
  std::string waiting() const;
  RosterNotice notice() const;
  // Where to send what everybody must know.
  std::vector<LinkId> links() const;
  // Every live process knows the newest roster.
  bool everybody_knows() const;
  bool everybody_left() const;

 private:
  struct Member {
    Peer peer;                      // no rank before the start
    std::uint64_t provisional = 0;  // incarnation before the start
    int task = -1;
    std::int64_t pid = 0;
    LinkId link = 0;
    double silent = 0;
    double waited = 0;
    std::uint64_t knows = 0;  // epoch
    bool returned = false;    // in the place of a lost one
    std::string lost;         // not empty: how
    Request request;          // to join
  };

  int wanted(Role role) const;
  std::size_t count(Role role) const PACELINE_REQUIRES(mutex_);
  bool start_if_complete() PACELINE_REQUIRES(mutex_);
  void answer(Member& member) PACELINE_REQUIRES(mutex_);
  bool place(Member& late) PACELINE_REQUIRES(mutex_);
  bool place_late() PACELINE_REQUIRES(mutex_);
  void lose(Member& member, const std::string& how) PACELINE_REQUIRES(mutex_);
  void changed() PACELINE_REQUIRES(mutex_);
  Member* find(std::uint64_t sender) PACELINE_REQUIRES(mutex_);
  RosterNotice notice_locked() const PACELINE_REQUIRES(mutex_);
  std::string waiting_locked() const PACELINE_REQUIRES(mutex_);

  const ClusterConfig config_;
  const std::uint64_t job_;
  const Peer self_;

  mutable Mutex mutex_;
  std::vector<Member> members_ PACELINE_GUARDED_BY(mutex_);
  std::vector<Member> late_ PACELINE_GUARDED_BY(mutex_);
  std::vector<std::pair<std::uint64_t, std::string>> gone_
      PACELINE_GUARDED_BY(mutex_);  // replaced incarnations, and who they were
  std::uint64_t last_incarnation_ PACELINE_GUARDED_BY(mutex_);
  std::uint64_t epoch_ PACELINE_GUARDED_BY(mutex_) = 0;  // 0: not started
  bool over_ PACELINE_GUARDED_BY(mutex_) = false;
  std::string failure_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline
