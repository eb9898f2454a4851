#pragma once
// A part of a server: one thread that owns some partitions, applies pushes to them and answers pulls. Everything that
// decides about them (sequence numbers, rounds, clocks, parked pulls) belongs to the thread, so nothing is locked. While
// it rests, another thread may run a short job in its place.

#include <paceline/compression.h>
#include <paceline/mode.h>
#include <paceline/mutex.h>
#include <paceline/unique_function.h>
#include <paceline/updater.h>

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "agreement.h"
#include "payload.h"
#include "sequence_window.h"
#include "served_call.h"
#include "sparse/table_shard.h"
#include "store.pb.h"

namespace paceline {

class Shard;

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
    std::vector<std::uint64_t> versions;      // of the pulled slices
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

// Where a synchronous mode stands with a slice.
struct SliceRounds {
  // A gradient that waits for its round; the call keeps its bytes alive.
  struct Kept {
    std::shared_ptr<PushPullCall> call;
    Contribution contribution;
  };
  std::uint64_t next_round = 0;  // all before it are closed
  // Where the mode drops late contributions, rounds are the slice's own, and one is open at a time: the workers' clocks
  // when it got its first.
  std::map<int, std::uint64_t> clocks_at_opening;
  std::map<std::uint64_t, std::map<int, Kept>> rounds;
  std::map<int, std::uint64_t> contributed;         // per worker, the round after the last that it pushed in
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
};

struct ServedSlice {
  int number = 0;          // in the Updater
  bool encodable = false;  // float32 weights: they and their gradients may travel encoded
  std::size_t bytes = 0;
  std::unique_ptr<SliceRounds> rounds;  // null in modes without
};

inline SliceRounds& rounds_of(ServedSlice& slice) {
  if (!slice.rounds) slice.rounds = std::make_unique<SliceRounds>();
  return *slice.rounds;
}

// Numbers, bytes and what is encodable never change; the rest is the shard's.
struct ServedPartition {
  // What a worker was answered last.
  struct Answered {
    static constexpr std::uint64_t kNotRead = ~std::uint64_t{0};  // the version, until the request's weights are read
    std::uint64_t request = 0;
    std::uint64_t version = 0;
    std::shared_ptr<const Codec> codec;
  };
  struct Worker {
    TakenPushes taken;
    std::vector<Answered> answered;  // by slice
  };

  int id = 0;
  Shard* shard = nullptr;
  std::vector<ServedSlice> slices;
  std::map<int, Worker> workers;
};

class Shard {
 public:
  using Job = UniqueFunction<void(Shard&)>;

  Shard(Updater& updater, Waits& waits, int number);
  // Runs what was posted, then stops.
  ~Shard();

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
  void contribute(const std::shared_ptr<PushPullCall>& call, ServedSlice& slice, const Contribution& contribution);
  // Closes the rounds that are complete.
  void advance(ServedSlice& slice);
  // The same where late contributions are dropped.
  void advance_open_round(ServedSlice& slice);
  // Applies the oldest round.
  void close_round(ServedSlice& slice);
  // The same where its codec takes two rounds: false if it does not, and if answers are missing.
  bool begin_agreement(ServedSlice& slice);
  bool close_agreement(ServedSlice& slice);
  void abstain(const Request& request, ServedSlice& slice, std::uint64_t round);
  void answer_asking(ServedSlice& slice);
  // Does a pull wait for a round of this slice?
  bool waits_for_round(ServedSlice& slice, const PushPullCall& call, std::uint64_t need) const;
  void answer_waiting(ServedSlice& slice);
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
  std::set<ServedPartition*> partitions_;  // that were used
  std::vector<SliceContribution> contributions_;  // of a part, kept for their memory
  std::vector<SliceRead> reads_;
  std::vector<int> read_places_;  // among the pulled slices
  std::set<ServedSlice*> active_;  // with rounds or pulls that wait
  std::vector<Waiting> waiting_for_clocks_;
  std::atomic<std::int64_t> late_{0};

  Mutex mutex_;
  CondVar posted_;
  std::deque<Job> jobs_ GUARDED_BY(mutex_);
  bool running_ GUARDED_BY(mutex_) = false;  // jobs, on some thread
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace paceline
