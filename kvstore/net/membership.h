#pragma once
// The scheduler's list of processes: which have joined, are silent or have left. Membership decides which processes
// belong to the job. Node carries the messages.
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

// This bit marks the number of a process that has no incarnation from the scheduler yet.
constexpr std::uint64_t kProvisionalIncarnation = std::uint64_t{1} << 63;

class Membership {
 public:
  // `address`: where the scheduler listens. `job`: the number that every message of the job carries. `key`: the
  // scheduler's public key, if it has one.
  Membership(const ClusterConfig& config, std::uint64_t incarnation, std::uint64_t job, const std::string& address,
             const std::string& key = {});

  // join(), leave(), ended(), enter() and tick() return true when the roster has changed.

  // Handles a request to join. The answer comes at once, when the job starts, or when the rank of a lost worker becomes
  // free. Throws the error with which the caller must refuse the request. `key`: the public key of the link, if it has
  // one.
  bool join(const Request& request, LinkId link, const std::string& key = {});
  // Handles a heartbeat of the process with the incarnation `sender`. `epoch`: the epoch of the process's roster.
  // Returns false, with the reason in `why`, if the process is not in this job or was declared lost.
  bool heard(std::uint64_t sender, LinkId link, std::uint64_t epoch, const proto::Heartbeat& activity,
             std::string& why);
  // True if the scheduler has given a rank to the process with this incarnation.
  bool is_member(std::uint64_t sender) const;
  // Records that the process leaves in good order.
  bool leave(std::uint64_t sender);
  // Records that the process with the launcher's task number `task` has failed. `how` completes a sentence, such as
  // "was ended by signal 9". A process that has taken the rank of the failed one since then is not affected. If the job
  // has not started, it cannot start any more.
  bool ended(Role role, int task, const std::string& how);
  // Lets the worker take part in the rounds of mode ring. A repeated call also makes a new roster.
  bool enter(std::uint64_t sender);
  // Adds `seconds` to the silence of every process. Declares processes lost that are silent for too long, or that
  // others wait for beyond the progress deadline.
  bool tick(double seconds);
  // Before the start: refuses every process that waits for it, and every later request to join. Returns false if the
  // job has started.
  bool give_up(const std::exception_ptr& reason);

  bool started() const;
  // The reason why the job cannot start. Empty if the job has started or still can.
  std::string start_failure() const;
  // Before the start: "waiting for 1 of 2 workers (task 1); joined: server at hostA (process 7); the scheduler listens
  // at 10.0.0.4:9091". Later: "2 workers wait for worker 1 at hostB: ...", or empty if no worker holds others up.
  std::string waiting() const;
  // What has changed in the roster since the epoch `since`.
  RosterNotice notice(std::uint64_t since = 0) const;
  // The incarnations of all live processes, and their links.
  std::vector<std::pair<std::uint64_t, LinkId>> speakers() const;
  // Returns the links to all live processes that have not been sent the newest roster. Each link comes with the epoch
  // of the last roster that was sent on it. Counts the newest roster as sent.
  std::vector<std::pair<LinkId, std::uint64_t>> untold();
  // True if every live process has the newest roster.
  bool everybody_knows() const;
  bool everybody_left() const;

 private:
  struct Member {
    Peer peer;                      // the rank is set at the start
    std::uint64_t provisional = 0;  // number of the process until it gets an incarnation
    int task = -1;
    std::int64_t pid = 0;
    LinkId link = 0;
    double silent = 0;
    double waited = 0;
    std::uint64_t knows = 0;    // epoch of the roster that the process has
    std::uint64_t told = 0;     // epoch of the newest roster that was sent to the process
    std::uint64_t changed = 0;  // epoch of the last change of `peer`
    proto::Heartbeat activity;
    double still = 0;       // seconds without a step, a request or an answer
    bool returned = false;  // took the place of a lost process
    std::string lost;       // reason of the loss; empty if the process is not lost
    Request request;        // its request to join
  };

  int wanted(Role role) const;
  std::size_t count(Role role) const PACELINE_REQUIRES(mutex_);
  bool start_if_complete() PACELINE_REQUIRES(mutex_);
  void answer(Member& member) PACELINE_REQUIRES(mutex_);
  bool place(Member& late) PACELINE_REQUIRES(mutex_);
  bool place_late() PACELINE_REQUIRES(mutex_);
  void refuse_late() PACELINE_REQUIRES(mutex_);
  std::string too_late(const std::string& name) const PACELINE_REQUIRES(mutex_);
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
      PACELINE_GUARDED_BY(mutex_);  // incarnations of lost workers whose ranks were taken, and names of the workers
  std::uint64_t last_incarnation_ PACELINE_GUARDED_BY(mutex_);
  std::uint64_t epoch_ PACELINE_GUARDED_BY(mutex_) = 0;  // 0: not started
  bool over_ PACELINE_GUARDED_BY(mutex_) = false;
  std::string start_failure_ PACELINE_GUARDED_BY(mutex_);
  std::exception_ptr given_up_ PACELINE_GUARDED_BY(mutex_);  // the argument of give_up()
  std::string waited_for_ PACELINE_GUARDED_BY(mutex_);       // names the worker that holds the others up
  std::string failure_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline
