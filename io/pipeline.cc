#include "pipeline.h"

#include <paceline/cores.h>
#include <paceline/detail/start_thread.h>
#include <paceline/error.h>

#include <time.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "array_memory.h"

namespace paceline::io {
namespace {

// The stages are measured in every fourth batch, and after 256 batches in every 16th.
constexpr std::int64_t kSampled = 4, kLaterSampled = 16, kOftenSampled = 256;
constexpr double kLookSeconds = 0.02;  // between two looks at the number of threads
constexpr std::size_t kReadyPastThreads = 2, kFewestReady = 4;

double seconds_between(std::chrono::steady_clock::time_point begin, std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

// Of all threads of the process.
double cpu_seconds() {
  timespec time = {};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

}  // namespace

Pipeline::Pipeline(PipelineOptions options, std::shared_ptr<ExampleStore> store)
    : options_(std::move(options)),
      store_(std::move(store)),
      orders_(options_.starts, options_.order, options_.what),
      batch_(options_.order.global_batch > 0 ? options_.order.global_batch : options_.order.batch) {
  require(options_.prefetch >= 0, "prefetch cannot be ", options_.prefetch, " batches");
  has_source_ = options_.source != nullptr;
  if (!has_source_) options_.source = fixed_source();
  require(
      !options_.source->is_dynamic() || options_.order.global_batch == 0,
      "a global batch is shared alike, so it does not go with a source that gives fast workers more; leave one out");
}

Shape Pipeline::batch_shape() const {
  for (const ExampleArray& array : store_->arrays())
    if (array.name == "data") return io::batch_shape(batch_, array.shape);
  return {};
}

DType Pipeline::batch_dtype() const {
  for (const ExampleArray& array : store_->arrays())
    if (array.name == "data") return array.dtype;
  return DType::kFloat32;
}

std::string Pipeline::order() const {
  if (identity_.empty()) identity_ = store_->identity();
  return orders_.text() + " data=" + identity_;
}

RangeSet Pipeline::committed() const {
  Lock lock(mutex_);
  return committed_;
}

void Pipeline::start(std::int64_t epoch, const RangeSet& done) {
  stop();
  const int most = store_->prepare(device_);
  if (options_.threads != PipelineOptions::kInNext) {
    const bool chosen = options_.threads == 0;
    // What earlier epochs grew to stays.
    first_threads_ = chosen ? std::max(first_threads_, std::max(1, core_budget() / 2)) : options_.threads;
    most_threads_ = chosen ? core_budget() : options_.threads;
    if (most > 0) most_threads_ = std::min(most_threads_, most);
    first_threads_ = std::min(first_threads_, most_threads_);
  }
  memory_->use_for(device_);
  failure_ = nullptr;
  const Part part = options_.source->part(epoch);
  order_.emplace(orders_, epoch);
  const RangeSet all = order_->all_but(done);
  const Share mine = order_->share(part);
  const RangeSet left = mine.without(done);
  if (options_.order.global_batch > 0 && part.count > 0) batch_ = mine.batch;
  store_->open(*order_, left, mine.spread);
  options_.source->begin(epoch, {left, all, str(orders_.text(), " positions=", orders_.size())});
  {
    Lock lock(mutex_);
    epoch_ = epoch;
    committed_ = done;
    planned_ = 0;
    started_ = Clock::now();
    ended_.reset();
    sums_ = {};
    busy_ = 0;
    sampled_ = {};
  }
  const Batches plan(left, mine.batch, mine.boundary);
  pieces_end_ = 0;
  store_->begin(*order_, plan);
  run(plan);
}

void Pipeline::run(Batches plan) {
  taken_ = 0;
  {
    Lock lock(mutex_);
    plan_ = std::move(plan);
    planned_all_ = false;
    plan_failure_ = nullptr;
    stopping_ = false;
  }
  look_.reset();
  try {
    while (static_cast<int>(threads_.size()) < first_threads_) start_thread();
  } catch (...) {
    stop();
    throw;
  }
}

void Pipeline::start_thread() {
  const int number = static_cast<int>(threads_.size());
  threads_.push_back(detail::start_thread("decoding records", [this, number] { work(number); }));
  Lock lock(mutex_);
  running_ = static_cast<int>(threads_.size());
  room_.notify_all();
}

void Pipeline::stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    room_.notify_all();
  }
  store_->stop();
  join();
  Lock lock(mutex_);
  window_.clear();
  planned_all_ = true;
}

void Pipeline::join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  maker_.reset();
}

