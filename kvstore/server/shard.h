#pragma once
// A part of a server: one thread that owns some partitions, applies pushes to them and answers pulls. Everything that
// decides about them (sequence numbers, rounds, clocks, parked pulls) belongs to the thread, so nothing is locked.
// While it rests, another thread may run a short job in its place.

#include <paceline/compression.h>
#include <paceline/mode.h>
#include <paceline/mutex.h>
#include <paceline/unique_function.h>
#include <paceline/updater.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "agreement.h"
#include "payload.h"
#include "sequence_window.h"
#include "served_call.h"
#include "store.pb.h"
#include "table_shard.h"

namespace paceline {

class DenseShard;

// A gradient in a request's payload.
struct PushedSlice {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  const Codec* codec = nullptr;  // null: raw
};

struct ServedPartition;

// A kPushPull request.
struct PushPullCall final : ServedCall {
  // What the shard of a partition answers.
  struct Part {
    ServedPartition* partition = nullptr;
    std::vector<PushedSlice> gradients;
    std::vector<std::uint64_t> versions;       // of the pulled slices
    std::vector<std::uint64_t> encoded_bytes;  // of those that are encoded
    PayloadWriter payload;
  };

  wire::PushPullRequest body;
  std::vector<Part> parts;
  std::vector<std::shared_ptr<const Codec>> codecs;   // that the request names
  std::vector<std::unique_ptr<std::byte[]>> aligned;  // copies of gradients that a transport did not align

  using ServedCall::ServedCall;
  // The codec of that number, null for 0.
  std::shared_ptr<const Codec> codec(std::uint32_t number) const;

 protected:
  Message answer() override;
};

struct ServedSlice {
  static constexpr std::size_t kMost = (std::size_t{1} << 30) - 1;
  std::uint32_t bytes : 30;
  std::uint32_t average : 1;
  std::uint32_t encodable : 1;  // float32 gradients: weights and gradients may travel encoded
};

// The number of a round of which only the last 32 bits were kept, for there may be millions; at most 2^30 from
// `reference`. One that seems further away says nothing, for the slice may have rested for 2^31 rounds and more: `far`.
inline std::uint64_t round_near(std::uint64_t reference, std::uint32_t kept, std::uint64_t far) {
  const auto ahead = static_cast<std::int32_t>(kept - static_cast<std::uint32_t>(reference));
  if (ahead > 1 << 30 || ahead < -(1 << 30)) return far;
  return ahead < 0 && reference < static_cast<std::uint64_t>(-std::int64_t{ahead})
             ? 0
             : reference + static_cast<std::uint64_t>(std::int64_t{ahead});
}

// One that is long before `round`, to begin with.
inline std::uint32_t long_before(std::uint64_t round) {
  return static_cast<std::uint32_t>(round - std::min(round, std::uint64_t{1} << 30));
}

// Numbers, bytes and what is encodable never change; the rest is the shard's.
struct ServedPartition {
  // What a worker was answered last, in one word for a slice, for there may be millions of them.
  struct Answered {
    static constexpr std::uint64_t kVersions = (std::uint64_t{1} << 24) - 1;  // the bits kept of a version
    static constexpr std::uint64_t kRequests = (std::uint64_t{1} << 40) - 1;  // and of a request's number
    static constexpr std::uint64_t kNotRead = kVersions;  // the version, until the request's weights are read
    std::uint64_t request : 40 = 0;
    std::uint64_t version : 24 = 0;

    bool is_of(std::uint64_t number) const { return request == (number & kRequests); }
    // Was it for a later request than that?
    bool after(std::uint64_t number) const {
      const std::uint64_t ahead = (request - number) & kRequests;
      return request > 0 && ahead > 0 && ahead <= kRequests / 2;
    }
    bool has_version(std::uint64_t other) const { return version == (other & kVersions); }
    void set_version(std::uint64_t other) { version = other & kVersions; }
  };
  struct Worker {
    TakenPushes taken;
    std::vector<Answered> answered;                    // by slice
    std::vector<std::shared_ptr<const Codec>> codecs;  // by slice, of the answers; empty where none was encoded
    // By slice, the round after the last that it pushed in (see round_near()); empty where it has pushed in none.
    std::vector<std::uint32_t> contributed;

    void answer(std::size_t slice, std::uint64_t number, std::uint64_t version, std::shared_ptr<const Codec> codec) {
      answered[slice].request = number & Answered::kRequests;
      answered[slice].set_version(version);
      if (codec && codecs.empty()) codecs.resize(answered.size());
      if (!codecs.empty()) codecs[slice] = std::move(codec);
    }
  };

  int id = 0;
  DenseShard* shard = nullptr;
  int first = 0;  // slice, in the Updater; the others have the numbers after it
  std::vector<ServedSlice> slices;
  // By slice, while it has no SliceRounds: all rounds before it are closed (see round_near()). Empty in modes without.
  std::vector<std::uint32_t> next_round;
  std::map<int, Worker> workers;

