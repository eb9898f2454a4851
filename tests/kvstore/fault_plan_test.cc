// The text of fault plans, and what follows from a seed.

#include "faults/fault_plan.h"

#include <gmock/gmock.h>
#include <paceline/error.h>

#include <cmath>
#include <string>
#include <vector>

namespace paceline {
namespace {

using testing::HasSubstr;

Fault only_fault(const std::string& text) {
  const FaultPlan plan = FaultPlan::parse(text);
  EXPECT_EQ(plan.faults.size(), 1u) << text;
  return plan.faults.at(0);
}

std::string refusal(const std::string& text) {
  try {
    FaultPlan::parse(text);
    return "";
  } catch (const InvalidArgument& error) {
    return error.what();
  }
}

TEST(FaultPlan, ReadsLinesCommentsAndSeed) {
  const FaultPlan plan = FaultPlan::parse("# all of it\nseed 7 # a number\n\n drop 0.5; duplicate 0.25 ;\n cut\n");
  EXPECT_EQ(plan.seed, 7u);
  ASSERT_EQ(plan.faults.size(), 3u);
  EXPECT_EQ(plan.faults[0].kind, Fault::Kind::kDrop);
  EXPECT_EQ(plan.faults[0].amount, 0.5);
  EXPECT_EQ(plan.faults[1].text, "duplicate 0.25");
  EXPECT_EQ(plan.faults[2].kind, Fault::Kind::kCut);
  EXPECT_TRUE(FaultPlan::parse("").faults.empty());
}

TEST(FaultPlan, ReadsAmountsInTheirUnits) {
  EXPECT_EQ(only_fault("delay 20ms").amount, 0.02);
  EXPECT_EQ(only_fault("delay 1.5s").amount, 1.5);
  EXPECT_EQ(only_fault("slow_connect 2min").amount, 120);
  EXPECT_EQ(only_fault("throttle 2MB/s").amount, 2e6);
  EXPECT_EQ(only_fault("throttle 1.25e+08B/s").amount, 1.25e8);
  EXPECT_EQ(only_fault("throttle 3kB/s").amount, 3e3);
  EXPECT_EQ(only_fault("throttle 1GB/s").amount, 1e9);
}

TEST(FaultPlan, ALinkHasDirections) {
  const Fault one = only_fault("drop 1 worker*->server1");
  EXPECT_TRUE(one.concerns("worker0", "server1"));
  EXPECT_TRUE(one.concerns("worker12", "server1"));
  EXPECT_FALSE(one.concerns("server1", "worker0"));
  EXPECT_FALSE(one.concerns("worker0", "server10"));
  const Fault both = only_fault("cut worker0,scheduler");
  EXPECT_TRUE(both.concerns("worker0", "scheduler"));
  EXPECT_TRUE(both.concerns("scheduler", "worker0"));
  EXPECT_FALSE(both.concerns("worker0", "server0"));
  const Fault all_it_sends = only_fault("drop 1 server0 from 3s");
  EXPECT_TRUE(all_it_sends.concerns("server0", "worker7"));
  EXPECT_FALSE(all_it_sends.concerns("worker7", "server0"));
  EXPECT_TRUE(only_fault("drop 1 to step 3").concerns("worker0", "?"));
}

TEST(FaultPlan, ReadsWhen) {
  const Fault window = only_fault("drop 0.1 *->* from step 40 to step 80 of push_pull");
  EXPECT_TRUE(window.begin.in_steps);
  EXPECT_EQ(window.begin.value, 40);
  EXPECT_TRUE(window.end.has_value() && window.end->in_steps);
  EXPECT_EQ(window.of, MessageKind::kPushPull);
  const Fault cut = only_fault("cut at 5s for 500ms");
  EXPECT_FALSE(cut.begin.in_steps);
  EXPECT_EQ(cut.begin.value, 5);
  EXPECT_EQ(cut.seconds, 0.5);
  const Fault kill = only_fault("kill server1 at step 37 before sending reply");
  EXPECT_EQ(kill.from, "server1");
  EXPECT_EQ(kill.point, Fault::Point::kBeforeSending);
  EXPECT_EQ(kill.of, MessageKind::kReply);
  EXPECT_EQ(only_fault("kill worker0 on receiving reply").point, Fault::Point::kOnReceiving);
  EXPECT_EQ(only_fault("freeze worker0 after sending barrier for 3s").point, Fault::Point::kAfterSending);
}

TEST(FaultPlan, SaysWhatIsWrong) {
  const std::pair<const char*, const char*> mistakes[] = {
      {"dorp 0.1", "no fault is called 'dorp'; known: seed drop duplicate"},
      {"drop", "it ends where a probability is expected"},
      {"drop 1.5", "'1.5' is no probability from 0 to 1"},
      {"drop nan", "'nan' is no probability"},
      {"drop -0.1", "'-0.1' is no probability"},
      {"drop 0.1 wroker0", "'wroker0' is no process"},
      {"drop 0.1 worker0->serverX", "'serverX' is no process"},
      {"drop 0.1 worker0->server0 sometimes", "'sometimes' is not understood here"},
      {"drop 0.1 before sending reply", "'before' is not understood here"},
      {"delay 20", "'20' is not a time such as 20ms or 5s"},
      {"delay 20ms from", "it ends where a time"},
      {"throttle 5", "'5' is not a rate such as 2MB/s"},
      {"throttle 0MB/s", "write `cut`"},
      {"drop 0.1 from step x", "'x' is not the number of a step"},
      {"drop 0.1 from step 1 to 3s for 2s", "'to' does not fit here"},
      {"drop 0.1 from step 3 to step 3", "it ends before it begins"},
      {"cut from 2s to 500ms", "it ends before it begins"},
      {"drop 0.1 of nothing", "'nothing' is no kind of message"},
      {"freeze worker0 at step 3", "say how long"},
      {"kill", "it ends where a process is expected"},
      {"slow_connect 4s worker0->server0", "neither a link"},
      {"slow_connect 4s of reply", "nor a kind of message"},
      {"kill worker0 for 3s", "a kill has no duration"},
      {"kill worker0 before reply", "it wants 'sending KIND'"},
      {"kill worker0 of reply", "'of' is not understood here"},
      {"seed x", "a seed is one whole number"},
      {"seed 7 8", "a seed is one whole number"},
  };
  for (const auto& [text, expected] : mistakes) {
    EXPECT_THAT(refusal(text), HasSubstr(expected)) << text;
    EXPECT_THAT(refusal(text), HasSubstr("'" + std::string(text) + "'"));
  }
}

TEST(FaultPlan, NamesProcessesThatTheJobHas) {
  const auto refused = [](const std::string& text, int workers, int servers) {
    try {
      FaultPlan::parse(text).check_ranks(workers, servers);
      return std::string();
    } catch (const InvalidArgument& error) {
      return std::string(error.what());
    }
  };
  EXPECT_EQ(
      refused("kill worker2 at 3s; cut worker0,server1; drop 0.1 worker*->server*; freeze scheduler for 1s", 3, 2), "");
  EXPECT_THAT(refused("kill worker3 at 3s", 3, 2),
              HasSubstr("'kill worker3 at 3s': there is no worker3; the job has 3 workers, worker0 to worker2"));
  EXPECT_THAT(refused("cut worker0->server1", 3, 1), HasSubstr("there is no server1; the job has one server, server0"));
  EXPECT_THAT(refused("drop 0.1 server0", 3, 0), HasSubstr("there is no server0; the job has no servers"));
  EXPECT_THAT(refused("kill worker00", 3, 0), HasSubstr("there is no worker00"));
  EXPECT_THAT(refused("kill worker99999999999", 3, 0), HasSubstr("there is no worker99999999999"));
}

TEST(FaultPlan, AFateFollowsFromSeedFaultLinkAndNumber) {
  const double one = fate(7, 2, "worker0", "server1", 5);
  EXPECT_EQ(one, fate(7, 2, "worker0", "server1", 5));
  for (const double other :
       {fate(8, 2, "worker0", "server1", 5), fate(7, 3, "worker0", "server1", 5), fate(7, 2, "worker1", "server1", 5),
        fate(7, 2, "worker0", "server0", 5), fate(7, 2, "worker0", "server1", 6), fate(7, 2, "server1", "worker0", 5),
        fate(7, 2, "worker0", "server1", 5, 1)})
    EXPECT_NE(one, other);
}

// The numbers of a link are uniform: each tenth of [0, 1) holds a tenth of them, within five standard deviations.
TEST(FaultPlan, FatesAreUniform) {
  constexpr int kDraws = 100000, kBins = 10;
  std::vector<int> counts(kBins);
  for (int i = 0; i < kDraws; ++i) {
    const double value = fate(1, 0, "worker0", "server0", static_cast<std::uint64_t>(i));
    ASSERT_TRUE(value >= 0 && value < 1);
    ++counts[static_cast<std::size_t>(value * kBins)];
  }
  const double expected = double{kDraws} / kBins, deviation = std::sqrt(expected * (1 - 1.0 / kBins));
  for (const int count : counts) EXPECT_NEAR(count, expected, 5 * deviation);
}

}  // namespace
}  // namespace paceline
