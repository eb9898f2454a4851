// What the gradients of a round make together, in every mode that has rounds of gradients: exactly their sum, or their
// mean.
#include <gtest/gtest.h>
#include <paceline/aggregate.h>
#include <paceline/error.h>

#include <algorithm>
#include <thread>

#include "one_key.h"
#include "row_support.h"

namespace paceline::test {
namespace {

constexpr std::int64_t kRows = 900, kWidth = 3;  // several tiles, slices and blocks

struct PushedRound {
  std::vector<std::vector<float>> gradients;  // by worker
  std::vector<std::int64_t> examples;
};

PushedRound random_round(int workers, bool alike) {
  PushedRound round;
  for (int worker = 0; worker < workers; ++worker) {
    std::mt19937 random(static_cast<unsigned>(worker) + 1);
    round.gradients.push_back(random_values(random, kRows * kWidth));
    round.examples.push_back(alike ? 6 : 1 + worker % 4);
  }
  return round;
}

// In rank order, each operation rounded to float32.
std::vector<float> together(const PushedRound& round, bool sums) {
  const auto workers = static_cast<std::int64_t>(round.gradients.size());
  const bool alike = std::count(round.examples.begin(), round.examples.end(), round.examples.front()) == workers;
  std::int64_t total = 0;
  for (const std::int64_t examples : round.examples) total += examples;
  std::vector<float> result(kRows * kWidth, 0);
  for (std::size_t i = 0; i < result.size(); ++i) {
    for (std::size_t worker = 0; worker < round.gradients.size(); ++worker)
      result[i] += round.gradients[worker][i] * (sums || alike ? 1.0f : static_cast<float>(round.examples[worker]));
    if (!sums) result[i] /= static_cast<float>(alike ? workers : total);
  }
  return result;
}

// The key, and the table where the mode holds tables, after one round of `assign`: the same at every worker.
std::vector<float> after(const PushedRound& round, const ClusterOptions& options, bool rows) {
  ClusterInProcess cluster(options);
  std::vector<std::vector<float>> found(round.gradients.size());
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    const auto place = static_cast<std::size_t>(worker);
    const NDArray gradient = rows_of(round.gradients[place], kWidth, engine);
    const NDArray key = NDArray::zeros(Shape{kRows, kWidth}, DType::kFloat32, {}, engine);
    store.init({{"w", key}});
    const TableSpec table = table_of(kRows, kWidth, "zeros");
    if (rows) store.init_table(table);
    store.set_optimizer(optim::Assign{});
    store.push_pull({{"w", gradient}}, {{"w", key}}, round.examples[place]);
    if (rows) store.push_rows({{"table", ids_of(all_rows(table), engine), gradient}}, round.examples[place]);
    store.step_end();
    found[place] = key.to_vector<float>();
    if (rows) {
      EXPECT_EQ(pull(store, table, all_rows(table), engine), found[place]);
    }
  });
  for (const auto& other : found) EXPECT_EQ(other, found.front());
  return found.front();
}

struct RoundsMode {
  std::string name;
  int workers;
  std::vector<std::string> hosts = {};
  bool servers() const { return name.starts_with("dist_"); }
  ClusterOptions options(const std::string& more) const {
    return {.mode = name + more, .workers = workers, .servers = servers() ? 2 : 0, .serial = false, .hosts = hosts};
  }
};

TEST(Aggregate, SumsAndMeansAreThoseInRankOrder) {
  for (const RoundsMode& mode :
       {RoundsMode{"dist_sync", 3}, RoundsMode{"dist_sync", 4}, RoundsMode{"ring", 2}, RoundsMode{"ring", 3}}) {
    for (const bool alike : {true, false}) {
      SCOPED_TRACE(str(mode.name, " ", mode.workers, alike ? " alike" : ""));
      const PushedRound round = random_round(mode.workers, alike);
      EXPECT_EQ(after(round, mode.options(":aggregate=sum"), mode.servers()), together(round, true));
      EXPECT_EQ(after(round, mode.options(":aggregate=mean"), mode.servers()), together(round, false));
      EXPECT_EQ(after(round, mode.options(""), mode.servers()), together(round, false));
    }
  }
}

