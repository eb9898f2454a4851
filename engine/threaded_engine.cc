// Variables say which task may run (variable.h), pools run it (worker_pool.h), and this file joins the two: push, wait,
// and what happens when a task has run, has been issued to an accelerator, or is complete.

#include "environment.h"
#include "observers.h"
#include "progress.h"
#include "schedule.h"
#include "task.h"
#include "thread_role.h"
#include "worker_pool.h"

#include <paceline/cores.h>
#include <paceline/detail/at_exit.h>
#include <paceline/detail/shuffled_engine.h>
#include <paceline/error.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>

namespace paceline {
namespace {

using namespace detail;

constexpr std::size_t kKinds = 3;
constexpr std::size_t kDevices = 16;
constexpr std::size_t kLanes = 4;
constexpr const char* kLaneNames[kLanes] = {"compute", "copy in", "copy out", "network"};

class ThreadedEngine final : public Engine, private TaskRunner, private Completion::Target {
 public:
  ThreadedEngine(const EngineOptions& options, std::uint64_t schedule_seed)
      : options_(options),
        most_unnoticed_(static_cast<std::uint32_t>(std::clamp<std::int64_t>(options.queue_limit / 16, 1, 64))),
        schedule_(schedule_seed),
        progress_(options.queue_limit) {
    require(options.cpu_lanes > 0 && options.io_threads > 0 && options.queue_limit > 0,
            "an engine needs at least one CPU lane, one I/O thread and room for one task");
  }

  ~ThreadedEngine() override PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    progress_.wait_for_all();
    while (visitors_.load(std::memory_order_acquire) > 0) sched_yield();
    pools_.clear();
    failures_.report();
  }

  // Tasks that were not begun never will be; waits for the others, not for long.
  void rest() {
    constexpr int kMilliseconds = 5000;
    std::vector<WorkerPool*> pools;
    {
      const Lock lock(pools_mutex_);
      resting_ = true;
      for (const auto& pool : pools_) {
        pool->rest();
        pools.push_back(pool.get());
      }
    }
    // Without the lock: a task that is waited for may need a new pool.
    for (int i = 0; i < kMilliseconds; ++i) {
      if (std::none_of(pools.begin(), pools.end(), [](WorkerPool* pool) { return pool->is_running(); })) return;
      usleep(1000);
    }
  }

  Variable new_variable() override { return make_variable(number_); }

  void push(const TaskInfo& info, std::span<const Variable> reads, std::span<const Variable> writes,
            Work work) override {
    Task* task = make_task(Task::Kind::kWork, info, reads, writes);
    task->work = std::move(work);
    submit(task);
  }

  void push_async(const TaskInfo& info, std::span<const Variable> reads, std::span<const Variable> writes,
                  AsyncWork work) override {
    Task* task = make_task(Task::Kind::kAsyncWork, info, reads, writes);
    task->async_work = std::move(work);
    submit(task);
  }

  void wait(const Variable& variable) override {
    if (const FailurePointer poison = wait_for_turn(variable, {&variable, 1}, {})) throw_failure(*poison);
  }

  void wait_unused(const Variable& variable) override { wait_for_turn(variable, {}, {&variable, 1}); }

  void wait_all() override {
    require_outside_task(this);
    progress_.wait_for_all();
    if (const FailurePointer failure = failures_.take_first()) throw_failure(*failure);
  }

  void add_observer(std::shared_ptr<EngineObserver> observer) override { observers_.add(std::move(observer)); }

 private:
  // A thread of somebody else is inside the engine: it stays alive until the thread has left, though the last task may
  // be complete.
  class Visit {
   public:
    explicit Visit(ThreadedEngine& engine) : engine_(engine), role_(thread_role()), before_(role_) {
      engine_.visitors_.fetch_add(1, std::memory_order_relaxed);
      role_.never_held_back = true;
    }
    ~Visit() {
      role_ = before_;
      engine_.progress_.notice();
      engine_.visitors_.fetch_sub(1, std::memory_order_release);
    }
    Visit(const Visit&) = delete;
    Visit& operator=(const Visit&) = delete;

   private:
    ThreadedEngine& engine_;
    ThreadRole& role_;
    const ThreadRole before_;
  };

  // ---- push and wait

  Task* make_task(Task::Kind kind, const TaskInfo& info, std::span<const Variable> reads,
                  std::span<const Variable> writes) {
    if (!thread_role().never_held_back) progress_.hold_back();
    return Task::make(kind, info, &pool_of(info), number_, reads, writes);
  }

