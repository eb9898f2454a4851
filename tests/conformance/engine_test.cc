// What every engine promises, on every kind of device that is here.

#include <paceline/detail/declared.h>
#include <paceline/detail/device_runtime.h>
#include <paceline/engine_observer.h>
#include <paceline/error.h>
#include <paceline/mutex.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <thread>

namespace paceline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using testing::UnorderedElementsAre;

struct Subject {
  std::string name;
  std::unique_ptr<Engine> (*make)();
  Device device;
};

class EngineConformance : public testing::TestWithParam<Subject> {
 protected:
  std::unique_ptr<Engine> engine_ = GetParam().make();

  bool threaded() const { return GetParam().name.starts_with("threaded"); }
  TaskInfo task(const char* name, int priority = 0) const {
    return {.name = name, .device = GetParam().device, .priority = priority};
  }

  // Runs `work` as a kernel: at once on the CPU, in stream order on an accelerator.
  template <class Work>
  static Engine::Work kernel(Work work) {
    return [work](TaskContext& context) { context.stream->enqueue(work); };
  }
  static Engine::Work failing(const char* message) {
    return [message](TaskContext&) { throw IoError(message); };
  }
};

TEST_P(EngineConformance, ConflictingTasksRunInPushOrder) {
  const Variable variable = engine_->new_variable();
  std::vector<int> order;
  for (int i = 0; i < 200; ++i)
    engine_->push(task("append"), {}, {{variable}}, kernel([&order, i] { order.push_back(i); }));
  engine_->wait(variable);
  ASSERT_EQ(order.size(), 200u);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST_P(EngineConformance, ReadersSeeTheWriterBeforeThemAndNotTheOneAfter) {
  const Variable variable = engine_->new_variable();
  int value = 0;
  std::atomic<int> wrong = 0;
  for (int round = 1; round <= 50; ++round) {
    engine_->push(task("write"), {}, {{variable}}, kernel([&value, round] { value = round; }));
    for (int reader = 0; reader < 3; ++reader)
      engine_->push(task("read"), {{variable}}, {}, kernel([&value, &wrong, round] { wrong += value != round; }));
  }
  engine_->wait_unused(variable);
  EXPECT_EQ(wrong, 0);
}

TEST_P(EngineConformance, WaitCoversEarlierWritesAndWaitUnusedAlsoReads) {
  const Variable variable = engine_->new_variable();
  std::atomic<int> written = 0;
  std::atomic<int> read = 0;
  engine_->push(task("write"), {}, {{variable}}, kernel([&] { ++written; }));
  engine_->wait(variable);
  EXPECT_EQ(written, 1);
  for (int i = 0; i < 20; ++i) engine_->push(task("read"), {{variable}}, {}, kernel([&] { ++read; }));
  engine_->wait_unused(variable);
  EXPECT_EQ(read, 20);
}

TEST_P(EngineConformance, ATaskMayNameAVariableSeveralTimes) {
  const Variable a = engine_->new_variable();
  const Variable b = engine_->new_variable();
  int value = 1;
  engine_->push(task("double"), {{a, b, a, a}}, {{a, b, b, a}}, kernel([&] { value *= 2; }));
  engine_->push(task("double"), {{b, b}}, {{b, b}}, kernel([&] { value *= 2; }));
  engine_->wait(b);
  EXPECT_EQ(value, 4);
  EXPECT_EQ(a.version(), 1u);
  EXPECT_EQ(b.version(), 2u);
}

TEST_P(EngineConformance, ATaskMayHaveManyVariablesOrNone) {
  std::vector<Variable> many;
  for (int i = 0; i < 300; ++i) many.push_back(engine_->new_variable());
  std::atomic<int> runs = 0;
  for (int i = 0; i < 10; ++i) {
    engine_->push(task("read all"), many, {{many[static_cast<std::size_t>(i)]}}, kernel([&] { ++runs; }));
    engine_->push(task("write all"), {}, many, kernel([&] { ++runs; }));
    engine_->push(task("nothing"), {}, {}, kernel([&] { ++runs; }));
  }
  engine_->wait_all();
  EXPECT_EQ(runs, 30);
}

TEST_P(EngineConformance, KnowsWhatARunningTaskDeclared) {
  const Variable read = engine_->new_variable();
  const Variable written = engine_->new_variable();
  const Variable other = engine_->new_variable();
  std::vector<bool> undeclared;
  engine_->push(task("look"), {{read}}, {{written}}, [&](TaskContext&) {
    for (const Variable& variable : {read, written, other})
      undeclared.push_back(detail::task_that_did_not_declare(variable) != nullptr);
  });
  engine_->wait(written);
  EXPECT_EQ(undeclared, (std::vector<bool>{false, false, true}));
  EXPECT_EQ(detail::task_that_did_not_declare(other), nullptr) << "outside tasks everything is allowed";
}

TEST_P(EngineConformance, VersionCountsPushedWriters) {
  const Variable variable = engine_->new_variable();
  EXPECT_EQ(variable.version(), 0u);
  for (int i = 0; i < 3; ++i) {
    engine_->push(task("write"), {}, {{variable}}, [](TaskContext&) {});
    engine_->push(task("read"), {{variable}}, {}, [](TaskContext&) {});
  }
  EXPECT_EQ(variable.version(), 3u);
  engine_->wait_unused(variable);
  EXPECT_EQ(variable.version(), 3u);
}

TEST_P(EngineConformance, AVariableMayDieBeforeItsTasks) {
  std::atomic<int> runs = 0;
  for (int i = 0; i < 100; ++i) {
    const Variable variable = engine_->new_variable();
    for (int k = 0; k < 3; ++k) engine_->push(task("write"), {}, {{variable}}, kernel([&] { ++runs; }));
    engine_->push(task("read"), {{variable}}, {}, kernel([&] { ++runs; }));
  }
  engine_->wait_all();
  EXPECT_EQ(runs, 400);
}

TEST_P(EngineConformance, AVariableMayOutliveItsEngine) {
  const Variable variable = engine_->new_variable();
  engine_->push(task("write"), {}, {{variable}}, failing("poison stays with it"));
  engine_.reset();
  EXPECT_EQ(variable.version(), 1u);
}

TEST_P(EngineConformance, DestructionWaitsForUnfinishedTasks) {
  std::atomic<int> runs = 0;
  const Variable variable = engine_->new_variable();
  for (int i = 0; i < 100; ++i)
    engine_->push(task("slow"), {}, {{variable}}, kernel([&] {
                    std::this_thread::sleep_for(std::chrono::microseconds(50));
                    ++runs;
                  }));
  engine_.reset();
  EXPECT_EQ(runs, 100);
}

TEST_P(EngineConformance, ClosuresAreGoneWhenAWaitReturns) {
  const Variable variable = engine_->new_variable();
  const auto held = std::make_shared<int>(1);
  engine_->push(task("hold"), {}, {{variable}}, [held](TaskContext&) {});
  engine_->wait(variable);
  EXPECT_EQ(held.use_count(), 1);
}

// ---- failures

TEST_P(EngineConformance, AThrowingTaskIsNamedAtEveryWait) {
  const Variable variable = engine_->new_variable();
  engine_->push(task("load"), {}, {{variable}}, failing("disk gone"));
  for (int i = 0; i < 2; ++i)
    EXPECT_THAT([&] { engine_->wait(variable); }, ThrowsMessage<IoError>(std::string("[load] disk gone")));
  engine_->wait_unused(variable);
}

TEST_P(EngineConformance, TheKindOfErrorIsKept) {
  const auto thrown_as = [&](auto exception) {
    const Variable variable = engine_->new_variable();
    engine_->push(task("fail"), {}, {{variable}}, [exception](TaskContext&) { throw exception; });
    try {
      engine_->wait(variable);
    } catch (const Error& error) {
      return std::make_pair(std::string(typeid(error).name()), std::string(error.what()));
    }
    return std::make_pair(std::string(), std::string());
  };
  const auto same = [&](auto exception) {
    return thrown_as(exception) == std::make_pair(std::string(typeid(exception).name()), std::string("[fail] why"));
  };
  EXPECT_TRUE(same(Error("why")));
  EXPECT_TRUE(same(InvalidArgument("why")));
  EXPECT_TRUE(same(NotAvailable("why")));
  EXPECT_TRUE(same(OutOfMemory("why")));
  EXPECT_TRUE(same(DeviceError("why")));
  EXPECT_TRUE(same(NetworkError("why")));
  EXPECT_TRUE(same(Timeout("why")));
  EXPECT_TRUE(same(IoError("why")));
  EXPECT_TRUE(same(Corrupt("why")));
  const std::string plain = typeid(Error).name();
  EXPECT_EQ(thrown_as(std::runtime_error("why")), std::make_pair(plain, std::string("[fail] why")));
  EXPECT_EQ(thrown_as(7), std::make_pair(plain, std::string("[fail] threw something that is not a std::exception")));
  EXPECT_EQ(thrown_as(Error("[fail] why")), std::make_pair(plain, std::string("[fail] why"))) << "named once";
}

TEST_P(EngineConformance, ReadersOfPoisonAreSkippedAndPassItOn) {
  const Variable a = engine_->new_variable();
  const Variable b = engine_->new_variable();
  const Variable c = engine_->new_variable();
  bool ran = false;
  engine_->push(task("first"), {}, {{a}}, failing("bad"));
  engine_->push(task("second"), {{a}}, {{b}}, [&](TaskContext&) { ran = true; });
  engine_->push(task("third"), {{b}}, {{b, c}}, [&](TaskContext&) { ran = true; });
  for (const Variable& variable : {a, b, c})
    EXPECT_THAT([&] { engine_->wait(variable); }, ThrowsMessage<IoError>(std::string("[first] bad")));
  EXPECT_FALSE(ran);
}

TEST_P(EngineConformance, TheEarliestFailureWinsWhereTwoMeet) {
  const Variable a = engine_->new_variable();
  const Variable b = engine_->new_variable();
  const Variable c = engine_->new_variable();
  engine_->push(task("early"), {}, {{b}}, failing("bad"));
  engine_->push(task("late"), {}, {{a}}, failing("bad"));
  engine_->push(task("join"), {{a, b}}, {{c}}, [](TaskContext&) {});
  EXPECT_THAT([&] { engine_->wait(c); }, ThrowsMessage<IoError>(HasSubstr("early")));
}

TEST_P(EngineConformance, OverwritingClearsPoisonAndUpdatingDoesNot) {
  const Variable variable = engine_->new_variable();
  engine_->push(task("fail"), {}, {{variable}}, failing("bad"));
  engine_->push(task("update"), {{variable}}, {{variable}}, [](TaskContext&) {});
  EXPECT_THROW(engine_->wait(variable), IoError);
  engine_->push(task("overwrite"), {}, {{variable}}, [](TaskContext&) {});
  engine_->wait(variable);
}

TEST_P(EngineConformance, WaitAllThrowsTheFirstFailureThatNoWaitHasThrown) {
  const Variable a = engine_->new_variable();
  const Variable b = engine_->new_variable();
  engine_->push(task("one"), {}, {{a}}, failing("bad"));
  engine_->push(task("two"), {}, {}, failing("bad"));
  engine_->push(task("three"), {}, {{b}}, failing("bad"));
  EXPECT_THROW(engine_->wait(a), IoError);
  EXPECT_THAT([&] { engine_->wait_all(); }, ThrowsMessage<IoError>(HasSubstr("two")));
  engine_->wait_all();
  EXPECT_THROW(engine_->wait(b), IoError) << "poison stays";
}

TEST_P(EngineConformance, WaitAllThrowsAFailureAfterManyThatWaitsHaveThrown) {
  const Variable variable = engine_->new_variable();
  for (int i = 0; i < 1100; ++i) {
    engine_->push(task("seen"), {}, {{variable}}, failing("bad"));
    EXPECT_THROW(engine_->wait(variable), IoError);
  }
  engine_->push(task("unseen"), {}, {}, failing("bad"));
  EXPECT_THAT([&] { engine_->wait_all(); }, ThrowsMessage<IoError>(HasSubstr("unseen")));
}

TEST_P(EngineConformance, WrongArgumentsAreRefused) {
  const Variable variable = engine_->new_variable();
  const auto other = GetParam().make();
  const Variable foreign = other->new_variable();
  EXPECT_THROW(engine_->push(task("t"), {{Variable()}}, {}, [](TaskContext&) {}), InvalidArgument);
  EXPECT_THROW(engine_->push(task("t"), {{foreign}}, {}, [](TaskContext&) {}), InvalidArgument);
  EXPECT_THROW(engine_->push(task("t"), {{variable}}, {{foreign}}, [](TaskContext&) {}), InvalidArgument);
  EXPECT_THROW(engine_->wait(Variable()), InvalidArgument);
  EXPECT_THROW(engine_->push({.name = "t", .device = Device("sim:9")}, {}, {}, [](TaskContext&) {}), NotAvailable);
  engine_->wait_all();
}

TEST_P(EngineConformance, WaitingInsideATaskIsRefused) {
  const Variable a = engine_->new_variable();
  const Variable b = engine_->new_variable();
  engine_->push(task("waits"), {}, {{a}}, [&](TaskContext&) { engine_->wait(b); });
  engine_->push(task("waits for all"), {}, {{b}}, [&](TaskContext&) { engine_->wait_all(); });
  EXPECT_THROW(engine_->wait(a), InvalidArgument);
  EXPECT_THROW(engine_->wait(b), InvalidArgument);
}

// ---- asynchronous tasks

TEST_P(EngineConformance, AnAsynchronousTaskEndsWithItsCompletion) {
  const Variable variable = engine_->new_variable();
  int value = 0;
  std::vector<std::thread> threads;
  for (int i = 1; i <= 20; ++i) {
    engine_->push_async(task("later"), {{variable}}, {{variable}}, [&, i](TaskContext&, Completion completion) {
      threads.emplace_back([&value, i, completion = std::move(completion)]() mutable {
        std::this_thread::sleep_for(std::chrono::microseconds(i % 3 * 100));
        value = 10 * value % 1009 + i;
        completion.done();
      });
    });
  }
  engine_->wait(variable);
  int expected = 0;
  for (int i = 1; i <= 20; ++i) expected = 10 * expected % 1009 + i;
  EXPECT_EQ(value, expected);
  for (std::thread& thread : threads) thread.join();
}

TEST_P(EngineConformance, ACompletionMayRunInsideTheWork) {
  const Variable variable = engine_->new_variable();
  bool ran = false;
  engine_->push_async(task("at once"), {}, {{variable}},
                      [](TaskContext&, Completion completion) { completion.done(); });
  engine_->push(task("after"), {{variable}}, {{variable}}, kernel([&] { ran = true; }));
  engine_->wait(variable);
  EXPECT_TRUE(ran);
}

TEST_P(EngineConformance, FailedAndDroppedCompletionsPoison) {
  const Variable a = engine_->new_variable();
  const Variable b = engine_->new_variable();
  const Variable c = engine_->new_variable();
  engine_->push_async(task("pull"), {}, {{a}}, [](TaskContext&, Completion completion) {
    completion.fail(std::make_exception_ptr(Timeout("server 1 is silent")));
  });
  engine_->push_async(task("forget"), {}, {{b}}, [](TaskContext&, Completion) {});
  engine_->push_async(task("throw"), {}, {{c}}, [](TaskContext&, Completion) { throw Corrupt("bad bytes"); });
  EXPECT_THAT([&] { engine_->wait(a); }, ThrowsMessage<Timeout>(std::string("[pull] server 1 is silent")));
  EXPECT_THAT([&] { engine_->wait(b); }, ThrowsMessage<Error>(std::string("[forget] dropped its completion")));
  EXPECT_THAT([&] { engine_->wait(c); }, ThrowsMessage<Corrupt>(std::string("[throw] bad bytes")));
}

TEST_P(EngineConformance, ThrowingAfterHandingTheCompletionOnFailsOnce) {
  const Variable variable = engine_->new_variable();
  std::thread thread;
  engine_->push_async(task("both"), {}, {{variable}}, [&](TaskContext&, Completion completion) {
    thread = std::thread([completion = std::move(completion)]() mutable {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      completion.done();
    });
    throw Corrupt("after all");
  });
  EXPECT_THROW(engine_->wait(variable), Corrupt);
  thread.join();
  engine_->wait_all();
}

TEST_P(EngineConformance, ACompletionWorksOnce) {
  const Variable variable = engine_->new_variable();
  engine_->push_async(task("twice"), {}, {{variable}}, [](TaskContext&, Completion completion) {
    completion.done();
    EXPECT_THROW(completion.done(), InvalidArgument);
  });
  engine_->wait(variable);
}

// ---- threads

TEST_P(EngineConformance, SeveralThreadsMayPushCrossingTasks) {
  const std::vector<Variable> variables = {engine_->new_variable(), engine_->new_variable(), engine_->new_variable()};
  std::array<int, 3> values = {};
  const auto push_many = [&](std::uint32_t seed) {
    for (int i = 0; i < 500; ++i) {
      seed = seed * 1664525 + 1013904223;
      const std::size_t a = (seed >> 16) % 3;
      const std::size_t b = (a + 1 + (seed >> 20) % 2) % 3;
      engine_->push(task("both"), {{variables[a]}}, {{variables[a], variables[b]}}, kernel([&values, a, b] {
                      ++values[a];
                      ++values[b];
                    }));
    }
  };
  std::vector<std::thread> threads;
  for (std::uint32_t t = 0; t < 4; ++t) threads.emplace_back([&push_many, t] { push_many(t); });
  for (std::thread& thread : threads) thread.join();
  for (const Variable& variable : variables) engine_->wait(variable);
  EXPECT_EQ(values[0] + values[1] + values[2], 4 * 500 * 2);
}

TEST_P(EngineConformance, TasksMayPushTasks) {
  const Variable variable = engine_->new_variable();
  std::atomic<int> runs = 0;
  std::function<void(int)> grow = [&](int depth) {
    engine_->push(task("grow"), {{variable}}, {}, [&, depth](TaskContext&) {
      ++runs;
      if (depth > 0)
        for (int i = 0; i < 2; ++i) grow(depth - 1);
    });
  };
  grow(7);
  engine_->wait_all();
  EXPECT_EQ(runs, 255);
}

TEST_P(EngineConformance, SeveralThreadsMayWait) {
  const Variable variable = engine_->new_variable();
  int value = 0;
  for (int i = 0; i < 100; ++i) engine_->push(task("add"), {{variable}}, {{variable}}, kernel([&] { ++value; }));
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      engine_->wait(variable);
      EXPECT_EQ(value, 100);
      engine_->wait_all();
    });
  for (std::thread& thread : threads) thread.join();
}

