#pragma once
// The scheduler's list of processes: which have joined, are silent or have left. Membership decides, and Node carries
// the messages.
//
// When every process has arrived, each gets a rank within its role. Ranks follow the launcher's task numbers. Processes
// without a task number come last, in the order of arrival. Later a worker may take the rank of a lost worker, with a
// new incarnation.

#include <paceline/mutex.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "roster.h"

namespace paceline {

// Marks the number that identifies a process until the scheduler gives it an incarnation.
constexpr std::uint64_t kProvisionalIncarnation = std::uint64_t{1} << 63;

class Membership {
 public:
  // `address`: where the scheduler listens. `job`: the number that every message of the job carries. `key`: the
  // scheduler's public key, if it has one.
  Membership(const ClusterConfig& config, std::uint64_t incarnation, std::uint64_t job, const std::string& address,
             const std::string& key = {});

  // join(), leave(), ended(), enter() and tick() return true when the roster has changed.

  // A process asks to join. The request is answered now, or when the job starts, or when a place becomes free. Throws
  // the error to refuse the request with. `key`: the public key of the link, if it has one.
  bool join(const Request& request, LinkId link, const std::string& key = {});
  // A heartbeat came from the process with the incarnation `sender`, which knows the roster of `epoch`. False: the
  // process does not belong to this job, or no longer, and `why` gives the reason.
  bool heard(std::uint64_t sender, LinkId link, std::uint64_t epoch, const proto::Heartbeat& activity,
             std::string& why);
  // Has the process with this incarnation a place in the job?
  bool is_member(std::uint64_t sender) const;
  // The process ends in good order.
  bool leave(std::uint64_t sender);
  // The process that the launcher started as `task` has failed. `how` completes a sentence, such as "was ended by
  // signal 9". A process that has taken its place since is not affected. Before the start, the job fails.
  bool ended(Role role, int task, const std::string& how);
  // The worker takes part in the rounds of mode ring. A repeated call makes a new roster too.
  bool enter(std::uint64_t sender);
  // Adds `seconds` to the silence of every process, and declares processes lost that are silent for too long.
  bool tick(double seconds);
  // Before the start: refuses every process that waits for it, and those that ask for a place later. Returns false if the
  // job has started.
  bool give_up(const std::exception_ptr& reason);

  bool started() const;
  // Why the job cannot start; empty if it still can, or has.
  std::string start_failure() const;
  // Before the start: "waiting for 1 of 2 workers (task 1); joined: server at hostA (process 7); the scheduler listens
  // at 10.0.0.4:9091". Later: "everybody waits for worker 1 at hostB, ..."; empty where nobody holds the others up.
  std::string waiting() const;
  // What has changed in the roster since the epoch `since`.
  RosterNotice notice(std::uint64_t since = 0) const;
  // The incarnations of all live processes, and their links.
  std::vector<std::pair<std::uint64_t, LinkId>> speakers() const;
  // Links to all live processes, each with the epoch of the newest roster that was sent to it. Counts the present one
  // as sent.
  std::vector<std::pair<LinkId, std::uint64_t>> untold();
  // True if every live process has the newest roster.
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
    std::uint64_t knows = 0;    // epoch of its newest roster
    std::uint64_t told = 0;     // epoch of the newest roster that was sent to it
    std::uint64_t changed = 0;  // epoch in which `peer` changed
    proto::Heartbeat activity;
    double still = 0;       // seconds without a step, a request or an answer
    bool returned = false;  // took the place of a lost process
    std::string lost;       // how it was lost; else empty
    Request request;        // its request to join
  };

  int wanted(Role role) const;
  std::size_t count(Role role) const PACELINE_REQUIRES(mutex_);
  bool start_if_complete() PACELINE_REQUIRES(mutex_);
  void answer(Member& member) PACELINE_REQUIRES(mutex_);
  bool place(Member& late) PACELINE_REQUIRES(mutex_);
  bool place_late() PACELINE_REQUIRES(mutex_);
  void lose(Member& member, const std::string& how) PACELINE_REQUIRES(mutex_);
  void changed() PACELINE_REQUIRES(mutex_);
  std::uint64_t next_incarnation() PACELINE_REQUIRES(mutex_);
  Member* find(std::uint64_t sender) PACELINE_REQUIRES(mutex_);
  bool lose_whom_all_wait_for() PACELINE_REQUIRES(mutex_);
  void refuse_task_twice(const Member& newcomer) PACELINE_REQUIRES(mutex_);
  std::string missing(Role role) const PACELINE_REQUIRES(mutex_);
  RosterNotice notice_locked(std::uint64_t since) const PACELINE_REQUIRES(mutex_);

  const ClusterConfig config_;
  const std::uint64_t job_;
  const Peer self_;

  mutable Mutex mutex_;
  std::vector<Member> members_ PACELINE_GUARDED_BY(mutex_);
  std::vector<Member> late_ PACELINE_GUARDED_BY(mutex_);
  std::vector<std::pair<std::uint64_t, std::string>> gone_
      PACELINE_GUARDED_BY(mutex_);  // lost incarnations whose place was taken, and their names
  std::uint64_t last_incarnation_ PACELINE_GUARDED_BY(mutex_);
  std::uint64_t epoch_ PACELINE_GUARDED_BY(mutex_) = 0;  // 0: not started
  bool over_ PACELINE_GUARDED_BY(mutex_) = false;
  std::string start_failure_ PACELINE_GUARDED_BY(mutex_);
  std::exception_ptr given_up_ PACELINE_GUARDED_BY(mutex_);
  std::string waited_for_ PACELINE_GUARDED_BY(mutex_);  // a sentence about the worker that holds the others up
  std::string failure_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline
