#pragma once
// What every iterator of the library consists of: it deals the positions of an epoch, has batches made ahead by
// threads, hands them out in order, keeps what was committed, and measures where the time goes.
//
// Threads take the next batch of the plan in turn, and each makes one whole batch. The window of batches that were
// begun and not handed out yet bounds the memory.

#include <paceline/data_iterator.h>
#include <paceline/decoder.h>
#include <paceline/mutex.h>
#include <paceline/record_loader.h>

#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "batch_memory.h"
#include "epoch_order.h"
#include "stage_clock.h"

namespace paceline::io {

// The epoch that batches are made for.
struct EpochView {
  const EpochOrder& order;
  std::int64_t epoch = 0;
  std::uint64_t shuffle = 0;

  // The number of the example at `position`.
  std::int64_t example(std::int64_t position) const { return order.record(position); }
  // What random choices for this example may depend on.
  std::uint64_t seed(std::int64_t position) const {
    return mix(mix(shuffle, static_cast<std::uint64_t>(epoch)), static_cast<std::uint64_t>(position));
  }
};

struct MadeBatch {
  std::int64_t examples = 0;  // fewer than there were positions where some were left out
  NamedArrays arrays;         // none without examples
  std::uint64_t bytes = 0;    // read for them
};

// Makes batches, in one thread of a pipeline.
class BatchMaker {
 public:
  virtual ~BatchMaker() = default;
  // A batch of the examples at `positions`, in this order. What it throws, the iterator's next() throws.
  virtual MadeBatch make(const std::vector<std::int64_t>& positions, const EpochView& epoch) = 0;
};

// Where the examples of a pipeline come from. Functions are called while no maker is at work, if not said otherwise.
class ExampleStore {
 public:
  virtual ~ExampleStore() = default;
  // The arrays of an example, as far as a batch's shape follows from them.
  virtual std::vector<ExampleArray> arrays() const = 0;
  // Before an epoch whose batches are used on `device`. The most threads that may make batches; 0: any number.
  virtual int prepare(Device) { return 0; }
  // Before batches of `positions` are asked for, of which those that follow each other need at most `spread` shards.
  virtual void open(const EpochOrder& /*order*/, const RangeSet& /*positions*/, std::size_t /*spread*/) {}
  // A short text that changes with the examples.
  virtual std::string identity() const = 0;
  // For the thread with this number, from 0. Calls come from several threads at a time.
  virtual std::unique_ptr<BatchMaker> maker(int thread, const std::shared_ptr<BatchMemory>& memory) = 0;
  // The batches that will be asked for, in this order; after open(). `order` lives until stop() has returned.
  virtual void begin(const EpochOrder& /*order*/, const Batches& /*plan*/) {}
  // The next piece of the epoch, after every batch of the plan before was handed out and without stop(). Batches count
  // from 0 again. `guess`: what may be asked for after it.
  virtual void extend(const EpochOrder& order, const Batches& plan, const Batches& /*guess*/) { begin(order, plan); }
  // So many batches of the plan were handed out. Makers may be at work.
  virtual void passed(std::int64_t /*batches*/) {}
  // Every batch of a part was handed out.
  virtual void ended() {}
  // No batch of the plan is asked for any more. Makers may be at work: what they wait for must end.
  virtual void stop() {}
};

struct PipelineOptions {
  static constexpr int kInNext = -1;  // for `threads`: next() makes the batches

  std::string what;                  // the data, for errors
  std::vector<std::int64_t> starts;  // as Order's
  OrderOptions order = {};
  std::shared_ptr<Source> source = {};
  int threads = 0;   // 0: half the core budget, and more while they are waited for
  int prefetch = 0;  // batches that may be ready; 0: two more than threads, at least four
};

// The functions are those of DataIterator.
class Pipeline {
 public:
  // Throws InvalidArgument for options that cannot be.
  Pipeline(PipelineOptions options, std::shared_ptr<ExampleStore> store);
  ~Pipeline() { stop(); }

