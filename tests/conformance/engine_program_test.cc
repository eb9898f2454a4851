// Random programs give the serial engine's result bit for bit: the memory, and what every wait throws.

#include <paceline/detail/device_runtime.h>
#include <paceline/detail/shuffled_engine.h>
#include <paceline/engine.h>
#include <paceline/error.h>

#include "device/callback_thread.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>

namespace paceline {
namespace {

constexpr int kPrograms = 1000;
constexpr int kProgramsPerEngine = 100;
constexpr std::size_t kBlocks = 6;
constexpr std::size_t kElements = 8;

using Block = std::array<std::uint64_t, kElements>;

struct Step {
  enum Kind { kCompute, kThrow, kAnswerLater, kFailLater, kPushFromTask, kWait, kWaitUnused, kWaitAll };
  Kind kind;
  std::vector<std::size_t> reads;
  std::vector<std::size_t> writes;
  std::uint64_t seed;
  int priority;
  std::size_t device;
  bool view;  // updates only a part of the blocks that it reads and writes
};

std::vector<Step> random_program(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t limit) { return static_cast<std::size_t>(random() % limit); };
  const auto some_blocks = [&](std::uint64_t most) {
    std::vector<std::size_t> blocks(below(most + 1));
    for (std::size_t& block : blocks) block = below(kBlocks);
    return blocks;
  };
  std::vector<Step> program(10 + below(50));
  for (Step& step : program) {
    constexpr Step::Kind kKinds[] = {Step::kCompute,     Step::kCompute,      Step::kCompute,   Step::kCompute,
                                     Step::kCompute,     Step::kCompute,      Step::kCompute,   Step::kCompute,
                                     Step::kAnswerLater, Step::kAnswerLater,  Step::kFailLater, Step::kThrow,
                                     Step::kWait,        Step::kPushFromTask, Step::kCompute,   Step::kCompute};
    step = {kKinds[below(16)], some_blocks(3), some_blocks(2), random(), static_cast<int>(below(5)) - 2,
            below(4),          false};
    if (step.kind == Step::kWait && below(4) == 0) step.kind = below(2) ? Step::kWaitUnused : Step::kWaitAll;
    if (below(3) == 0) {
      step.view = true;
      step.reads.insert(step.reads.end(), step.writes.begin(), step.writes.end());
    }
  }
  return program;
}

// What the task does to the memory; any other order of conflicting tasks gives other numbers.
void compute(std::vector<Block>& memory, const Step& step) {
  std::uint64_t hash = step.seed;
  for (const std::size_t block : step.reads)
    for (const std::uint64_t element : memory[block]) hash = (hash ^ element) * 0x9e3779b97f4a7c15u + (hash >> 29);
  std::vector<std::size_t> targets = step.writes;
  std::sort(targets.begin(), targets.end());
  targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
  for (const std::size_t block : targets)
    for (std::size_t i = 0; i < kElements; ++i) {
      if (step.view && i % 2 == 0) continue;
      memory[block][i] = step.view ? memory[block][i] * 3 + hash + i : hash + i;
    }
}

struct Outcome {
  std::vector<Block> memory;
  std::vector<std::string> waits;
  bool operator==(const Outcome&) const = default;
};

class Interpreter {
 public:
  Interpreter(Engine& engine, std::vector<Device> devices, detail::CallbackThread& helper)
      : engine_(engine), devices_(std::move(devices)), helper_(helper) {
    for (std::size_t i = 0; i < kBlocks; ++i) variables_.push_back(engine.new_variable());
  }

  Outcome run(const std::vector<Step>& program) {
    // One private block per step, for tasks that are pushed by tasks: their order among the others is not defined.
    memory_.resize(kBlocks + program.size());
    for (std::size_t i = 0; i < program.size(); ++i) {
      const Step& step = program[i];
      if (step.kind == Step::kWait || step.kind == Step::kWaitUnused) {
        wait_for_one(step);
      } else if (step.kind == Step::kWaitAll) {
        note("all", [&] { engine_.wait_all(); });
      } else {
        push(step, kBlocks + i);
      }
    }
    note("end", [&] { engine_.wait_all(); });
    for (const Variable& variable : variables_) note("block", [&] { engine_.wait(variable); });
    return {memory_, waits_};
  }

 private:
  template <class Wait>
  bool note(const std::string& what, Wait wait) {
    try {
      wait();
      waits_.push_back(what + ": good");
      return true;
    } catch (const Error& error) {
      waits_.push_back(what + ": " + typeid(error).name() + " " + error.what());
      return false;
    }
  }