// Was every batch of the plan handed out? Then the threads end.
bool Pipeline::is_drained() const {
  Lock lock(mutex_);
  return !failure_ && !plan_failure_ && planned_all_ && window_.empty();
}

// How many batches may be begun.
std::size_t Pipeline::window() const {
  const auto threads = static_cast<std::size_t>(running_);
  if (options_.prefetch > 0) return std::max(threads, static_cast<std::size_t>(options_.prefetch));
  return std::max(threads + kReadyPastThreads, kFewestReady);
}

EpochView Pipeline::view() const {
  return {*order_, epoch_, options_.order.seed.value_or(0)};  // the epoch does not change while batches are made
}

bool Pipeline::plan_next(Job& job) {
  if (!plan_.next(job.positions)) {
    planned_all_ = true;
    room_.notify_all();
    ready_.notify_one();
    return false;
  }
  const std::int64_t number = planned_++;
  job.sampled = number % (number < kOftenSampled ? kSampled : kLaterSampled) == 0;
  return true;
}

// Waits until a batch may be begun. None after the last one.
std::shared_ptr<Pipeline::Job> Pipeline::begin_job() {
  Lock lock(mutex_);
  const auto may_go_on = [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    return stopping_ || planned_all_ || window_.size() < window();
  };
  if (!may_go_on()) {
    const Clock::time_point began = Clock::now();
    room_.wait(mutex_, may_go_on);
    sums_.full += seconds_between(began, Clock::now());
  }
  if (stopping_ || planned_all_) return {};
  try {
    auto job = std::make_shared<Job>();
    if (!plan_next(*job)) return {};
    window_.push_back(job);
    return job;
  } catch (...) {  // next() throws it after the batches before
    plan_failure_ = std::current_exception();
    planned_all_ = true;
    room_.notify_all();
    ready_.notify_one();
    return {};
  }
}

void Pipeline::work(int thread) {
  name_thread("decode");
  become_single_threaded();
  std::unique_ptr<BatchMaker> maker;
  while (const std::shared_ptr<Job> job = begin_job()) {
    try {
      if (!maker) maker = store_->maker(thread, memory_);
      make(*job, *maker);
    } catch (...) {
      job->error = std::current_exception();
    }
    bool awaited = false;
    {
      Lock lock(mutex_);
      job->ready = true;
      awaited = !window_.empty() && window_.front() == job;
    }
    if (awaited) ready_.notify_one();  // without the mutex, for which next() would only wait
  }
}

void Pipeline::make(Job& job, BatchMaker& maker) {
  const Clock::time_point began = Clock::now();
  StageSeconds stages = {};
  if (job.sampled) {
    StageClock clock;
    job.made = maker.make(job.positions, view());
    stages = clock.seconds();
  } else {
    job.made = maker.make(job.positions, view());
  }
  const double seconds = seconds_between(began, Clock::now());
  Lock lock(mutex_);
  busy_ += seconds;
  for (std::size_t i = 0; i < kStages; ++i) sampled_[i] += stages[i];
  ++sums_.batches;
  sums_.examples += job.made.examples;
  sums_.bytes += job.made.bytes;
}

bool Pipeline::take(std::shared_ptr<Job>& job) {
  if (options_.threads == PipelineOptions::kInNext) return take_here(job);
  const Clock::time_point began = Clock::now();
  double waited = 0;
  {
    Lock lock(mutex_);
    ready_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS {
      return window_.empty() ? planned_all_ : window_.front()->ready;
    });
    waited = seconds_between(began, Clock::now());
    sums_.waited += waited;
    if (window_.empty() && plan_failure_) std::rethrow_exception(plan_failure_);
    if (window_.empty()) return false;
    job = std::move(window_.front());
    window_.pop_front();
  }
  room_.notify_one();
  store_->passed(++taken_);
  look_waited_ += waited;
  grow();
  return true;
}

bool Pipeline::take_here(std::shared_ptr<Job>& job) {
  job = std::make_shared<Job>();
  {
    Lock lock(mutex_);
    if (planned_all_ || !plan_next(*job)) return false;
  }
  const Clock::time_point began = Clock::now();
  if (!maker_) maker_ = store_->maker(0, memory_);
  make(*job, *maker_);
  store_->passed(++taken_);
  Lock lock(mutex_);
  sums_.waited += seconds_between(began, Clock::now());
  return true;
}