  bool has_source() const { return has_source_; }
  bool is_dynamic() const { return options_.source->is_dynamic(); }
  void deliver_to(Device device) { device_ = device; }
  void start(std::int64_t epoch, const RangeSet& done);
  bool next(Batch& batch);
  bool take_over(bool wait);
  std::int64_t size() const { return orders_.size(); }
  std::string order() const;
  Shape batch_shape() const;
  DType batch_dtype() const;
  void commit(std::int64_t epoch, const std::vector<Range>& positions, const std::string& note);
  RangeSet committed() const;
  LoaderTiming timing() const;

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    std::vector<std::int64_t> positions;
    MadeBatch made;
    std::exception_ptr error;
    bool sampled = false;
    bool ready = false;
  };

  void run(Batches plan);
  void stop();
  void join();
  bool is_drained() const;
  Batches guess_after(const RangeSet& piece);
  void start_thread();
  void work(int thread);
  std::shared_ptr<Job> begin_job();
  bool plan_next(Job& job) PACELINE_REQUIRES(mutex_);
  void make(Job& job, BatchMaker& maker);
  bool take(std::shared_ptr<Job>& job);
  bool take_here(std::shared_ptr<Job>& job);
  void grow();
  std::size_t window() const PACELINE_NO_THREAD_SAFETY_ANALYSIS;
  EpochView view() const PACELINE_NO_THREAD_SAFETY_ANALYSIS;

  PipelineOptions options_;
  const std::shared_ptr<ExampleStore> store_;
  const Order orders_;
  std::int64_t batch_;            // examples in a full batch
  mutable std::string identity_;  // once it is known
  bool has_source_ = false;
  Device device_;
  int first_threads_ = 0, most_threads_ = 0;  // the same where the number was given
  const std::shared_ptr<BatchMemory> memory_ = std::make_shared<BatchMemory>();
  std::optional<EpochOrder> order_;
  std::int64_t taken_ = 0;       // batches of the plan
  std::int64_t pieces_end_ = 0;  // behind the last position of the pieces of this epoch
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
  std::unique_ptr<BatchMaker> maker_;  // of next()
  // Since the latest look at whether one more thread is of use.
  std::optional<Clock::time_point> look_;
  double look_cpu_ = 0, look_waited_ = 0;

  mutable Mutex mutex_;
  CondVar ready_;  // for next(): the front of the window is made, or nothing comes any more
  CondVar room_;   // for the threads: a batch may be begun, or none any more
  std::int64_t epoch_ PACELINE_GUARDED_BY(mutex_) = 0;
  Batches plan_ PACELINE_GUARDED_BY(mutex_);
  bool planned_all_ PACELINE_GUARDED_BY(mutex_) = true;
  std::exception_ptr plan_failure_ PACELINE_GUARDED_BY(mutex_);  // why there are no more batches
  bool stopping_ PACELINE_GUARDED_BY(mutex_) = false;
  int running_ PACELINE_GUARDED_BY(mutex_) = 0;  // threads
  std::deque<std::shared_ptr<Job>> window_ PACELINE_GUARDED_BY(mutex_);
  RangeSet committed_ PACELINE_GUARDED_BY(mutex_);
  // Since start().
  std::int64_t planned_ PACELINE_GUARDED_BY(mutex_) = 0;
  Clock::time_point started_ PACELINE_GUARDED_BY(mutex_);
  std::optional<Clock::time_point> ended_ PACELINE_GUARDED_BY(mutex_);
  LoaderTiming sums_ PACELINE_GUARDED_BY(mutex_);  // without the stages
  double busy_ PACELINE_GUARDED_BY(mutex_) = 0;
  StageSeconds sampled_ PACELINE_GUARDED_BY(mutex_) = {};
};

// Is one more thread worth a core of the budget? `waited` and `cpu`, of the whole process, are seconds out of
// `seconds`.
inline bool wants_thread(double seconds, double waited, double cpu, int budget) {
  constexpr double kMuch = 0.1;  // of the time
  constexpr double kIdle = 0.5;  // of a core
  return waited > kMuch * seconds && cpu < (budget - kIdle) * seconds;
}

}  // namespace paceline::io