// Seven shares of 1/7 do not make one.
TEST(Aggregate, SevenWorkersThatPushEighteenGetEighteen) {
  PushedRound round;
  for (int worker = 0; worker < 7; ++worker) {
    round.gradients.emplace_back(kRows * kWidth, static_cast<float>(worker < 2 ? 4 : 2));
    round.examples.push_back(1);
  }
  for (const RoundsMode& mode :
       {RoundsMode{"dist_sync", 7}, RoundsMode{"ring", 7}, RoundsMode{"ring", 7, {"a", "b", "a", "c", "b", "a", "a"}}})
    EXPECT_EQ(after(round, mode.options(":aggregate=sum"), mode.servers()), std::vector<float>(kRows * kWidth, 18))
        << mode.name;
}

// A mean that is a whole number is that number, over hosts, too.
TEST(Aggregate, AMeanOfEqualCountsIsTheSumDividedOnce) {
  PushedRound round;
  for (int worker = 0; worker < 3; ++worker) {
    round.gradients.emplace_back(kRows * kWidth, static_cast<float>(worker == 0 ? 13 : 1));
    round.examples.push_back(5);
  }
  for (const RoundsMode& mode :
       {RoundsMode{"dist_sync", 3}, RoundsMode{"ring", 3}, RoundsMode{"ring", 3, {"a", "a", "b"}}})
    EXPECT_EQ(after(round, mode.options(""), mode.servers()), std::vector<float>(kRows * kWidth, 5)) << mode.name;
}

TEST(Aggregate, WithBackupsTheSumIsOverThoseThatContributed) {
  for (const bool sums : {true, false}) {
    ClusterInProcess cluster(
        {.mode = str("dist_sync:backup=1,aggregate=", sums ? "sum" : "mean"), .workers = 3, .servers = 1});
    const std::vector<NDArray> weights = start(cluster, {0}, optim::Assign{});
    for (int worker = 0; worker < 3; ++worker) cluster.worker(worker).push("w", array_of({1}, cluster.engine(worker)));
    for (int worker = 0; worker < 3; ++worker) {
      const NDArray& weight = weights[static_cast<std::size_t>(worker)];
      cluster.worker(worker).pull("w", weight);
      EXPECT_EQ(weight.item<double>(), sums ? 2 : 1);
    }
    EXPECT_EQ(cluster.worker(0).report().refused, 1);
  }
}

TEST(Aggregate, RowsThatAWorkerLacksCountAsZeros) {
  for (const bool sums : {true, false}) {
    ClusterInProcess cluster(
        {.mode = str("dist_sync:aggregate=", sums ? "sum" : "mean"), .workers = 3, .serial = false});
    const TableSpec table = table_of(40, 1, "zeros");
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      store.init_table(table);
      store.set_optimizer(optim::Assign{});
      // Row 0 of all, row 1 of two, of which one says it twice, row 2 of one.
      const std::vector<std::pair<Ids, std::vector<float>>> pushes{
          {{0}, {3}}, {{1, 0, 1}, {3, 3, 3}}, {{1, 2, 0}, {3, 3, 3}}};
      const auto& [ids, values] = pushes[static_cast<std::size_t>(worker)];
      store.push_rows({{"table", ids_of(ids, engine), rows_of(values, 1, engine)}});
      store.step_end();
      EXPECT_EQ(pull(store, table, {0, 1, 2, 3}, engine),
                sums ? (std::vector<float>{9, 9, 3, 0}) : (std::vector<float>{3, 3, 1, 0}));
    });
  }
}

TEST(Aggregate, StatisticsAreAveragedUnderSums) {
  for (const RoundsMode& mode :
       {RoundsMode{"dist_sync", 3}, RoundsMode{"ring", 3}, RoundsMode{"ring", 3, {"a", "a", "b"}}}) {
    SCOPED_TRACE(mode.name);
    ClusterInProcess cluster(mode.options(":aggregate=sum"));
    cluster.run([&](int worker, KVStore& store) {
      const NDArray mean = array_of({0}, cluster.engine(worker));
      store.init({{.key = "mean", .value = mean, .average = true}});
      store.set_optimizer(optim::SGD{});
      store.push_pull({{"mean", array_of({3.0 * worker}, cluster.engine(worker))}}, {{"mean", mean}});
      store.step_end();
      EXPECT_EQ(mean.item<double>(), 3);
    });
  }
}

