// Runs each task inside push(), in push order: the slow, obvious twin of the threaded engine.

#include "failure.h"
#include "observers.h"
#include "thread_role.h"
#include "variable.h"

#include <paceline/error.h>

#include <algorithm>
#include <deque>
#include <map>

namespace paceline {
namespace {

using detail::FailurePointer;

class SerialEngine final : public Engine, private Completion::Target {
 public:
  ~SerialEngine() override {
    wait_until_idle();
    failures_.report();
  }

  Variable new_variable() override { return detail::make_variable(number_); }

  void push(const TaskInfo& info, std::span<const Variable> reads, std::span<const Variable> writes,
            Work work) override {
    add(info, reads, writes, [work = std::move(work)](TaskContext& context, Completion completion) mutable {
      work(context);
      completion.done();
    });
  }

  void push_async(const TaskInfo& info, std::span<const Variable> reads, std::span<const Variable> writes,
                  AsyncWork work) override {
    add(info, reads, writes, std::move(work));
  }

  void wait(const Variable& variable) override {
    require(static_cast<bool>(variable), "an empty variable cannot be waited for");
    FailurePointer failure;
    wait_until_idle([&] { failure = variable.state()->poison; });
    if (failure) detail::throw_failure(*failure);
  }

  void wait_unused(const Variable&) override { wait_until_idle(); }

  void wait_all() override {
    wait_until_idle();
    if (const FailurePointer failure = failures_.take_first()) detail::throw_failure(*failure);
  }

  void add_observer(std::shared_ptr<EngineObserver> observer) override { observers_.add(std::move(observer)); }

 private:
  struct Task {
    TaskInfo info;
    std::vector<Variable> reads;
    std::vector<Variable> writes;
    AsyncWork work;
    std::uint64_t id = 0;
    bool completed = false;
    FailurePointer completed_with;

    bool declares(const detail::VariableState* variable) const {
      const auto same = [variable](const Variable& declared) { return declared.state() == variable; };
      return std::any_of(reads.begin(), reads.end(), same) || std::any_of(writes.begin(), writes.end(), same);
    }
    std::vector<detail::Declaration> declarations() const {
      std::vector<detail::Declaration> all;
      for (const Variable& variable : writes) all.push_back({variable.state(), true});
      for (const Variable& variable : reads)
        if (std::find(writes.begin(), writes.end(), variable) == writes.end()) all.push_back({variable.state(), false});
      return all;
    }
  };

  void add(const TaskInfo& info, std::span<const Variable> reads, std::span<const Variable> writes, AsyncWork work) {
    detail::runtime(info.device);
    for (const auto variables : {reads, writes})
      for (const Variable& variable : variables)
        require(variable && variable.state()->engine == number_, "[", info.name, "] was given ",
                variable ? "a variable of another engine" : "an empty variable");
    {
      const Lock lock(mutex_);
      tasks_.push_back(Task{info,
                            {reads.begin(), reads.end()},
                            {writes.begin(), writes.end()},
                            std::move(work),
                            ++pushed_,
                            false,
                            nullptr});
      for (std::size_t i = 0; i < writes.size(); ++i) {
        const auto same = [&](const Variable& earlier) { return earlier == writes[i]; };
        if (std::none_of(writes.begin(), writes.begin() + static_cast<std::ptrdiff_t>(i), same))
          ++writes[i].state()->version;
      }
      // A task that pushes, and threads beside it, leave the work to the one that is running.
      if (running_) return;
      running_ = true;
    }
    run_all();
  }

  void run_all() {
    std::exception_ptr thrown;  // by an observer: the tasks behind run all the same
    for (;;) {
      Task* task;
      {
        const Lock lock(mutex_);
        if (tasks_.empty()) {
          running_ = false;
          changed_.notify_all();
          break;
        }
        task = &tasks_.front();
      }
      try {
        run(*task);
      } catch (...) {
        if (!thrown) thrown = std::current_exception();
      }
      task->work.reset();
      const Lock lock(mutex_);
      tasks_.pop_front();
    }
    if (thrown) std::rethrow_exception(thrown);
  }

  void run(Task& task) {
    if (observers_.any()) observers_.on_start(task.id, task.info, 0);
    FailurePointer failure;
    for (const Variable& variable : task.reads)
      if (const FailurePointer& poison = variable.state()->poison; poison && (!failure || poison->task < failure->task))
        failure = poison;
    if (!failure) {
      failure = call(task);
      const std::exception_ptr found = detail::late_failure_of([&task] { task.work.reset(); });
      if (found && !failure) failure = detail::make_failure(task.info.name, task.id, found);
      if (failure) failures_.add(failure);
    }
    for (const Variable& variable : task.writes) variable.state()->poison = failure;
    if (observers_.any()) observers_.on_finish(task.id, task.info, 0, failure != nullptr);
  }

  // What went wrong, or null.
  FailurePointer call(Task& task) {
    detail::InsideTask inside(this, task, true);
    detail::Stream* stream = nullptr;
    const auto failed = [&task] { return detail::make_failure(task.info.name, task.id, std::current_exception()); };
    FailurePointer thrown;
    try {
      stream = &stream_of(task.info);
      TaskContext context{task.info.device, stream};
      task.work(context, Completion(this, &task));
      inside.check();
    } catch (...) {
      thrown = failed();
      if (!stream) return thrown;
    }
    {
      const Lock lock(mutex_);
      changed_.wait(mutex_, [&] { return task.completed; });
    }
    try {
      detail::runtime(task.info.device).synchronize(*stream);
    } catch (...) {
      if (!thrown) thrown = failed();
    }
    return thrown ? thrown : task.completed_with;
  }

  void complete(void* asynchronous, std::exception_ptr error) override {
    auto& task = *static_cast<Task*>(asynchronous);
    // Here and not later: the caller may still hold parts of the exception.
    if (error) task.completed_with = detail::make_failure(task.info.name, task.id, error);
    const Lock lock(mutex_);
    task.completed = true;
    changed_.notify_all();
  }

  detail::Stream& stream_of(const TaskInfo& info) {
    auto& stream = streams_[{info.device, info.lane}];
    if (!stream) stream = detail::runtime(info.device).create_stream(0);
    return *stream;
  }

  void wait_until_idle() {
    wait_until_idle([] {});
  }
  // Calls look() before another task may begin.
  template <class Look>
  void wait_until_idle(const Look& look) {
    detail::require_outside_task(this);
    const Lock lock(mutex_);
    changed_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return !running_; });
    look();
  }

  const std::uint32_t number_ = detail::new_engine_number();
  detail::Observers observers_;
  detail::FailureLog failures_;
  std::map<std::pair<Device, Lane>, std::unique_ptr<detail::Stream>> streams_;  // used by the running thread only

  Mutex mutex_;
  CondVar changed_;
  std::deque<Task> tasks_ PACELINE_GUARDED_BY(mutex_);
  std::uint64_t pushed_ PACELINE_GUARDED_BY(mutex_) = 0;
  bool running_ PACELINE_GUARDED_BY(mutex_) = false;
};

}  // namespace

std::unique_ptr<Engine> make_serial_engine() { return std::make_unique<SerialEngine>(); }

}  // namespace paceline