  // Enters the task into the queues of all its variables at once, so that two pushing threads agree about the order.
  void submit(Task* task) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    const std::span<Access> accesses = task->all_accesses();
    task->pending.store(task->access_count + 1, std::memory_order_relaxed);
    for (const Access& access : accesses) access.variable()->lock.lock();
    task->id = progress_.begin();
    if (schedule_.is_shuffled()) task->info.priority = schedule_.priority(task->id);
    std::uint32_t granted = 1;
    for (Access& access : accesses) {
      VariableState& variable = *access.variable();
      if (access.writes()) variable.bump_version();
      if (variable.enter(access)) ++granted;
    }
    for (const Access& access : accesses) access.variable()->lock.unlock();
    if (task->pending.fetch_sub(granted, std::memory_order_acq_rel) != granted) return;
    if (task->info.at_once && task->info.device.is_cpu()) {
      const Visit visit(*this);
      Worker self{thread_role().number};
      run_task(task, self);
    } else {
      task->pool->add(task);
    }
  }

  // Waits as a task with this one access would; the variable's poison.
  FailurePointer wait_for_turn(const Variable& variable, std::span<const Variable> reads,
                               std::span<const Variable> writes) {
    require(static_cast<bool>(variable), "an empty variable cannot be waited for");
    require_outside_task(this);
    VariableState& state = *variable.state();
    if (state.engine == number_) {
      const SpinGuard guard(state.lock);
      if (!state.first_waiting && state.may_run(!writes.empty(), DeviceKind::kCpu)) return state.poison;
    }
    Task* task = Task::make(Task::Kind::kWaitingThread, {"wait"}, nullptr, number_, reads, writes);
    Access& access = task->accesses[0];
    task->pending.store(1, std::memory_order_relaxed);
    bool entered;
    {
      const SpinGuard guard(state.lock);
      entered = state.enter(access);
    }
    if (!entered) progress_.wait_for_zero(task->pending);
    FailurePointer poison = state.poison;
    TaskList ready;
    leave(access, false, ready);
    Task::free(task);
    add_to_pools(ready);
    return poison;
  }

  WorkerPool& pool_of(const TaskInfo& info) {
    const auto kind = static_cast<std::size_t>(info.device.kind);
    const auto index = static_cast<std::size_t>(info.device.index);
    const auto lane = static_cast<std::size_t>(info.lane);
    if (index >= kDevices) throw NotAvailable("there is no device " + info.device.name());
    std::atomic<WorkerPool*>& known = pool_table_[(kind * kDevices + index) * kLanes + lane];
    WorkerPool* pool = known.load(std::memory_order_acquire);
    return pool ? *pool : make_pool(info, known);
  }

  WorkerPool& make_pool(const TaskInfo& info, std::atomic<WorkerPool*>& known) {
    DeviceRuntime& device = runtime(info.device);
    const bool io = info.device.is_cpu() && info.lane != Lane::kCompute;
    const Lock lock(pools_mutex_);
    if (WorkerPool* made = known.load(std::memory_order_acquire)) return *made;
    WorkerPool* pool = io ? io_pool_ : nullptr;
    if (!pool) {
      WorkerPool::Settings settings;
      settings.name = io ? "cpu io" : info.device.name() + " " + kLaneNames[static_cast<std::size_t>(info.lane)];
      settings.threads = !info.device.is_cpu() ? 1 : io ? options_.io_threads : options_.cpu_lanes;
      settings.team_size = info.device.is_cpu() && !io ? std::max(1, core_budget() / options_.cpu_lanes) : 1;
      settings.stream = device.create_stream(info.lane == Lane::kCompute ? 0 : 1);
      settings.first_worker = workers_ + 1;
      workers_ += settings.threads;
      pool = pools_.emplace_back(new WorkerPool(*this, std::move(settings))).get();
      if (resting_) pool->rest();
      if (io) io_pool_ = pool;
    }
    known.store(pool, std::memory_order_release);
    return *pool;
  }

  static void add_to_pools(TaskList& ready) {
    while (Task* task = ready.take()) task->pool->add(task);
  }

  // ---- run

  void run_task(Task* task, Worker& worker) override {
    for (const Access& access : task->all_accesses()) __builtin_prefetch(access.variable(), 1);
    if (schedule_.is_shuffled()) schedule_.delay(task->id);
    if (observers_.any()) observers_.on_start(task->id, task->info, worker.number);
    task->failure = poison_of_reads(*task);
    if (task->failure) {
      finish(task, worker.number);
    } else {
      if (!task->info.device.is_cpu()) wait_in_stream(*task);
      if (task->failure || call(task)) after_work(task, worker.number);
    }
    if (++worker.unnoticed >= most_unnoticed_) out_of_work(worker);
  }

