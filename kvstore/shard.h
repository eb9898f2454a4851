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
#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "agreement.h"
#include "node.h"
#include "sequence_window.h"
#include "sparse/table_shard.h"
#include "store.pb.h"
#include "waits.h"
#include "worker_clocks.h"

namespace paceline {

class Shard;

// A gradient in a request's payload.
struct PushedSlice {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  const Codec* codec = nullptr;  // null: raw
};

// A kPushPull request on its way through the shards. Each part is written by one of them; the last answers.
struct PushPullCall {
  Request request;
  wire::PushPullRequest body;
  std::vector<std::vector<PushedSlice>> gradients;       // per part and pushed slice
  std::vector<std::shared_ptr<const Codec>> codecs;      // that the request names
  std::vector<std::unique_ptr<std::byte[]>> aligned;     // copies of gradients that a transport did not align
  std::vector<std::vector<Snapshot>> weights;            // per part and pulled slice
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::int64_t> waited_microseconds{0};
  std::atomic<int> parts_left{0};
  Mutex mutex;
  std::exception_ptr error GUARDED_BY(mutex);

  explicit PushPullCall(Request from) : request(std::move(from)) {}
  int worker() const { return request.from().rank; }
  // The codec of that number, null for 0.
  std::shared_ptr<const Codec> codec(std::uint32_t number) const;
  void fail(std::exception_ptr reason);
  // A part is done; answers after the last.
  void finish_part();
};

struct ServedSlice {
  // A gradient that waits for its round; the call keeps its bytes alive.
  struct Kept {
    std::shared_ptr<PushPullCall> call;
    Contribution contribution;
  };
  // What a worker was answered last, to answer a repeated request alike.
  struct Answered {
    std::uint64_t incarnation = 0;
    std::uint64_t request = 0;
    std::uint64_t version = 0;
    std::weak_ptr<const std::byte[]> data;
    std::size_t bytes = 0;
    std::shared_ptr<const Codec> codec;
  };
  struct Waiting {
    std::shared_ptr<PushPullCall> call;
    int part;
    std::chrono::steady_clock::time_point since;
    bool held = false;  // the mode has not let it pass at once
  };

  int number = 0;  // in the Updater
  std::size_t bytes = 0;
  bool encodable = false;  // float32 weights: they and their gradients may travel encoded
  std::string name;
  std::uint64_t next_round = 0;  // all before it are closed
  // Where the mode drops late contributions, rounds are the slice's own, and one is open at a time: the workers' clocks
  // when it got its first.
  std::map<int, std::uint64_t> clocks_at_opening;
  std::map<std::uint64_t, std::map<int, Kept>> rounds;
  std::map<int, std::uint64_t> contributed;  // per worker, the round after the last that it pushed in
  std::map<int, Answered> answered;
  std::vector<Waiting> waiting;  // pulls that need a round of this slice
  // Where a codec takes two rounds: of the oldest round, once all have proposed, until that of the next one; and who
  // asks for it or for what it comes to.
  struct Asking {
    Request request;
    std::uint64_t round;
    bool answers;
  };
  std::unique_ptr<Agreement> agreement;
  std::vector<Asking> asking;
};

struct ServedPartition {
  struct Taken {
    std::uint64_t incarnation = 0;
    SequenceWindow window;
  };

  int id = 0;
  Shard* shard = nullptr;
  std::vector<ServedSlice> slices;  // bytes and number never change; the rest is the shard's
  std::map<int, Taken> taken;       // by worker
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
  void run(const std::shared_ptr<PushPullCall>& call, int part, ServedPartition& partition);
  WorkerClocks::Range step_end(int worker, std::uint64_t incarnation, const wire::StepEnd& message);
  // A worker asks what a round agreed on, or gives its answer to that and asks for the mean.
  void agree(const Request& request, const wire::AgreeRequest& message, ServedPartition& partition);
  void set_roster(const Roster& roster);
  // The rules have changed: what workers pulled before and no update has touched since is remembered where the new
  // rules want that.
  void remember_pulled();
  TableShard& tables() { return tables_; }
  // Pushes that came after their round was closed.
  std::int64_t late() const { return late_; }

 private:
  using Waiting = ServedSlice::Waiting;

  // Does every round wait for all workers?
  bool in_lockstep() const { return mode_ && mode_->synchronous() && !mode_->drops_late(); }
  void loop();
  void run_job(Job& job);
  void push(const std::shared_ptr<PushPullCall>& call, int part, ServedPartition& partition);
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
  void answer_asking(ServedSlice& slice);
  // Does a pull wait for a round of this slice?
  bool waits_for_round(const ServedSlice& slice, const PushPullCall& call, std::uint64_t need) const;
  void answer_waiting(ServedSlice& slice);
  // Answers the pulls of a part, or parks it.
  void pull(Waiting waiting, ServedPartition& partition);
  Snapshot snapshot(ServedSlice& slice, const Request& request, const std::shared_ptr<const Codec>& codec);
  // Clocks have changed: everything that waits is looked at again.
  void reconsider();

  Updater& updater_;
  Waits& waits_;
  std::shared_ptr<const Mode> mode_;
  WorkerClocks clocks_;
  TableShard tables_{clocks_, mode_, waits_};
  std::map<int, ServedPartition*> partitions_;
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
