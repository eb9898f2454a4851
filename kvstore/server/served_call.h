#pragma once
// Pushes and pulls on their way through the shards of a server. ServedCall and PullGate serve slices and rows.
// PushPullCall is the call for slices.

#include <paceline/compression.h>
#include <paceline/error.h>
#include <paceline/mode.h>
#include <paceline/mutex.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <initializer_list>
#include <memory>
#include <vector>

#include "dense_partition.h"
#include "node.h"
#include "payload.h"
#include "saved_count.h"
#include "store.pb.h"
#include "wait_stats.h"
#include "worker_clocks.h"

namespace paceline {

struct ServedPartition;

// Throws Corrupt if a push claims an impossible number of examples. With the limit, no single push can make the sum
// over all pushes overflow.
inline void check_examples(std::int64_t examples) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  if (examples < 0 || examples > kMost)
    throw Corrupt(str("a push of ", examples, " examples; at most ", kMost, " may come in one"));
}

// Throws Corrupt if a count of a saved state is negative, or leaves no room to count on from it.
inline void check_saved_counts(std::initializer_list<std::int64_t> counts) {
  for (const std::int64_t count : counts)
    if (count < 0 || count > kMostSavedCount)
      throw Corrupt(str("a saved state counts ", count, " examples or updates"));
}

// A request on its way through the shards. One shard handles each part. finish_part() answers the request after the
// last part.
struct ServedCall {
  Request request;
  std::atomic<std::uint64_t> refused{0};
  std::atomic<std::int64_t> waited_microseconds{0};  // of the part that waited longest
  std::atomic<int> parts_left{0};

  explicit ServedCall(Request from) : request(std::move(from)) {}
  virtual ~ServedCall() = default;
  int worker() const { return request.from().rank; }
  // Makes finish_part() refuse the request. The first reason counts.
  void fail(std::exception_ptr reason);
  // A part is done. Answers the request after the last part.
  void finish_part();

 protected:
  virtual Message answer() = 0;

 private:
  Mutex mutex_;
  std::exception_ptr error_ PACELINE_GUARDED_BY(mutex_);
};

// A gradient in a request's payload.
struct PushedSlice {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  const Codec* codec = nullptr;  // null: raw
};

// A kPushPull request.
struct PushPullCall final : ServedCall {
  // The request's part for one partition, and the answer of the partition's shard.
  struct Part {
    ServedPartition* partition = nullptr;
    std::vector<PushedSlice> gradients;
    std::vector<std::uint64_t> versions;       // of the pulled slices
    std::vector<std::uint64_t> encoded_bytes;  // of the pulled slices that are encoded
    PayloadWriter payload;
  };

  wire::PushPullRequest body;
  std::vector<Part> parts;
  std::vector<std::shared_ptr<const Codec>> codecs;   // that the request names
  std::vector<std::unique_ptr<std::byte[]>> aligned;  // copies of gradients that a transport did not align

  using ServedCall::ServedCall;
  WorkerIncarnation from() const { return {worker(), request.incarnation()}; }
  // Returns codec `number` of the request, counted from 1; null for 0. Throws Corrupt if the request names fewer
  // codecs.
  std::shared_ptr<const Codec> codec(std::uint32_t number) const;

 protected:
  Message answer() override;
};

// A pull that the mode may hold back.
template <class Call>
struct WaitingPull {
  std::shared_ptr<Call> call;
  int part = 0;
  WorkerClocks::Time since = std::chrono::steady_clock::now();
  bool held = false;  // the mode has held it back
};

// Decides from the clocks and the mode of one shard which pulls may go on.
class PullGate {
 public:
  PullGate(WorkerClocks& clocks, const std::shared_ptr<const Mode>& mode, WaitStats& waits)
      : clocks_(clocks), mode_(mode), waits_(waits) {}

  // `need`: the step that the worker will compute from the pulled weights. False: the pull is held back.
  template <class Call>
  bool passes(WaitingPull<Call>& pull, std::uint64_t need) {
    const Progress progress = clocks_.progress(pull.call->worker(), need, pull.since);
    if (!mode_->may_pull(progress)) {
      hold(pull, need);
      return false;
    }
    waits_.ahead(progress.mine - progress.slowest);
    return true;
  }
  template <class Call>
  void hold(WaitingPull<Call>& pull, std::uint64_t need) {
    if (!std::exchange(pull.held, true)) waits_.hold(pull.call->worker(), need);
  }
  // Records that the pull is answered, and finishes its part.
  template <class Call>
  void finish(const WaitingPull<Call>& pull, std::uint64_t need) {
    finish(*pull.call, pull.since, pull.held, need);
  }

 private:
  void finish(ServedCall& call, WorkerClocks::Time since, bool held, std::uint64_t need);

  WorkerClocks& clocks_;
  const std::shared_ptr<const Mode>& mode_;
  WaitStats& waits_;
};

}  // namespace paceline