// Codecs encode what each worker pushes; one of two rounds keeps the rest of its own gradient under both.
TEST(Aggregate, EncodedGradientsAreSummedToo) {
  const PushedRound round = random_round(3, true);
  for (const std::string codec : {"bf16", "2bit,threshold=0.5", "power_sgd,rank=3", "power_sgd,rank=3,rounds=1"}) {
    SCOPED_TRACE(codec);
    const auto result = [&](const std::string& aggregate) {
      return after(round,
                   RoundsMode{"dist_sync", 3}.options(":pull=none,aggregate=" + aggregate + ",compression=" + codec),
                   false);
    };
    const std::vector<float> sum = result("sum"), mean = result("mean");
    for (std::size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], 3 * mean[i], 2e-6 * (1 + std::abs(sum[i]))) << i;
    EXPECT_NE(sum, std::vector<float>(sum.size(), 0));
  }
}

TEST(Aggregate, InOneProcessGradientsOfDevicesAreSummedUnlessTheModeSaysMean) {
  for (const std::string mode : {"local", "device"}) {
    for (const auto& [more, expected] :
         {std::pair("", 8), std::pair(":aggregate=sum", 8), std::pair(":aggregate=mean", 2)}) {
      SCOPED_TRACE(mode + more);
      const auto store = KVStore::create(mode + more);
      for (const bool shared : {false, true}) {
        const std::string key = shared ? "in place" : "in the store";
        const NDArray weight = NDArray::zeros(Shape{5}), statistic = NDArray::zeros(Shape{5});
        store->init({{.key = key, .value = weight, .shared = shared},
                     {.key = key + "'s", .value = statistic, .average = true}});
        store->set_optimizer(optim::Assign{});
        std::vector<PushItem> pushes;
        for (const float value : {1, 2, 4, 1}) {
          pushes.push_back({key, NDArray::full(Shape{5}, value)});
          pushes.push_back({key + "'s", NDArray::full(Shape{5}, value)});
        }
        store->push_pull(pushes, {{key, weight}, {key + "'s", statistic}});
        EXPECT_EQ(weight.to_vector<float>(), std::vector<float>(5, static_cast<float>(expected)));
        EXPECT_EQ(statistic.to_vector<float>(), std::vector<float>(5, 2));
      }
    }
  }
}

TEST(Aggregate, IsRefusedWhereItSaysNothing) {
  const auto error = [](const std::string& mode) { return error_of_call([&] { KVStore::check(mode); }); };
  for (const std::string mode : {"dist_async", "dist_local", "gossip"})
    EXPECT_NE(error(mode + ":aggregate=sum").find("unknown option 'aggregate' of mode"), std::string::npos) << mode;
  for (const std::string mode : {"dist_sync", "ring", "local", "device"}) {
    EXPECT_EQ(error(mode + ":aggregate=median"), "aggregate is 'median', expected mean or sum");
    EXPECT_EQ(error(mode + ":aggregate=sum"), "");
    EXPECT_EQ(error(mode + ":aggregate=mean"), "");
  }
  EXPECT_NE(error("dist_sync:aggregate=sum,compression=sign,majority=1").find("leave out aggregate=sum, or majority"),
            std::string::npos);
  EXPECT_EQ(error("dist_sync:compression=sign,majority=1"), "");
}

TEST(Aggregate, WorkersThatDifferAreRefused) {
  for (const std::string mode : {"dist_sync", "ring"}) {
    ClusterConfig job = job_config("inproc", mode == "ring" ? 0 : 1, 2);
    const SchedulerThread scheduler(job);
    std::jthread server;
    if (job.servers > 0) server = std::jthread([&] { Server(member(job, Role::kServer, 0, 0), {}, 1).run(); });
    std::vector<std::string> errors(2);
    std::vector<std::jthread> workers;
    for (int worker = 0; worker < 2; ++worker)
      workers.emplace_back([&, worker] {
        const auto engine = make_serial_engine();
        StoreOptions options;
        options.engine = engine.get();
        const auto store =
            KVStore::join(member(job, Role::kWorker, 0, worker), worker == 0 ? mode : mode + ":aggregate=sum", options);
        errors[static_cast<std::size_t>(worker)] = error_of_call([&] { store->init({{"w", array_of({0}, *engine)}}); });
      });
    workers.clear();
    for (const std::string& error : errors) EXPECT_NE(error.find(":aggregate=sum"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace paceline::test
