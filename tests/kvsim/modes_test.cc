// Every mode of the simulator, and that a run is the same each time.
#include <gtest/gtest.h>
#include <paceline/error.h>

#include <cmath>
#include <limits>

#include "simulation.h"

namespace paceline::sim {
namespace {

Model model_of(const std::string& mode, int workers = 8) {
  Model model;
  model.mode = Spec::parse(mode);
  model.workers = workers;
  model.servers = 2;
  model.layers = {{0, 1, 1e6}};
  model.worker_link = model.server_link = {1e8, 1e8, 1e-5};
  model.latency_seconds = 1e-4;
  model.server_push = {1e-5, 1e-9};
  model.compute = TimeLaw::parse("lognormal:median=0.1,sigma=0.2");
  model.iterations = 50;
  return model;
}

TEST(Simulation, IsTheSameFromTheSameSeed) {
  for (const char* mode :
       {"local", "ring", "gossip", "gossip:steps=3", "dist_sync", "dist_sync:backup=2", "dist_async",
        "dist_async:bound=1", "dist_async:bound=1..4", "dist_local:steps=4", "dist_local:steps=4,averaging=elastic",
        "dist_local:steps=2,averaging=federated,fraction=0.5"}) {
    Model model = model_of(mode);
    const Result first = Simulation(model).run(), again = Simulation(model).run();
    EXPECT_EQ(first.simulated_seconds, again.simulated_seconds) << mode;
    EXPECT_EQ(first.delays.text(), again.delays.text()) << mode;
    EXPECT_EQ(first.events, again.events) << mode;
    model.seed = 2;
    EXPECT_NE(first.simulated_seconds, Simulation(model).run().simulated_seconds) << mode;
  }
}

TEST(Simulation, WorkersDrawTheSameTimesWhateverTheOthersDo) {
  Model model = model_of("local", 1);
  model.server_push = {};
  const Result alone = Simulation(model).run();
  model.mode = Spec::parse("ring");  // one worker has nobody to wait for
  EXPECT_NEAR(alone.simulated_seconds, Simulation(model).run().simulated_seconds, 1e-9);
  EXPECT_EQ(alone.waiting_share, 0);
}

TEST(Simulation, TheRingTakesTwiceTheWorkersLessOneMessages) {
  Model model = model_of("ring");
  model.compute = TimeLaw::constant(0.1);
  model.server_push = {};
  // Those of a kind leave one behind the other.
  const double message = 1e-5 + 1e6 / 8 / 1e8, latency = 1e-4;
  EXPECT_NEAR(8 / Simulation(model).run().steps_per_second, 0.1 + 14 * message + 2 * latency, 1e-9);
}

TEST(Simulation, AMeetingHidesBehindSteps) {
  Model model = model_of("gossip", 2);
  model.compute = TimeLaw::constant(0.1);
  const Result hidden = Simulation(model).run();
  EXPECT_NEAR(hidden.steps_per_second, 20, 1e-9);
  EXPECT_NEAR(hidden.waiting_share, 0, 1e-9);
  EXPECT_NEAR(hidden.bytes_per_second, 20 * 2e6, 1);
  // Where it takes longer than its steps it is what counts: there and back, and the work of both at both ends.
  model.worker_link = {1e6, 1e6, 1e-5};
  model.worker_push = {0.02, 0};
  model.worker_pull = {0.03, 0};
  model.iterations = 5000;
  const double meeting = 2 * (1 + 1e-5 + 1e-4 + 0.02 + 0.03);
  EXPECT_NEAR(Simulation(model).run().steps_per_second, 2 / meeting, 1e-3);
  model.mode = Spec::parse("gossip:steps=5");
  EXPECT_NEAR(Simulation(model).run().steps_per_second, 10 / meeting, 1e-2);
  model.mode = Spec::parse("gossip:steps=30");
  EXPECT_NEAR(Simulation(model).run().steps_per_second, 20, 1e-9);
}

TEST(Simulation, LocalStepsPayForOneExchange) {
  Model model = model_of("dist_sync", 1);
  model.compute = TimeLaw::constant(0.1);
  const double every = 1 / Simulation(model).run().steps_per_second;
  model.mode = Spec::parse("dist_local:steps=5");
  EXPECT_NEAR(1 / Simulation(model).run().steps_per_second, 0.1 + (every - 0.1) / 5, 1e-9);
}

TEST(Simulation, OneMessageTakesItsTime) {
  Model model = model_of("dist_async", 1);
  model.servers = 1;
  model.compute = TimeLaw::constant(0.1);
  // The link of the receiver fills while that of the sender empties.
  const double exchange = 2 * (1e-5 + 1e6 / 1e8 + 1e-4) + 1e-5 + 1e6 * 1e-9;
  EXPECT_NEAR(1 / Simulation(model).run().steps_per_second, 0.1 + exchange, 1e-9);
  model.mode = Spec::parse("dist_sync");
  EXPECT_NEAR(1 / Simulation(model).run().steps_per_second, 0.1 + exchange + 2e-4, 1e-9);
}

TEST(Simulation, UnderABoundEachMessageIsPulledWhenItsOwnPushWasTaken) {
  Model model = model_of("dist_async:bound=3", 1);
  model.servers = 1;
  model.slice_bytes = 5e5;
  model.compute = TimeLaw::constant(0.1);
  const double message = 1e-5 + 5e5 / 1e8, latency = 1e-4, applied = 1e-5 + 5e5 * 1e-9;
  // The first pull is answered while the second push is on its way.
  EXPECT_NEAR(1 / Simulation(model).run().steps_per_second, 0.1 + 3 * message + 4 * latency + applied, 1e-9);
  // On one line the first pull leaves behind the second push.
  model.one_line = true;
  EXPECT_NEAR(1 / Simulation(model).run().steps_per_second, 0.1 + 4 * message + 2 * latency + applied, 1e-9);
  model.one_line = false;
  model.pull_after_call = true;
  EXPECT_NEAR(1 / Simulation(model).run().steps_per_second, 0.1 + 4 * message + 4 * latency + applied, 1e-9);
}

TEST(Simulation, OnOneLineAcknowledgementsWaitForTheWeightsAheadOfThem) {
  Model model = model_of("dist_async:bound=1", 2);
  model.servers = 1;
  model.server_push = {};
  model.iterations = 2;
  model.warm_up = 0;
  const double compute = 0.1, message = 1e-5 + 1e6 / 1e8, latency = 1e-4;
  model.compute = TimeLaw::constant(compute);
  model.slow_workers = 1;
  model.slow_factor = 1 + 0.5 * message / compute;
  // The fourth step is the slow worker's second; its weights leave when those of the other have left.
  const double slow = 2 * compute * model.slow_factor + 2.5 * message + 4 * latency;
  model.one_line = true;
  const double with_line = Simulation(model).run().simulated_seconds;
  model.one_line = false;
  const double without = Simulation(model).run().simulated_seconds;
  EXPECT_NEAR(without, slow, 1e-9);
  EXPECT_NEAR(with_line, slow + 2 * latency, 1e-9);  // the way of acknowledgement and pull is no longer hidden
}

TEST(Simulation, AcknowledgementsAreHandledOneAfterTheOther) {
  constexpr double kLatency = 1e-3, kMean = 0.01;
  Model model = model_of("dist_async:bound=1", 1);
  model.compute = TimeLaw::constant(0.1);
  model.layers = {{0, 1, 2}};
  model.slice_bytes = 1;
  model.worker_link = model.server_link = {};
  model.server_push = model.server_pull = {};
  model.latency_seconds = kLatency;
  model.acknowledgement_seconds = kMean;
  model.iterations = 5000;
  EXPECT_NEAR(1 / Simulation(model).run().steps_per_second, 0.1 + 4 * kLatency + 2 * kMean, 0.02 * kMean);
}

TEST(Simulation, SlowLinksOfTheServersAreSharedByAll) {
  Model model = model_of("dist_async", 64);
  model.server_link.in_bytes_per_second = 1e7;
  const Result result = Simulation(model).run();
  EXPECT_NEAR(result.steps_per_second, 2e7 / 1e6, 0.2);
  EXPECT_GT(result.busiest_server_link, 0.98);
}

TEST(Simulation, ABackupRefusesWhatComesLate) {
  Model model = model_of("dist_sync:backup=1");
  model.slow_workers = 1;
  model.slow_factor = 10;
  const Result result = Simulation(model).run();
  EXPECT_GT(result.refused_share, 0.005);
  EXPECT_LT(result.refused_share, 0.03);
  model.mode = Spec::parse("dist_sync");
  const Result all = Simulation(model).run();
  EXPECT_GT(result.rounds_per_second, 5 * all.rounds_per_second);
  EXPECT_EQ(all.refused_share, 0);
}

TEST(Simulation, AFractionOfTheClientsMakesARound) {
  Model model = model_of("dist_local:steps=3,averaging=federated,fraction=0.25");
  model.compute = TimeLaw::constant(0.1);
  model.iterations = 90;
  const Result result = Simulation(model).run();
  EXPECT_NEAR(result.steps_per_second, 6 * result.rounds_per_second, 0.2 * result.rounds_per_second);
  EXPECT_NEAR(result.waiting_share, 0.78, 0.03);
}

TEST(Simulation, SharedCoresAreTheLimitOfAllProcesses) {
  Model model = model_of("dist_async", 16);
  model.worker_link = model.server_link = {};
  model.server_push = model.worker_pull = {0, 1e-8};
  model.shared_cores = 2;
  EXPECT_NEAR(Simulation(model).run().steps_per_second, 2 / (2 * 1e6 * 1e-8), 1);
}

TEST(Simulation, MeasuredTimesAreDrawnFromTheirOwnDistribution) {
  const TimeLaw law = TimeLaw::empirical({1, 1, 1, 5});
  EXPECT_EQ(law.mean(), 2);
  int fives = 0;
  for (std::uint64_t i = 0; i < 40000; ++i) fives += law.draw(Draws(3, 0, 0, i)) == 5;
  EXPECT_NEAR(fives, 10000, 400);
}

TEST(Simulation, LawsHaveTheirMeans) {
  for (const char* text :
       {"constant:seconds=2", "uniform:low=1,high=3", "exponential:mean=1,shift=1", "erlang:mean=2,k=4",
        "lognormal:median=2,sigma=0.5", "constant:seconds=1,straggle=0.1,factor=11"}) {
    const TimeLaw law = TimeLaw::parse(text);
    double sum = 0;
    for (std::uint64_t i = 0; i < 100000; ++i) sum += law.draw(Draws(7, 1, 2, i));
    EXPECT_NEAR(sum / 100000, law.mean(), 0.03) << text;
  }
}

TEST(Simulation, RefusesWhatMakesNoSense) {
  EXPECT_THROW(Simulation(model_of("dist_sinc")), InvalidArgument);
  EXPECT_THROW(Simulation(model_of("dist_sync:bound=2")), InvalidArgument);
  EXPECT_THROW(Simulation(model_of("dist_async:bound=4..2")), InvalidArgument);
  EXPECT_THROW(Simulation(model_of("dist_async:bound=-1")), InvalidArgument);
  EXPECT_THROW(Simulation(model_of("dist_sync:backup=8")), InvalidArgument);
  EXPECT_THROW(Simulation(model_of("dist_local:steps=0")), InvalidArgument);
  EXPECT_THROW(Simulation(model_of("gossip:steps=0")), InvalidArgument);
  EXPECT_THROW(Simulation(model_of("dist_local:averaging=sum")), InvalidArgument);
  EXPECT_THROW(TimeLaw::parse("normal:mean=1"), InvalidArgument);
  EXPECT_THROW(TimeLaw::parse("constant:second=1"), InvalidArgument);
  EXPECT_THROW(TimeLaw::parse("uniform:low=2,high=1"), InvalidArgument);
  EXPECT_THROW(TimeLaw::parse("empirical:file=/nonexistent"), IoError);
  Model model = model_of("dist_async");
  model.shares = {1};
  EXPECT_THROW(Simulation{model}, InvalidArgument);
}

TEST(Simulation, RefusesNumbersThatNoMachineHas) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity(), kNaN = std::numeric_limits<double>::quiet_NaN();
  const auto refuses = [](void (*set)(Model&, double), double number) {
    Model model = model_of("dist_async");
    set(model, number);
    EXPECT_THROW(Simulation{model}, InvalidArgument) << number;
  };
  for (const double number : {-1.0, kNaN, kInfinity}) {
    refuses([](Model& model, double x) { model.layers[0].bytes = x; }, number);
    refuses([](Model& model, double x) { model.worker_link.in_bytes_per_second = x; }, number);
    refuses([](Model& model, double x) { model.server_link.fixed_seconds = x; }, number);
    refuses([](Model& model, double x) { model.server_apply.seconds_per_byte = x; }, number);
    refuses([](Model& model, double x) { model.latency_seconds = x; }, number);
    refuses([](Model& model, double x) { model.slow_factor = x; }, number);
  }
  refuses([](Model& model, double x) { model.slice_bytes = x; }, 1e-6);
  refuses([](Model& model, double x) { model.servers = static_cast<int>(x); }, 2e9);
  refuses([](Model& model, double x) { model.server_threads = static_cast<int>(x); }, 2e9);
}

}  // namespace
}  // namespace paceline::sim