  void out_of_work(Worker& worker) override {
    worker.unnoticed = 0;
    progress_.notice();
  }

  // The failure of the earliest task, so that the order of the reads does not matter.
  static FailurePointer poison_of_reads(Task& task) {
    FailurePointer first;
    const bool on_cpu = task.info.device.is_cpu();
    for (const Access& access : task.all_accesses()) {
      if (!access.reads()) continue;
      VariableState& variable = *access.variable();
      const FailurePointer poison = on_cpu ? variable.poison : variable.poison_in_flight();
      if (poison && (!first || poison->task < first->task)) first = poison;
    }
    return first;
  }

  void fail(Task& task, FailurePointer failure) {
    failures_.add(failure);
    task.failure = std::move(failure);
  }

  // Makes the task's stream wait for what the task depends on and is in flight in other streams.
  void wait_in_stream(Task& task) {
    Stream& stream = task.pool->stream();
    try {
      DeviceRuntime& device = runtime(task.info.device);
      for (Access& access : task.all_accesses())
        for (const std::shared_ptr<Event>& event : access.variable()->events_before(access, stream))
          device.wait(stream, *event);
    } catch (...) {
      fail(task, make_failure(task.info.name, task.id, std::current_exception()));
    }
  }

  // Runs the closure. False if the task is asynchronous and its completion is still to come; then the task must not be
  // touched any more.
  bool call(Task* task) {
    InsideTask inside(this, *task);
    TaskContext context{task->info.device, &task->pool->stream()};
    try {
      if (task->kind == Task::Kind::kWork) {
        task->work(context);
        inside.check();
        return true;
      }
      task->async_work(context, Completion(this, task));
      inside.check();
    } catch (...) {
      fail(*task, make_failure(task->info.name, task->id, std::current_exception()));
      if (task->kind == Task::Kind::kWork) return true;
    }
    return task->async_state.fetch_or(Task::kReturned, std::memory_order_acq_rel) & Task::kCompleted;
  }

  // From the Completion, on any thread, perhaps while the work is still running.
  void complete(void* asynchronous, std::exception_ptr error) override {
    const Visit visit(*this);
    Task* task = static_cast<Task*>(asynchronous);
    if (error) task->completed_with = make_failure(task->info.name, task->id, error);
    if (task->async_state.fetch_or(Task::kCompleted, std::memory_order_acq_rel) & Task::kReturned)
      after_work(task, thread_role().number);
  }

  void after_work(Task* task, int thread) {
    if (!task->failure && task->completed_with) fail(*task, std::move(task->completed_with));
    task->info.device.is_cpu() ? finish(task, thread) : issue(task, thread);
  }

  // ---- after the work

  // The task's work is in its stream: tasks of the same kind of device may follow, others must wait for completion.
  void issue(Task* task, int thread) {
    Stream& stream = task->pool->stream();
    DeviceRuntime& device = runtime(task->info.device);
    std::shared_ptr<Event> event;
    try {
      event = device.record(stream);
    } catch (...) {
      if (!task->failure) fail(*task, make_failure(task->info.name, task->id, std::current_exception()));
      outlast(stream, device);
      finish(task, thread);
      return;
    }
    TaskList ready;
    for (Access& access : task->all_accesses()) {
      VariableState& variable = *access.variable();
      Access* granted;
      {
        const SpinGuard guard(variable.lock);
        if (access.writes()) variable.poison = task->failure;
        variable.stop_running(access);
        variable.add_in_flight(access, stream, event);
        granted = variable.grant();
      }
      collect(granted, ready);
    }
    add_to_pools(ready);
    const auto done = [this, task](const std::exception_ptr& error) {
      const Visit visit(*this);
      finish_in_flight(task, error);
    };
    try {
      device.when_done(stream, done);
    } catch (...) {
      const std::exception_ptr error = std::current_exception();
      outlast(stream, device);
      done(error);
    }
  }

  // Nothing will tell when the work in the stream is done, and what it uses must not be given back before.
  static void outlast(Stream& stream, DeviceRuntime& device) {
    try {
      device.synchronize(stream);
    } catch (...) {
      // The task has failed already.
    }
  }

