// Training from a text file: alone, and shared among workers.

#include <gmock/gmock.h>
#include <paceline/csv.h>
#include <paceline/nn.h>
#include <support/cluster_in_process.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

namespace paceline::test {
namespace {

constexpr int kRows = 100'000, kEpochs = 2;
constexpr float kRule[] = {2, -1, 0.5};
constexpr float kOffset = 0.25;

// Rows that a linear rule divides into two classes, apart from one in ten whose class is drawn. So a network that has
// learnt the rule is right in 95 % of them. The inputs are normal, so the noise does not turn the best rule.
class Rows {
 public:
  Rows() {
    std::mt19937 random(7);
    std::normal_distribution<float> normal;
    path_ = testing::TempDir() + "paceline_rule_" + std::to_string(getpid()) + ".csv";
    std::ofstream file(path_);
    file << "x,name,y,class,z\n";
    for (int i = 0; i < kRows; ++i) {
      float x[3] = {};
      for (float& value : x) value = normal(random);
      const bool above = kRule[0] * x[0] + kRule[1] * x[1] + kRule[2] * x[2] + kOffset > 0;
      const bool noisy = random() % 10 == 0;
      const bool label = noisy ? random() % 2 == 0 : above;
      right_ += label == above;
      char row[120];
      std::snprintf(row, sizeof row, "%.6g,\"row %d, of many\",%.6g,%s,%.6g\n", static_cast<double>(x[0]), i,
                    static_cast<double>(x[1]), label ? "above" : "below", static_cast<double>(x[2]));
      file << row;
    }
  }
  ~Rows() { std::filesystem::remove(path_); }

  CsvIterator iterator(std::int64_t batch, std::shared_ptr<Source> source = {}) const {
    return CsvIterator(
        path_,
        {.batch = batch,
         .shuffle = 1,
         .source = std::move(source),
         .arrays = {
             {.name = "data", .columns = {"x", "y", "z"}},
             {.name = "label", .columns = {"class"}, .dtype = DType::kInt32, .categories = {"below", "above"}}}});
  }
  // The accuracy of the rule itself.
  double best() const { return static_cast<double>(right_) / kRows; }

 private:
  std::string path_;
  int right_ = 0;
};

TEST(CsvTraining, LearnsALinearRule) {
  const Rows rows;
  EXPECT_NEAR(rows.best(), 0.95, 0.01);
  CsvIterator data = rows.iterator(400);
  const auto net = nn::Dense(2);
  nn::Trainer trainer(net, optim::SGD{.lr = 0.5}, KVStore::create("local"));
  while (trainer.epoch() < kEpochs)
    for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
  EXPECT_EQ(trainer.report().examples, kEpochs * kRows);
  EXPECT_EQ(data.timing().examples, kRows);
  EXPECT_GT(data.timing().bytes, 0u);
  EXPECT_NEAR(nn::evaluate(net, data), rows.best(), 0.01);
}

TEST(CsvTraining, TwoWorkersShareTheRows) {
  const Rows rows;
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 2, .servers = 1, .engine = &default_engine()});
  std::atomic<std::int64_t> examples = 0;
  cluster.run([&](int, KVStore& store) {
    const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
    CsvIterator data = rows.iterator(200, nn::shared_source(kv));
    nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.5}, kv);
    while (trainer.epoch() < kEpochs)
      for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
    examples += trainer.report().examples;
    CsvIterator test = rows.iterator(1000, nn::shared_source(kv));
    EXPECT_NEAR(trainer.evaluate(test), rows.best(), 0.01);
  });
  EXPECT_EQ(examples, kEpochs * kRows);
}

TEST(CsvTraining, AReportSaysHowLongTrainingWaitedForData) {
  nn::TrainerReport report{.steps = 300, .seconds = 4, .waited_for_data = 1};
  const auto text = [&] {
    std::ostringstream out;
    out << report;
    return out.str();
  };
  EXPECT_THAT(text(), testing::EndsWith(" examples/s  waited 25 % for data"));
  report.waited_for_data = 0.03;
  EXPECT_THAT(text(), testing::EndsWith(" examples/s"));
}

}  // namespace
}  // namespace paceline::test