// ---- observers

class Recorder : public EngineObserver {
 public:
  void on_start(const TaskEvent& event) override {
    const Lock lock(mutex_);
    EXPECT_TRUE(open_.insert({event.id, event.info.name}).second);
    ids_.push_back(event.id);
  }
  void on_finish(const TaskEvent& event) override {
    const Lock lock(mutex_);
    EXPECT_EQ(open_.erase(event.id), 1u);
    lines_.push_back(std::string(event.info.name) + (event.failed ? " failed" : ""));
  }
  std::vector<std::string> lines() {
    const Lock lock(mutex_);
    EXPECT_TRUE(open_.empty());
    return lines_;
  }
  std::vector<std::uint64_t> ids() {
    const Lock lock(mutex_);
    return ids_;
  }

 private:
  Mutex mutex_;
  std::map<std::uint64_t, std::string> open_;
  std::vector<std::string> lines_;
  std::vector<std::uint64_t> ids_;
};

TEST_P(EngineConformance, ObserversSeeEveryTaskFromThenOn) {
  const Variable variable = engine_->new_variable();
  engine_->push(task("before"), {}, {{variable}}, [](TaskContext&) {});
  engine_->wait(variable);
  const auto recorder = std::make_shared<Recorder>();
  engine_->add_observer(recorder);
  engine_->push(task("works"), {}, {{variable}}, [](TaskContext&) {});
  engine_->push_async(task("answers"), {{variable}}, {{variable}},
                      [](TaskContext&, Completion completion) { completion.done(); });
  engine_->push(task("throws"), {{variable}}, {{variable}}, failing("bad"));
  engine_->push(task("skipped"), {{variable}}, {{variable}}, [](TaskContext&) {});
  EXPECT_THROW(engine_->wait(variable), IoError);
  EXPECT_THAT(recorder->lines(), UnorderedElementsAre("works", "answers", "throws failed", "skipped failed"));
  EXPECT_THAT(recorder->ids(), ElementsAre(2, 3, 4, 5)) << "the first task of an engine has number 1";
}

std::unique_ptr<Engine> threaded() { return make_threaded_engine(); }
std::unique_ptr<Engine> threaded_with_two_lanes() { return make_threaded_engine({.cpu_lanes = 2}); }

INSTANTIATE_TEST_SUITE_P(Engines, EngineConformance,
                         testing::Values(Subject{"serial_cpu", make_serial_engine, Device("cpu")},
                                         Subject{"serial_sim", make_serial_engine, Device("sim:0")},
                                         Subject{"threaded_cpu", threaded, Device("cpu")},
                                         Subject{"threaded_two_lanes", threaded_with_two_lanes, Device("cpu:1")},
                                         Subject{"threaded_sim", threaded, Device("sim:1")}),
                         [](const auto& subject) { return subject.param.name; });

}  // namespace
}  // namespace paceline