  void wait_for_one(const Step& step) {
    const std::size_t block = step.seed % kBlocks;
    if (step.kind == Step::kWaitUnused) {
      engine_.wait_unused(variables_[block]);
      memory_[block][0] += 1;
    } else if (note("wait", [&] { engine_.wait(variables_[block]); })) {
      waits_.push_back(std::to_string(memory_[block][kElements - 1]));
    }
  }

  std::vector<Variable> named(const std::vector<std::size_t>& blocks) const {
    std::vector<Variable> variables;
    for (const std::size_t block : blocks) variables.push_back(variables_[block]);
    return variables;
  }

  void push(const Step& step, std::size_t own_block) {
    static constexpr const char* kNames[] = {"red", "green", "blue", "white"};
    const TaskInfo info{kNames[step.seed % 4], devices_[step.device % devices_.size()],
                        static_cast<Lane>(step.seed / 4 % 4), step.priority};
    const std::vector<Variable> reads = named(step.reads);
    const std::vector<Variable> writes = named(step.writes);
    switch (step.kind) {
      case Step::kThrow: engine_.push(info, reads, writes, [](TaskContext&) { throw Corrupt("thrown"); }); break;
      case Step::kAnswerLater:
      case Step::kFailLater:
        engine_.push_async(info, reads, writes, [this, &step](TaskContext& context, Completion completion) {
          const auto shared = std::make_shared<Completion>(std::move(completion));
          context.stream->enqueue([this, &step, shared] {
            if (step.kind == Step::kAnswerLater) compute(memory_, step);
            helper_.post([&step, shared] {
              if (step.kind == Step::kAnswerLater) {
                shared->done();
              } else {
                shared->fail(std::make_exception_ptr(NetworkError("failed later")));
              }
            });
          });
        });
        break;
      case Step::kPushFromTask:
        engine_.push(info, reads, writes, [this, &step, info, own_block](TaskContext& context) {
          const Variable own = engine_.new_variable();
          for (int i = 0; i < 2; ++i)
            engine_.push(info, {{own}}, {{own}}, [this, own_block, i](TaskContext& inner) {
              inner.stream->enqueue(
                  [this, own_block, i] { memory_[own_block][0] = 3 * memory_[own_block][0] + i + 1; });
            });
          context.stream->enqueue([this, &step] { compute(memory_, step); });
        });
        break;
      default:
        engine_.push(info, reads, writes, [this, &step](TaskContext& context) {
          context.stream->enqueue([this, &step] { compute(memory_, step); });
        });
    }
  }

  Engine& engine_;
  const std::vector<Device> devices_;
  detail::CallbackThread& helper_;
  std::vector<Variable> variables_;
  std::vector<Block> memory_;
  std::vector<std::string> waits_;
};

struct Setting {
  std::string name;
  EngineOptions options;
  std::vector<Device> devices;
  bool shuffled = false;
};

class EnginePrograms : public testing::TestWithParam<Setting> {};

TEST_P(EnginePrograms, GiveTheSerialEnginesResult) {
  const std::uint64_t first_seed = std::random_device{}();
  detail::CallbackThread helper("helper");
  const auto serial = make_serial_engine();
  for (std::uint64_t group = 0; group < kPrograms / kProgramsPerEngine; ++group) {
    const std::uint64_t schedule = GetParam().shuffled ? first_seed + group + 1 : 0;
    const auto threaded = detail::make_shuffled_engine(GetParam().options, schedule);
    for (std::uint64_t i = 0; i < kProgramsPerEngine; ++i) {
      const std::uint64_t seed = first_seed + group * kProgramsPerEngine + i;
      SCOPED_TRACE("seed " + std::to_string(seed) + ", schedule seed " + std::to_string(schedule));
      const std::vector<Step> program = random_program(seed);
      const Outcome expected = Interpreter(*serial, {Device("cpu")}, helper).run(program);
      const Outcome actual = Interpreter(*threaded, GetParam().devices, helper).run(program);
      ASSERT_EQ(actual.waits, expected.waits);
      ASSERT_EQ(actual.memory, expected.memory);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Engines, EnginePrograms,
    testing::Values(Setting{"cpu", {}, {Device("cpu")}},
                    Setting{"two_lanes", {.cpu_lanes = 2}, {Device("cpu"), Device("cpu:1")}},
                    Setting{"shuffled", {.cpu_lanes = 2}, {Device("cpu"), Device("cpu:1")}, true},
                    Setting{"shuffled_sim", {}, {Device("cpu"), Device("sim:0"), Device("sim:1")}, true},
                    Setting{"short_queue", {.queue_limit = 3}, {Device("cpu")}},
                    Setting{"sim", {}, {Device("sim:0"), Device("sim:1")}},
                    Setting{"mixed", {}, {Device("cpu"), Device("sim:0"), Device("cpu:1"), Device("sim:1")}}),
    [](const auto& setting) { return setting.param.name; });

}  // namespace
}  // namespace paceline