  // `error`: what the device reported for the work that the task issued.
  void finish_in_flight(Task* task, std::exception_ptr error) {
    const int thread = thread_role().number;
    const std::exception_ptr found = late_failure_of([task] { task->destroy_closure(); });
    if (!error) error = found;
    if (error && !task->failure) fail(*task, make_failure(task->info.name, task->id, error));
    before_finish(*task, thread);
    TaskList ready;
    for (Access& access : task->all_accesses()) leave(access, true, ready, error ? task->failure : nullptr);
    after_finish(task, ready, thread);
  }

  void finish(Task* task, int thread) {
    before_finish(*task, thread);
    TaskList ready;
    for (Access& access : task->all_accesses()) {
      if (access.writes()) {
        VariableState& variable = *access.variable();
        if (task->info.device.is_cpu()) {
          variable.poison = task->failure;
        } else {
          const SpinGuard guard(variable.lock);
          variable.poison = task->failure;
        }
      }
      leave(access, false, ready);
    }
    after_finish(task, ready, thread);
  }

  // Ends an access that is running or in flight; what is in flight may have failed since it was issued.
  void leave(Access& access, bool in_flight, TaskList& ready, const FailurePointer& late_failure = nullptr) {
    VariableState* variable = access.variable();
    Access* granted;
    bool last;
    {
      const SpinGuard guard(variable->lock);
      if (in_flight) {
        if (late_failure) variable->fail_in_flight(access, late_failure);
        variable->remove_in_flight(access);
      } else {
        variable->stop_running(access);
      }
      granted = variable->grant();
      last = variable->abandoned && variable->idle();
    }
    if (last) free_variable(variable);
    collect(granted, ready);
  }

  // Counts the accesses that may begin now; a task that has all of them is ready.
  void collect(Access* granted, TaskList& ready) {
    while (granted) {
      Task* task = granted->task();
      granted = granted->next;
      const bool waiting_thread = task->kind == Task::Kind::kWaitingThread;
      if (task->pending.fetch_sub(1, std::memory_order_acq_rel) != 1) continue;
      if (waiting_thread) {
        progress_.wake();
      } else {
        ready.add(task);
      }
    }
  }

  // What must have happened before a waiting thread can know that the task is complete.
  void before_finish(Task& task, int thread) {
    task.destroy_closure();
    if (observers_.any()) observers_.on_finish(task.id, task.info, thread, task.failure != nullptr);
  }

  void after_finish(Task* task, TaskList& ready, int thread) {
    Task::free(task);
    add_to_pools(ready);
    progress_.end(thread);
  }

  const EngineOptions options_;
  const std::uint32_t most_unnoticed_;
  const std::uint32_t number_ = new_engine_number();
  const Schedule schedule_;
  Observers observers_;
  FailureLog failures_;
  Progress progress_;
  std::atomic<int> visitors_ = 0;

  std::array<std::atomic<WorkerPool*>, kKinds* kDevices* kLanes> pool_table_ = {};
  Mutex pools_mutex_;
  std::vector<std::unique_ptr<WorkerPool>> pools_ PACELINE_GUARDED_BY(pools_mutex_);
  WorkerPool* io_pool_ PACELINE_GUARDED_BY(pools_mutex_) = nullptr;
  int workers_ PACELINE_GUARDED_BY(pools_mutex_) = 0;
  bool resting_ PACELINE_GUARDED_BY(pools_mutex_) = false;
};

}  // namespace

std::unique_ptr<Engine> detail::make_shuffled_engine(const EngineOptions& options, std::uint64_t seed) {
  return std::make_unique<ThreadedEngine>(options, seed);
}

std::unique_ptr<Engine> make_threaded_engine(const EngineOptions& options) {
  return detail::make_shuffled_engine(options, schedule_seed_wanted());
}

namespace {

// Never destroyed: a program may end while a task waits for a peer that is gone.
std::atomic<ThreadedEngine*> the_default_engine = nullptr;

}  // namespace

Engine& default_engine() {
  static Engine& engine = []() -> Engine& {
    if (serial_engine_wanted()) return *make_serial_engine().release();
    the_default_engine = new ThreadedEngine(EngineOptions{}, schedule_seed_wanted());
    detail::rest_before_exit();
    return *the_default_engine;
  }();
  return engine;
}

void detail::rest_before_exit() {
  static const pid_t process = getpid();
  std::atexit([] {
    // A task that ends the program cannot wait for itself, and a forked child has no engine threads.
    if (thread_role().running || getpid() != process) return;
    if (ThreadedEngine* engine = the_default_engine) engine->rest();
  });
}

}  // namespace paceline