// The wait for the first batch says nothing: looks begin behind it.
void Pipeline::grow() {
  if (static_cast<int>(threads_.size()) >= most_threads_) return;
  const Clock::time_point now = Clock::now();
  const double seconds = look_ ? seconds_between(*look_, now) : 0;
  if (look_ && seconds < kLookSeconds) return;
  const double cpu = cpu_seconds();
  if (look_ && wants_thread(seconds, look_waited_, cpu - look_cpu_, core_budget())) {
    try {
      start_thread();
      first_threads_ = static_cast<int>(threads_.size());
    } catch (const OutOfMemory&) {
      most_threads_ = static_cast<int>(threads_.size());
    }
  }
  look_ = now;
  look_cpu_ = cpu;
  look_waited_ = 0;
}

bool Pipeline::next(Batch& batch) {
  if (failure_) std::rethrow_exception(failure_);
  require(order_.has_value(), "call start() before next()");
  try {
    for (;;) {
      std::shared_ptr<Job> job;
      if (!take(job)) {
        if (!is_dynamic()) store_->ended();  // else it has only come to the end of a piece
        Lock lock(mutex_);
        if (!ended_) ended_ = Clock::now();
        return false;
      }
      if (job->error) std::rethrow_exception(job->error);
      std::vector<Range> ranges = to_ranges(job->positions);
      if (job->made.examples == 0) {
        // Every example of it was damaged: there is nothing to learn, and nobody else shall try.
        commit(view().epoch, ranges, {});
        continue;
      }
      batch.data = batch.label = {};
      batch.others.clear();
      for (auto& [name, array] : job->made.arrays) {
        if (name == "data")
          batch.data = std::move(array);
        else if (name == "label")
          batch.label = std::move(array);
        else
          batch.others.emplace_back(name, std::move(array));
      }
      batch.examples = job->made.examples;
      batch.epoch = view().epoch;
      batch.positions = std::move(ranges);
      batch.note.clear();
      return true;
    }
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

bool Pipeline::take_over(bool wait) {
  require(order_.has_value(), "call start() before take_over()");
  const RangeSet left = options_.source->take_over(view().epoch, options_.order.batch, wait);
  if (left.empty()) {
    if (wait && is_dynamic()) store_->ended();
    return false;
  }
  const bool goes_on = is_drained();
  if (goes_on) {
    join();
  } else {
    stop();
  }
  store_->open(*order_, left, order_->spread());
  {
    Lock lock(mutex_);
    ended_.reset();
  }
  const Batches plan = order_->taken_over(left), guess = guess_after(left);
  if (goes_on) {
    store_->extend(*order_, plan, guess);
  } else {
    store_->begin(*order_, plan);
  }
  run(plan);
  return true;
}

// Pieces of a dynamic source come in the order of the epoch. So the next one is as far behind this one as this one is
// behind the last, and as long, if all workers go on as they did.
Batches Pipeline::guess_after(const RangeSet& piece) {
  if (!is_dynamic()) return {};
  const std::int64_t gap = pieces_end_ > 0 ? std::max<std::int64_t>(0, piece.ranges().front().begin - pieces_end_) : 0;
  pieces_end_ = std::max(pieces_end_, piece.ranges().back().end);
  const std::int64_t begin = std::min(size(), pieces_end_ + gap);
  RangeSet next;
  next.add({begin, std::min(size(), begin + piece.count())});
  return order_->taken_over(next);
}

void Pipeline::commit(std::int64_t epoch, const std::vector<Range>& positions, const std::string& note) {
  {
    Lock lock(mutex_);
    if (epoch == epoch_)
      for (const Range& range : positions) committed_.add(range);
  }
  options_.source->commit(epoch, positions, note);
}

LoaderTiming Pipeline::timing() const {
  Lock lock(mutex_);
  LoaderTiming timing = sums_;
  if (!order_) return timing;
  timing.seconds = seconds_between(started_, ended_.value_or(Clock::now()));
  timing.threads = running_;
  timing.prefetch = running_ == 0 ? 0 : static_cast<int>(window());
  const double sampled = std::accumulate(sampled_.begin(), sampled_.end(), 0.0);
  const auto stage = [&](Stage one) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    return sampled > 0 ? busy_ * sampled_[static_cast<std::size_t>(one)] / sampled : 0;
  };
  timing.fetch = stage(Stage::kFetch);
  timing.read = stage(Stage::kRead);
  timing.decode = stage(Stage::kDecode);
  timing.augment = stage(Stage::kAugment);
  timing.copy = stage(Stage::kCopy);
  timing.other = stage(Stage::kOther);
  return timing;
}

}  // namespace paceline::io