  int number(std::size_t slice) const { return first + static_cast<int>(slice); }
  // The round after the last that the worker pushed the slice in, of those near `reference`; 0: in none.
  std::uint64_t contributed(int worker, std::size_t slice, std::uint64_t reference) const {
    const auto known = workers.find(worker);
    if (known == workers.end() || known->second.contributed.empty()) return 0;
    return round_near(reference, known->second.contributed[slice], 0);
  }
};

// Where a synchronous mode stands with a slice that has rounds open or pulls that wait.
struct SliceRounds {
  // A gradient that waits for its round; the call keeps its bytes alive.
  struct Kept {
    std::shared_ptr<PushPullCall> call;
    Contribution contribution;
  };
  ServedPartition& partition;
  const std::size_t slice;   // in it
  std::uint64_t next_round;  // all before it are closed
  // Where the mode drops late contributions, rounds are the slice's own, and one is open at a time: the workers' clocks
  // when it got its first.
  std::map<int, std::uint64_t> clocks_at_opening;
  std::map<std::uint64_t, std::map<int, Kept>> rounds;
  std::vector<WaitingPull<PushPullCall>> waiting;  // pulls that need a round of this slice
  // Where a codec takes two rounds: of the oldest round, once all have proposed, until that of the next one; and who
  // asks for it or for what it comes to.
  struct Asking {
    Request request;
    std::uint64_t round;
    bool answers;
  };
  std::unique_ptr<Agreement> agreement;
  std::map<int, std::uint64_t> answered;  // per worker, the round after the last that its answer was applied in
  std::vector<Asking> asking;

  SliceRounds(ServedPartition& of, std::size_t index, std::uint64_t next)
      : partition(of), slice(index), next_round(next) {}
  int number() const { return partition.number(slice); }
  std::size_t bytes() const { return partition.slices[slice].bytes; }
  bool rests() const { return rounds.empty() && waiting.empty() && asking.empty() && !agreement; }
};

class DenseShard {
 public:
  using Job = UniqueFunction<void(DenseShard&)>;

  DenseShard(Updater& updater, Waits& waits, int number);
  // Runs what was posted, then stops.
  ~DenseShard();

  // Runs `job` on the shard's thread, after those posted before.
  void post(Job job);
  // The same, at once on the calling thread where none is running or waiting: for jobs shorter than a wake-up.
  void post_short(Job job);

  // The functions below belong to the shard's thread.

  void set_mode(std::shared_ptr<const Mode> mode) { mode_ = std::move(mode); }
  void run(const std::shared_ptr<PushPullCall>& call, int part);
  WorkerClocks::Range step_end(int worker, std::uint64_t incarnation, const wire::StepEnd& message);
  // A worker asks what a round agreed on, or gives its answer to that and asks for the mean.
  void agree(const Request& request, const wire::AgreeRequest& message, ServedPartition& partition);
  void set_roster(const Roster& roster);
  // Forgets what that worker, now lost, pulled here.
  void drop_worker(int worker);
  // The rules have changed: what workers pulled before and no update has touched since is remembered where the new
  // rules want that.
  void remember_pulled();
  TableShard& tables() { return tables_; }
  // Pushes that came after their round was closed.
  std::int64_t late() const { return late_; }

 private:
  using Waiting = WaitingPull<PushPullCall>;

  // Does every round wait for all workers?
  bool in_lockstep() const { return mode_ && mode_->synchronous() && !mode_->drops_late(); }
  void loop();
  void run_job(Job& job);
  // What is known of the worker, in its latest incarnation.
  static ServedPartition::Worker& worker_of(ServedPartition& partition, const PushPullCall& call);
  void push(const std::shared_ptr<PushPullCall>& call, int part);
  void contribute(const std::shared_ptr<PushPullCall>& call, ServedPartition& partition, std::size_t slice,
                  const Contribution& contribution);
  // Null: the slice rests.
  SliceRounds* find_rounds(int number) {
    const auto found = open_.find(number);
    return found == open_.end() ? nullptr : &found->second;
  }
  SliceRounds& rounds_of(ServedPartition& partition, std::size_t slice, std::uint64_t round);
  // Keeps no more than a number of a slice that rests.
  void put_to_rest(int number);
  // Closes the rounds that are complete.
  void advance(SliceRounds& slice);
  // The same where late contributions are dropped.
  void advance_open_round(SliceRounds& slice);
  // Applies the oldest round.
  void close_round(SliceRounds& slice);
  // The same where its codec takes two rounds: false if it does not, and if answers are missing.
  bool begin_agreement(SliceRounds& slice);
  bool close_agreement(SliceRounds& slice);
  void abstain(const Request& request, SliceRounds& slice, std::uint64_t round);
  void answer_asking(SliceRounds& slice);
  // The first slice with a round that a pull waits for; null: none.
  SliceRounds* awaited(const PushPullCall& call, int part);
  // The slice may be at rest after it.
  void answer_waiting(SliceRounds& slice);
  // Answers the pulls of a part, or parks it.
  void pull(Waiting waiting);
  void read(const PushPullCall& call, const wire::Part& request, PushPullCall::Part& part);
  // Clocks have changed: everything that waits is looked at again.
  void reconsider();

  Updater& updater_;
  Waits& waits_;
  std::shared_ptr<const Mode> mode_;
  WorkerClocks clocks_;
  PullGate gate_{clocks_, mode_, waits_};
  TableShard tables_{clocks_, mode_, waits_};
  std::set<ServedPartition*> partitions_;         // that were used
  std::vector<SliceContribution> contributions_;  // of a part, kept for their memory
  std::vector<SliceRead> reads_;
  std::vector<int> read_places_;               // among the pulled slices
  std::unordered_map<int, SliceRounds> open_;  // by number
  std::vector<Waiting> waiting_for_clocks_;
  std::atomic<std::int64_t> late_{0};

  Mutex mutex_;
  CondVar posted_;
  std::deque<Job> jobs_ PACELINE_GUARDED_BY(mutex_);
  bool running_ PACELINE_GUARDED_BY(mutex_) = false;  // jobs, on some thread
  bool stopping_ PACELINE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace paceline
