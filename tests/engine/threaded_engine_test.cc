#include <paceline/cores.h>
#include <paceline/detail/device_runtime.h>
#include <paceline/detail/late_failure.h>
#include <paceline/detail/simulated_runtime.h>
#include <paceline/engine_observer.h>
#include <paceline/error.h>
#include <paceline/mutex.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <latch>
#include <numeric>
#include <random>
#include <semaphore>
#include <thread>

namespace paceline {
namespace {

using namespace std::chrono_literals;

// Keeps the one thread of a lane busy until it is opened.
class Gate {
 public:
  Gate(Engine& engine, Device device) {
    engine.push({"gate", device}, {}, {}, [latches = latches_](TaskContext&) {
      latches->closed.count_down();
      latches->opened.wait();
    });
    latches_->closed.wait();
  }
  ~Gate() { open(); }
  void open() {
    if (!std::exchange(open_, true)) latches_->opened.count_down();
  }

 private:
  struct Latches {
    std::latch closed{1};
    std::latch opened{1};
  };
  std::shared_ptr<Latches> latches_ = std::make_shared<Latches>();
  bool open_ = false;
};

// More variables than are put in order by comparing. They are sorted by digits of their addresses: few that lie close
// together take one pass, which leaves the result in the other buffer; many take two.
TEST(ThreadedEngine, ATaskMayUseThousandsOfVariables) {
  for (const int how_many : {600, 3000}) {
    constexpr int kRounds = 20;
    const unsigned seed = std::random_device{}();
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto engine = make_threaded_engine();
    std::vector<Variable> variables;
    for (int i = 0; i < how_many; ++i) variables.push_back(engine->new_variable());
    std::vector<int> runs(how_many, 0);
    const auto use = [&](unsigned number) {
      std::mt19937 random(seed + number);
      std::vector<int> mine(how_many);
      std::iota(mine.begin(), mine.end(), 0);
      for (int round = 0; round < kRounds; ++round) {
        std::shuffle(mine.begin(), mine.end(), random);
        // Some are read, some written, some both, some named twice.
        std::vector<Variable> reads, writes;
        for (int i = 0; i < how_many; ++i) {
          const Variable& variable = variables[static_cast<std::size_t>(mine[static_cast<std::size_t>(i)])];
          if (i % 3 != 0) reads.push_back(variable);
          if (i % 2 == 0) writes.push_back(variable);
          if (i % 7 == 0) writes.push_back(variable);
        }
        engine->push({"many"}, reads, writes, [&, mine](TaskContext&) {
          for (int i = 0; i < how_many; i += 2) ++runs[static_cast<std::size_t>(mine[static_cast<std::size_t>(i)])];
        });
      }
    };
    std::thread other([&] { use(1); });
    use(2);
    other.join();
    engine->wait_all();
    EXPECT_EQ(std::accumulate(runs.begin(), runs.end(), 0), 2 * kRounds * how_many / 2);
  }
}

TEST(ThreadedEngine, ALaneOfADeviceRunsOneTaskAtATime) {
  const auto engine = make_threaded_engine();
  std::atomic<int> inside = 0, most = 0;
  for (int i = 0; i < 20; ++i) {
    engine->push({"one of many", Device("sim:0")}, {}, {}, [&](TaskContext&) {
      most = std::max(most.load(), ++inside);
      std::this_thread::sleep_for(2ms);  // time for another to come in
      --inside;
    });
  }
  engine->wait_all();
  EXPECT_EQ(most, 1);
}

TEST(ThreadedEngine, RefusesWhatIsNotItsOwn) {
  const auto engine = make_threaded_engine(), other = make_threaded_engine();
  const Variable variable = other->new_variable();
  EXPECT_THROW(engine->wait(variable), InvalidArgument);
  EXPECT_THROW(engine->push({"foreign"}, {}, {{variable}}, [](TaskContext&) {}), InvalidArgument);
  engine->push({"here", Device("sim:0")}, {}, {}, [](TaskContext&) {});
  for (const char* device : {"cpu:16", "cuda:16", "sim:16"})
    EXPECT_THROW(engine->push({"nowhere", Device(device)}, {}, {}, [](TaskContext&) {}), NotAvailable) << device;
  other->wait(variable);
}

TEST(ThreadedEngine, SaysAtItsEndWhatFailedWithoutAnybodyWaiting) {
  for (const bool waited : {true, false}) {
    testing::internal::CaptureStderr();
    {
      const auto engine = make_threaded_engine();
      engine->push({"fail"}, {}, {}, [](TaskContext&) { throw Error("the disk is gone"); });
      if (waited) {
        EXPECT_THROW(engine->wait_all(), Error);
      }
    }
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(log.find("the disk is gone") == std::string::npos, waited) << log;
  }
}

TEST(ThreadedEngine, RunsUrgentTasksFirstAndEqualOnesInPushOrder) {
  for (const char* device : {"cpu", "sim:0"}) {
    const auto engine = make_threaded_engine();
    std::vector<int> order;
    {
      Gate gate(*engine, Device(device));
      const int priorities[] = {0, -1, 0, 5, 0, -1, 5, 100, 0};
      for (int i = 0; i < 9; ++i)
        engine->push({"note", Device(device), Lane::kCompute, priorities[i]}, {}, {},
                     [&order, i](TaskContext&) { order.push_back(i); });
      gate.open();
      engine->wait_all();
    }
    EXPECT_THAT(order, testing::ElementsAre(7, 3, 6, 0, 2, 4, 8, 1, 5)) << device;
  }
}

TEST(ThreadedEngine, ATaskThatBecomesReadyLateKeepsItsPlace) {
  const auto engine = make_threaded_engine({.io_threads = 1});
  const Variable late = engine->new_variable();
  std::vector<int> order;
  std::latch go{1};
  std::latch gone{1};
  const TaskInfo io{"io", Device("cpu"), Lane::kCommunication};
  {
    Gate gate(*engine, Device("cpu"));
    engine->push(io, {}, {{late}}, [&](TaskContext&) { go.wait(); });
    engine->push({"first"}, {{late}}, {}, [&](TaskContext&) { order.push_back(1); });
    engine->push({"second"}, {}, {}, [&](TaskContext&) { order.push_back(2); });
    engine->push(io, {}, {}, [&](TaskContext&) { gone.count_down(); });
    go.count_down();
    gone.wait();
    gate.open();
    engine->wait_all();
  }
  EXPECT_THAT(order, testing::ElementsAre(1, 2));
}

TEST(ThreadedEngine, IndependentTasksOfTwoLanesRunAtOnce) {
  const auto engine = make_threaded_engine({.cpu_lanes = 2});
  for (int round = 0; round < 50; ++round) {
    std::latch both{2};
    for (int i = 0; i < 2; ++i) engine->push({"meet"}, {}, {}, [&](TaskContext&) { both.arrive_and_wait(); });
    engine->wait_all();
  }
}

TEST(ThreadedEngine, LanesOfTheCpuDoNotBlockEachOther) {
  const auto engine = make_threaded_engine();
  Gate gate(*engine, Device("cpu"));
  const Variable variable = engine->new_variable();
  engine->push({"io", Device("cpu"), Lane::kCopyIn}, {}, {{variable}}, [](TaskContext&) {});
  engine->wait(variable);
  engine->push({"other device", Device("cpu:1")}, {}, {{variable}}, [](TaskContext&) {});
  engine->wait(variable);
}

TEST(ThreadedEngine, HoldsBackProducersOutsideAtTheLimit) {
  const auto engine = make_threaded_engine({.queue_limit = 8});
  std::atomic<int> pushed = 0;
  std::atomic<int> ran = 0;
  std::thread producer;
  {
    Gate gate(*engine, Device("cpu"));
    producer = std::thread([&] {
      for (int i = 0; i < 100; ++i) {
        engine->push({"count"}, {}, {}, [&](TaskContext&) { ++ran; });
        ++pushed;
      }
    });
    while (pushed < 7) std::this_thread::yield();
    std::this_thread::sleep_for(20ms);
    EXPECT_EQ(pushed, 7) << "the gate is the eighth";
  }
  producer.join();
  engine->wait_all();
  EXPECT_EQ(ran, 100);
}

TEST(ThreadedEngine, DoesNotHoldBackItsOwnThreadsNorThoseThatSaidSo) {
  const auto engine = make_threaded_engine({.queue_limit = 2});
  std::atomic<int> ran = 0;
  {
    Gate gate(*engine, Device("cpu"));
    engine->push({"push many", Device("cpu"), Lane::kCopyIn}, {}, {}, [&](TaskContext&) {
      for (int i = 0; i < 20; ++i) engine->push({"count"}, {}, {}, [&](TaskContext&) { ++ran; });
    });
    std::thread transport([&] {
      never_hold_back_this_thread();
      for (int i = 0; i < 20; ++i) engine->push({"count"}, {}, {}, [&](TaskContext&) { ++ran; });
    });
    transport.join();
  }
  engine->wait_all();
  EXPECT_EQ(ran, 40);
}

TEST(ThreadedEngine, RefusesOptionsThatCannotWork) {
  EXPECT_THROW(make_threaded_engine({.cpu_lanes = 0}), InvalidArgument);
  EXPECT_THROW(make_threaded_engine({.io_threads = 0}), InvalidArgument);
  EXPECT_THROW(make_threaded_engine({.queue_limit = 0}), InvalidArgument);
}

TEST(ThreadedEngine, ComputeThreadsHaveATeamAndIoThreadsNone) {
  const auto engine = make_threaded_engine();
  int compute = 0;
  int io = 0;
  engine->push({"compute"}, {}, {}, [&](TaskContext&) { compute = team_size(); });
  engine->push({"io", Device("cpu"), Lane::kCopyOut}, {}, {}, [&](TaskContext&) { io = team_size(); });
  engine->wait_all();
  set_team_size(core_budget());
  EXPECT_EQ(compute, team_size());
  EXPECT_EQ(io, 1);
}

TEST(ThreadedEngine, SleepsWhileThereIsNothingToDo) {
  const auto engine = make_threaded_engine({.cpu_lanes = 2});
  for (const Lane lane : {Lane::kCompute, Lane::kCopyIn})
    for (int i = 0; i < 20; ++i) engine->push({"work", Device("cpu"), lane}, {}, {}, [](TaskContext&) {});
  engine->wait_all();
  // They look for more work first, on a busy machine for long: every other program has its turn in between.
  const auto sleep = [] {
    struct rusage before {
    }, after{};
    ::getrusage(RUSAGE_SELF, &before);
    std::this_thread::sleep_for(200ms);
    ::getrusage(RUSAGE_SELF, &after);
    const auto milliseconds = [](const timeval& from, const timeval& to) {
      return (to.tv_sec - from.tv_sec) * 1000 + (to.tv_usec - from.tv_usec) / 1000;
    };
    const long turns = after.ru_nvcsw + after.ru_nivcsw - before.ru_nvcsw - before.ru_nivcsw;
    return milliseconds(before.ru_utime, after.ru_utime) + milliseconds(before.ru_stime, after.ru_stime) < 20 &&
           turns < 20;
  };
  bool asleep = false;
  for (int i = 0; i < 50 && !asleep; ++i) asleep = sleep();
  EXPECT_TRUE(asleep);
}

TEST(ThreadedEngine, TheDefaultEngineIsOne) {
  EXPECT_EQ(&default_engine(), &default_engine());
  const Variable variable = default_engine().new_variable();
  int value = 0;
  default_engine().push({"set"}, {}, {{variable}}, [&](TaskContext&) { value = 1; });
  default_engine().wait(variable);
  EXPECT_EQ(value, 1);
}

// ---- two phases

TEST(ThreadedEngine, DependentTasksOfAnAcceleratorAreAllIssuedBeforeTheFirstCompletes) {
  constexpr int kTasks = 100;
  const auto engine = make_threaded_engine();
  const Variable variable = engine->new_variable();
  const std::int64_t waits = detail::simulated_host_waits();
  std::latch all_issued{kTasks};
  std::atomic<bool> first_done = false;
  std::uint32_t value = 0;
  for (std::uint32_t i = 0; i < kTasks; ++i)
    engine->push({"step", Device("sim:0")}, {{variable}}, {{variable}}, [&, i](TaskContext& context) {
      EXPECT_FALSE(first_done);
      context.stream->enqueue([&, i] {
        if (i == 0) {
          all_issued.wait();
          first_done = true;
        }
        value = 3 * value + i;
      });
      all_issued.count_down();
    });
  engine->wait(variable);
  std::uint32_t expected = 0;
  for (std::uint32_t i = 0; i < kTasks; ++i) expected = 3 * expected + i;
  EXPECT_EQ(value, expected);
  EXPECT_EQ(detail::simulated_host_waits(), waits);
}

TEST(ThreadedEngine, DependentTasksOfOtherStreamsAndDevicesAreIssuedToo) {
  const auto engine = make_threaded_engine();
  const Variable variable = engine->new_variable();
  const std::int64_t waits = detail::simulated_host_waits();
  constexpr int kTasks = 24;
  std::latch all_issued{kTasks};
  std::vector<int> order;
  for (int i = 0; i < kTasks; ++i) {
    const TaskInfo info{"step", Device(DeviceKind::kSim, i % 3), static_cast<Lane>(i % 4)};
    engine->push(info, {{variable}}, {{variable}}, [&, i](TaskContext& context) {
      context.stream->enqueue([&, i] {
        if (i == 0) all_issued.wait();
        order.push_back(i);
      });
      all_issued.count_down();
    });
  }
  engine->wait(variable);
  ASSERT_EQ(order.size(), static_cast<std::size_t>(kTasks));
  EXPECT_TRUE(std::is_sorted(order.begin(), order.end()));
  EXPECT_EQ(detail::simulated_host_waits(), waits);
}

TEST(ThreadedEngine, ReadersInTwoStreamsRunAtOnce) {
  const auto engine = make_threaded_engine();
  const Variable variable = engine->new_variable();
  std::latch issued{1};
  std::binary_semaphore second_runs{0};
  bool met = false;
  engine->push({"first", Device("sim:0")}, {{variable}}, {},
               [&](TaskContext& context) { context.stream->enqueue([&] { met = second_runs.try_acquire_for(60s); }); });
  engine->push({"next of its lane", Device("sim:0")}, {}, {}, [&](TaskContext&) { issued.count_down(); });
  issued.wait();
  engine->push({"second", Device("sim:0"), Lane::kCopyOut}, {{variable}}, {},
               [&](TaskContext& context) { context.stream->enqueue([&] { second_runs.release(); }); });
  engine->wait_all();
  EXPECT_TRUE(met);
}

TEST(ThreadedEngine, TasksOfTheHostWaitUntilTheDeviceIsDone) {
  const auto engine = make_threaded_engine();
  const Variable variable = engine->new_variable();
  std::latch release{1};
  int value = 0;
  engine->push({"device", Device("sim:0")}, {}, {{variable}}, [&](TaskContext& context) {
    context.stream->enqueue([&] {
      release.wait();
      value = 1;
    });
  });
  int seen = -1;
  engine->push({"host"}, {{variable}}, {}, [&](TaskContext&) { seen = value; });
  release.count_down();
  engine->wait_unused(variable);
  EXPECT_EQ(seen, 1);
}

TEST(ThreadedEngine, WorkThatFailsOnItsDeviceNamesItsTaskAndLeavesOtherDevicesAlone) {
  const auto engine = make_threaded_engine();
  const Variable before = engine->new_variable(), faulty = engine->new_variable(), other = engine->new_variable();
  const TaskInfo on_device{"right", Device("sim:3")};
  engine->push(on_device, {}, {{before}}, [](TaskContext& context) { context.stream->enqueue([] {}); });
  engine->wait(before);
  std::latch issued{1};
  engine->push({"broken kernel", Device("sim:3")}, {}, {{faulty}}, [&](TaskContext& context) {
    context.stream->enqueue([&] {
      issued.wait();
      detail::break_simulated_device(3);
    });
  });
  // Issued before the fault shows, and what comes afterwards.
  engine->push({"follower", Device("sim:3")}, {{faulty}}, {{before}}, [&](TaskContext& context) {
    context.stream->enqueue([] {});
    issued.count_down();
  });
  int host_tasks = 0;
  engine->push({"host"}, {{faulty}}, {}, [&](TaskContext&) { ++host_tasks; });
  engine->push({"elsewhere", Device("sim:2")}, {}, {{other}},
               [](TaskContext& context) { context.stream->enqueue([] {}); });
  const auto message_at = [&](const Variable& variable) -> std::string {
    try {
      engine->wait(variable);
    } catch (const DeviceError& error) {
      return error.what();
    }
    return "no DeviceError";
  };
  EXPECT_EQ(message_at(faulty), "[broken kernel] sim:3 was told to break down");
  EXPECT_EQ(message_at(before), "[follower] sim:3 was told to break down");
  engine->wait_unused(faulty);
  EXPECT_EQ(host_tasks, 0);
  engine->wait(other);
  engine->push(on_device, {}, {{before}}, [](TaskContext&) {});
  EXPECT_EQ(message_at(before), "[right] sim:3 was told to break down");
  engine->wait_all();  // nothing is left that nobody has seen
  detail::break_simulated_device(3, false);
  engine->push(on_device, {}, std::array{before, faulty}, [](TaskContext&) {});
  engine->wait(before);
  engine->wait(faulty);
}

TEST(ThreadedEngine, AFailureOfWhatHasBeenOverwrittenDoesNotPoison) {
  const auto engine = make_threaded_engine();
  const Variable variable = engine->new_variable();
  std::latch overwritten{1};
  engine->push({"broken kernel", Device("sim:3")}, {}, {{variable}}, [&](TaskContext& context) {
    context.stream->enqueue([&] {
      overwritten.wait();
      detail::break_simulated_device(3);
    });
  });
  const TaskInfo elsewhere{"overwrite", Device("sim:2")};
  engine->push(elsewhere, {}, {{variable}}, [](TaskContext& context) { context.stream->enqueue([] {}); });
  // It reads the variable, so the one before it is issued.
  engine->push(elsewhere, {{variable}}, {}, [&](TaskContext&) { overwritten.count_down(); });
  engine->wait(variable);
  EXPECT_THROW(engine->wait_all(), DeviceError);
  detail::break_simulated_device(3, false);
}

// Nothing can be recorded behind it, but it is in the stream.
TEST(ThreadedEngine, WhatIssuedWorkUsesIsKeptWhereItsEndCannotBeRecorded) {
  const auto engine = make_threaded_engine();
  const Variable variable = engine->new_variable();
  std::atomic<bool> done = false;
  engine->push({"kernel", Device("sim:3")}, {}, {{variable}}, [&](TaskContext& context) {
    context.stream->enqueue([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      done = true;
    });
    detail::break_simulated_device(3);
  });
  EXPECT_THROW(engine->wait(variable), DeviceError);
  EXPECT_TRUE(done);
  detail::break_simulated_device(3, false);
}

TEST(ThreadedEngine, CopiesGoThroughDevicesInOrder) {
  const auto engine = make_threaded_engine();
  detail::DeviceRuntime& device = detail::runtime(Device("sim:2"));
  const std::int64_t in_use = detail::simulated_bytes_in_use();
  constexpr std::size_t kBytes = 4096;
  const Variable source = engine->new_variable();
  const Variable on_device = engine->new_variable();
  const Variable back = engine->new_variable();
  std::vector<unsigned char> from(kBytes);
  std::vector<unsigned char> to(kBytes);
  void* memory = nullptr;
  for (int round = 1; round <= 20; ++round) {
    const auto value = static_cast<unsigned char>(round);
    engine->push({"fill"}, {}, {{source}}, [&, value](TaskContext&) { from.assign(kBytes, value); });
    engine->push({"in", Device("sim:2"), Lane::kCopyIn}, {{source}}, {{on_device}}, [&](TaskContext& context) {
      memory = device.allocate(kBytes, detail::MemoryKind::kNormal, context.stream);
      device.copy(memory, from.data(), kBytes, detail::CopyKind::kHostToDevice, *context.stream);
    });
    engine->push({"out", Device("sim:2"), Lane::kCopyOut}, {{on_device}}, {{back, on_device}},
                 [&](TaskContext& context) {
                   device.copy(to.data(), memory, kBytes, detail::CopyKind::kDeviceToHost, *context.stream);
                   device.release(memory, kBytes, detail::MemoryKind::kNormal, context.stream);
                 });
    engine->wait(back);
    EXPECT_EQ(to, from) << "round " << round;
    EXPECT_EQ(to[kBytes - 1], value);
  }
  EXPECT_EQ(detail::simulated_bytes_in_use(), in_use);
}

// The closure is destroyed when the device is done.
TEST(ThreadedEngine, AClosureMayFailItsTaskWhenItsDeviceIsDone) {
  struct Fails {
    bool issued = false;
    Fails() = default;
    Fails(Fails&& other) noexcept : issued(std::exchange(other.issued, false)) {}
    ~Fails() {
      if (issued) detail::fail_late(std::make_exception_ptr(IoError("wrong")));
    }
  };
  for (const auto& engine : {make_serial_engine(), make_threaded_engine()}) {
    const Variable written = engine->new_variable(), behind = engine->new_variable();
    bool ran = false;
    engine->push({"late", Device("sim:0")}, {}, {{written}},
                 [fails = Fails()](TaskContext&) mutable { fails.issued = true; });
    engine->push({"host"}, {{written}}, {{behind}}, [&](TaskContext&) { ran = true; });
    EXPECT_THAT([&] { engine->wait(behind); }, testing::ThrowsMessage<IoError>("[late] wrong"));
    EXPECT_FALSE(ran);
    EXPECT_THROW(engine->wait(written), IoError);
    engine->push({"overwrite"}, {}, {{written}}, [](TaskContext&) {});
    engine->wait(written);
    engine->wait_all();
  }
}

TEST(Engines, ACompletionThatFailsWithoutAnErrorFailsAllTheSame) {
  for (const auto& engine : {make_serial_engine(), make_threaded_engine()}) {
    const Variable variable = engine->new_variable();
    engine->push_async({"silent"}, {}, {{variable}},
                       [](TaskContext&, Completion completion) { completion.fail(nullptr); });
    EXPECT_THAT([&] { engine->wait(variable); }, testing::ThrowsMessage<Error>(testing::HasSubstr("without saying")));
  }
}

// ---- the serial engine

class ThrowsOnce final : public EngineObserver {
 public:
  void on_start(const TaskEvent&) override {
    if (!std::exchange(thrown_, true)) throw Error("planted");
  }
  void on_finish(const TaskEvent&) override {}

 private:
  bool thrown_ = false;
};

TEST(SerialEngine, GoesOnAfterAnObserverThatThrows) {
  const auto engine = make_serial_engine();
  engine->add_observer(std::make_shared<ThrowsOnce>());
  EXPECT_THROW(engine->push({"observed"}, {}, {}, [](TaskContext&) {}), Error);
  std::promise<void> waited;
  std::thread other([&] {
    engine->wait_all();
    waited.set_value();
  });
  ASSERT_EQ(waited.get_future().wait_for(60s), std::future_status::ready);
  other.join();
  bool ran = false;
  engine->push({"next"}, {}, {}, [&](TaskContext&) { ran = true; });
  EXPECT_TRUE(ran);
}

// For ThreadSanitizer.
TEST(SerialEngine, OneThreadMayWaitWhileAnotherPushes) {
  constexpr int kTasks = 1000;
  const auto engine = make_serial_engine();
  const Variable variable = engine->new_variable();
  std::thread other([&] {
    for (int i = 0; i < kTasks; ++i)
      engine->push({"fail"}, {}, {{variable}}, [](TaskContext&) { throw Error("planted"); });
  });
  int failed = 0;
  while (failed < kTasks) {
    try {
      engine->wait(variable);
    } catch (const Error&) {
      ++failed;
    }
  }
  other.join();
  try {
    engine->wait_all();     // or the engine would log those that no wait has met
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): there may be none
  }
}

// ---- the end of the program

std::atomic<bool> ending = false, torn_down = false;

// What a library destroys at the end, and tasks use.
struct Library {
  ~Library() {
    torn_down = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
  }
};

// NOLINTBEGIN(concurrency-mt-unsafe): to end a program amid tasks is what is tested
// For the engine to rest, not for it to give up waiting, which takes five seconds.
constexpr unsigned kSecondsToEnd = 4;

[[noreturn]] void end_amid_tasks(bool from_a_task) {
  static const Library library;
  Engine& engine = default_engine();
  const Variable variable = engine.new_variable();
  for (int i = 0; i < 1000; ++i) {
    engine.push({"use the library"}, {}, {}, [from_a_task, i](TaskContext&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (from_a_task && i == 20) {
        alarm(kSecondsToEnd);
        std::exit(5);
      }
      if (torn_down && !from_a_task) std::_Exit(1);
    });
  }
  if (from_a_task) engine.wait_all();
  alarm(kSecondsToEnd);
  std::exit(4);
}

// A lane that is new when the engine rests gets its threads, and they begin nothing.
[[noreturn]] void end_amid_a_task_that_needs_another_lane() {
  static const Library library;
  static std::latch started{1};
  Engine& engine = default_engine();
  std::atexit([] { ending = true; });
  engine.push({"needs another lane"}, {}, {}, [&engine](TaskContext&) {
    started.count_down();
    while (!ending) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));  // the engine is told to rest meanwhile
    engine.push({"in another lane", {}, Lane::kCommunication}, {}, {}, [](TaskContext&) {
      for (int i = 0; i < 100; ++i) {
        if (torn_down) std::_Exit(1);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  });
  started.wait();
  alarm(kSecondsToEnd);
  std::exit(4);
}

// A child that was forked amid a task has that task's state and none of the engine's threads: it must not wait for
// them.
[[noreturn]] void fork_amid_a_task() {
  Engine& engine = default_engine();
  Gate gate(engine, Device("cpu"));
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSecondsToEnd);
    std::exit(6);
  }
  int status = 0;
  waitpid(child, &status, 0);
  gate.open();
  engine.wait_all();
  std::exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

// NOLINTEND(concurrency-mt-unsafe)

TEST(EndOfTheProgram, AForkedChildDoesNotWaitForItsParentsTasks) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(fork_amid_a_task(), testing::ExitedWithCode(6), "");
}

TEST(EndOfTheProgram, DoesNotWaitForATaskThatNeedsAnotherLane) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(end_amid_a_task_that_needs_another_lane(), testing::ExitedWithCode(4), "");
}

TEST(EndOfTheProgram, NoTaskRunsOnceLibrariesAreTornDown) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(end_amid_tasks(false), testing::ExitedWithCode(4), "");
  EXPECT_EXIT(end_amid_tasks(true), testing::ExitedWithCode(5), "");
}

}  // namespace
}  // namespace paceline
