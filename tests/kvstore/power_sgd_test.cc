// PowerSGD in two rounds, through servers: what a job of several workers does is what one does with the mean.
#include <gtest/gtest.h>
#include <paceline/compression.h>
#include <paceline/error.h>
#include <support/cluster_in_process.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>

#include "hand_made_worker.h"
#include "pushed.h"
#include "send/transfer.h"
#include "servers/servers.h"
#include "store.pb.h"
#include "two_rounds.h"

namespace paceline::test {
namespace {

using namespace std::chrono_literals;

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, whole = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i] - b[i]), 2);
    whole += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / whole);
}

// rows x columns, the sum of `rank` products of Gaussian vectors.
std::vector<float> low_rank(std::int64_t rows, std::int64_t columns, int rank, unsigned seed) {
  const std::vector<float> a = gaussian(rank * rows, seed), b = gaussian(rank * columns, seed + 1000);
  std::vector<float> matrix(static_cast<std::size_t>(rows * columns));
  for (std::int64_t k = 0; k < rank; ++k)
    for (std::int64_t i = 0; i < rows; ++i)
      for (std::int64_t j = 0; j < columns; ++j)
        matrix[static_cast<std::size_t>(i * columns + j)] +=
            a[static_cast<std::size_t>(k * rows + i)] * b[static_cast<std::size_t>(k * columns + j)];
  return matrix;
}

// Three tensors: of one slice, of two, and one that travels raw.
const std::vector<std::pair<std::string, Shape>> kKeys = {
    {"conv", Shape{24, 6, 5, 5}}, {"wide", Shape{1100, 1024}}, {"bias", Shape{50}}};

std::vector<float> gradient_of(std::size_t key, int step, int worker) {
  const Shape& shape = kKeys[key].second;
  if (shape.ndim() == 1) return gaussian(shape.size(), static_cast<unsigned>(100 * step + worker));
  // Mostly of low rank, so that the factors mean something, and noise, so that something is left.
  std::vector<float> values = low_rank(shape[0], shape.size() / shape[0], 2, static_cast<unsigned>(7 * step + worker));
  for (float& value : values) value += 0.1f * std::sin(static_cast<float>(&value - values.data() + worker));
  return values;
}

constexpr int kWorkers = 3, kSteps = 4;
constexpr std::int64_t kExamples[kWorkers] = {1, 2, 5};

// What `workers` make of the gradients: as many as there are, or one with their mean.
std::vector<std::vector<float>> train(int workers, bool faulty) {
  std::vector<std::vector<float>> weights(kKeys.size());
  ClusterInProcess cluster({.mode = "dist_sync:compression=power_sgd,min_bytes=0",
                            .workers = workers,
                            .servers = 2,
                            .faulty = faulty,
                            .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    Engine& engine = cluster.engine(worker);
    std::vector<InitValue> init;
    for (const auto& [name, shape] : kKeys) init.push_back({name, NDArray::zeros(shape, DType::kFloat32, {}, engine)});
    store.init(init);
    store.set_optimizer(optim::SGD{.lr = 0.1, .momentum = 0.9});
    for (int step = 0; step < kSteps; ++step) {
      std::vector<PushItem> pushes;
      std::vector<PullItem> pulls;
      for (std::size_t k = 0; k < kKeys.size(); ++k) {
        std::vector<float> gradient = gradient_of(k, step, worker);
        if (workers == 1) {
          for (float& value : gradient) value *= 1.0f / 8;
          for (int other = 1; other < kWorkers; ++other) {
            const std::vector<float> more = gradient_of(k, step, other);
            for (std::size_t i = 0; i < gradient.size(); ++i)
              gradient[i] += static_cast<float>(kExamples[other]) / 8 * more[i];
          }
        }
        pushes.push_back({kKeys[k].first, NDArray::from<float>(gradient, kKeys[k].second, {}, engine)});
        pulls.push_back({kKeys[k].first, init[k].value});
      }
      store.push_pull(pushes, pulls, workers == 1 ? 8 : kExamples[worker]);
      store.step_end();
    }
    std::vector<std::vector<float>> mine;
    for (const InitValue& value : init) mine.push_back(value.value.to_vector<float>());
    if (worker == 0) weights = mine;
  });
  return weights;
}

// T2.6, linearity, with error feedback, momentum, unequal batches, several servers and slices.
TEST(PowerSgd, WorkersDoWhatOneDoesWithTheMean) {
  const auto together = train(kWorkers, false), alone = train(1, false);
  for (std::size_t k = 0; k < kKeys.size(); ++k) EXPECT_LT(distance(together[k], alone[k]), 1e-5) << kKeys[k].first;
}

TEST(PowerSgd, LostMessagesChangeNothing) {
  const auto sound = train(kWorkers, false), faulty = train(kWorkers, true);
  for (std::size_t k = 0; k < kKeys.size(); ++k) EXPECT_EQ(sound[k], faulty[k]) << kKeys[k].first;
}

// T2.6: what is of the codec's rank arrives whole after one warm step; each worker has another part of it.
TEST(PowerSgd, TheMeanArrivesWholeWhereItIsOfTheRank) {
  for (const int rank : {1, 2, 4}) {
    ClusterInProcess cluster({.mode = str("dist_sync:compression=power_sgd,error_feedback=0,min_bytes=0,rank=", rank),
                              .workers = 3,
                              .servers = 2});
    const Shape shape{60, 40};
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const std::vector<float> mean = low_rank(60, 40, rank, 3), noise = gaussian(2400, 4);
      std::vector<float> own = mean;
      for (std::size_t i = 0; i < own.size(); ++i) own[i] += static_cast<float>(worker - 1) * noise[i];
      const NDArray weight = NDArray::zeros(shape, DType::kFloat32, {}, engine);
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1});
      std::vector<float> before, after;
      for (int step = 0; step < 2; ++step) {
        before = weight.to_vector<float>();
        store.push_pull({{"w", NDArray::from<float>(own, shape, {}, engine)}}, {{"w", weight}});
        store.step_end();
        after = weight.to_vector<float>();
      }
      for (std::size_t i = 0; i < after.size(); ++i) before[i] -= after[i];
      EXPECT_LT(distance(before, mean), 1e-5) << rank;
    });
  }
}

// T2.2 for two rounds: what was delivered and the mean of what is kept add up to what was given.
TEST(PowerSgd, LosesNothing) {
  constexpr std::int64_t kRows = 12, kColumns = 25, kCount = kRows * kColumns + 3;
  const auto codec = codec_of("power_sgd:rounds=2");
  const TwoRounds& rounds = *codec->two_rounds();
  std::array<std::array<std::vector<float>, 2>, kWorkers> states;
  for (auto& state : states) state.fill(std::vector<float>(kCount));
  std::vector<double> given(kCount), delivered(kCount), size(kCount);
  for (unsigned step = 0; step < 1000; ++step) {
    std::array<std::vector<std::byte>, kWorkers> proposals, answers;
    std::vector<TwoRounds::Part> parts;
    const auto pointers = [&](std::size_t w) {
      return std::array<float*, 2>{states[w][0].data(), states[w][1].data()};
    };
    for (std::size_t w = 0; w < kWorkers; ++w) {
      const std::vector<float> values = gaussian(kCount, 3 * step + static_cast<unsigned>(w));
      for (std::size_t i = 0; i < kCount; ++i) {
        given[i] += static_cast<double>(values[i]) / kWorkers;
        size[i] += std::abs(static_cast<double>(values[i])) / kWorkers;
      }
      proposals[w].resize(codec->max_bytes(kCount));
      proposals[w].resize(codec->encode(values, {.slice = 4, .columns = kColumns}, pointers(w), proposals[w].data()));
      codec->check(proposals[w], kCount);
      parts.push_back({1.0f / kWorkers, proposals[w]});
    }
    const std::vector<std::byte> agreed = rounds.agree(parts);
    ASSERT_FALSE(agreed.empty());
    for (std::size_t w = 0; w < kWorkers; ++w) {
      answers[w] = rounds.answer(agreed, kCount, pointers(w));
      ASSERT_EQ(answers[w].size(), rounds.answer_bytes(agreed, kCount));
      parts[w].bytes = answers[w];
      std::vector<std::byte> whole = agreed;
      whole.insert(whole.end(), answers[w].begin(), answers[w].end());
      std::vector<float> sent(kCount);
      codec->decode(whole, kCount, 0, sent);
      for (std::size_t i = 0; i < kCount; ++i) delivered[i] += static_cast<double>(sent[i]) / kWorkers;
    }
    const std::vector<std::byte> mean = rounds.mean(agreed, parts);
    const EncodedBytes of_all = mean;
    for (std::size_t w = 0; w < kWorkers; ++w) rounds.finish(agreed, answers[w], &of_all, kCount, pointers(w));
  }
  for (std::size_t i = 0; i < kCount; ++i) {
    double kept = 0;
    for (const auto& state : states) kept += static_cast<double>(state[0][i]) / kWorkers;
    EXPECT_LT(std::abs(delivered[i] + kept - given[i]), 1e-4 * size[i]);
  }
}

// What differs between the workers is not kept where it was delivered: when one is lost, or shares change, the next
// update is of ordinary size.
TEST(PowerSgd, WhatWorkersKeepDoesNotGrowWithTheirDifferences) {
  constexpr std::int64_t kRows = 16, kColumns = 20, kCount = kRows * kColumns;
  const auto codec = codec_of("power_sgd:rounds=2,rank=1");
  const TwoRounds& rounds = *codec->two_rounds();
  const std::vector<float> u = gaussian(kRows, 1), v = gaussian(kColumns, 2), apart = gaussian(kColumns, 3);
  std::array<std::array<std::vector<float>, 2>, 2> states;
  for (auto& state : states) state.fill(std::vector<float>(kCount));
  std::vector<std::vector<float>> given(2, std::vector<float>(kCount));
  for (std::size_t w = 0; w < 2; ++w)
    for (std::size_t i = 0; i < kCount; ++i)
      given[w][i] = u[i / kColumns] * (v[i % kColumns] + (w == 0 ? 1.0f : -1.0f) * apart[i % kColumns]);
  // The first workers' update, with these shares.
  const auto step = [&](const std::vector<float>& shares) {
    std::vector<std::vector<std::byte>> proposals(shares.size()), answers(shares.size());
    std::vector<TwoRounds::Part> parts;
    const auto pointers = [&](std::size_t w) {
      return std::array<float*, 2>{states[w][0].data(), states[w][1].data()};
    };
    for (std::size_t w = 0; w < shares.size(); ++w) {
      proposals[w].resize(codec->max_bytes(kCount));
      proposals[w].resize(codec->encode(given[w], {.columns = kColumns}, pointers(w), proposals[w].data()));
      parts.push_back({shares[w], proposals[w]});
    }
    const std::vector<std::byte> agreed = rounds.agree(parts);
    std::vector<float> update(kCount), sent(kCount);
    for (std::size_t w = 0; w < shares.size(); ++w) {
      answers[w] = rounds.answer(agreed, kCount, pointers(w));
      parts[w].bytes = answers[w];
      std::vector<std::byte> whole = agreed;
      whole.insert(whole.end(), answers[w].begin(), answers[w].end());
      codec->decode(whole, kCount, 0, sent);
      for (std::size_t i = 0; i < kCount; ++i) update[i] += shares[w] * sent[i];
    }
    const std::vector<std::byte> mean = rounds.mean(agreed, parts);
    const EncodedBytes of_all = mean;
    for (std::size_t w = 0; w < shares.size(); ++w) rounds.finish(agreed, answers[w], &of_all, kCount, pointers(w));
    return update;
  };
  for (int i = 0; i < 50; ++i) step({0.5f, 0.5f});
  std::vector<float> expected(kCount);
  for (std::size_t i = 0; i < kCount; ++i) expected[i] = 0.75f * given[0][i] + 0.25f * given[1][i];
  EXPECT_LT(distance(step({0.75f, 0.25f}), expected), 1e-4);
  EXPECT_LT(distance(step({1}), given[0]), 1e-4);
}

// Nor where they are all there is: gradients that cancel.
TEST(PowerSgd, WhatWorkersKeepStaysSmallWhereGradientsCancel) {
  constexpr std::int64_t kColumns = 20, kCount = 16 * kColumns;
  const auto codec = codec_of("power_sgd:rounds=2,rank=2");
  const TwoRounds& rounds = *codec->two_rounds();
  std::vector<float> given = gaussian(kCount, 1);
  std::array<std::array<std::vector<float>, 2>, 2> states;
  for (auto& state : states) state.fill(std::vector<float>(kCount));
  for (int step = 0; step < 400; ++step) {
    std::array<std::vector<std::byte>, 2> proposals, answers;
    std::vector<TwoRounds::Part> parts;
    std::vector<std::array<float*, 2>> pointers;
    for (std::size_t w = 0; w < 2; ++w) {
      pointers.push_back({states[w][0].data(), states[w][1].data()});
      proposals[w].resize(codec->max_bytes(kCount));
      proposals[w].resize(codec->encode(given, {.columns = kColumns}, pointers[w], proposals[w].data()));
      parts.push_back({0.5f, proposals[w]});
      for (float& value : given) value = -value;
    }
    const std::vector<std::byte> agreed = rounds.agree(parts);
    for (std::size_t w = 0; w < 2; ++w) {
      answers[w] = rounds.answer(agreed, kCount, pointers[w]);
      parts[w].bytes = answers[w];
    }
    const std::vector<std::byte> mean = rounds.mean(agreed, parts);
    const EncodedBytes of_all = mean;
    for (std::size_t w = 0; w < 2; ++w) rounds.finish(agreed, answers[w], &of_all, kCount, pointers[w]);
  }
  double kept = 0, size = 0;
  for (std::size_t i = 0; i < kCount; ++i) {
    kept += std::pow(static_cast<double>(states[0][0][i]), 2);
    size += std::pow(static_cast<double>(given[i]), 2);
  }
  EXPECT_LT(std::sqrt(kept / size), 20);  // a rank of 2 in 16 rows takes an eighth away each time
}

// A server that says what none of ours does.
TEST(PowerSgd, WorkersRefuseFormsThatDoNotFit) {
  const auto codec = codec_of("power_sgd:rounds=2");
  constexpr std::int64_t kCount = 64;
  std::vector<float> residual(kCount), query(kCount);
  const std::array<float*, 2> state{residual.data(), query.data()};
  for (const auto& [rows, columns, rank] : std::vector<std::array<std::uint32_t, 3>>{
           {1, 64, 64}, {64, 1, 2}, {8, 8, 9}, {8, 9, 1}, {0, 8, 1}, {8, 8, 0}, {1u << 31, 1u << 31, 1}}) {
    const std::array<std::uint32_t, 4> header{rows, columns, rank, 0};
    std::vector<std::byte> agreed(16 + (rows <= kCount ? 4 * rows * rank : 0));
    std::memcpy(agreed.data(), header.data(), 16);
    const std::vector<std::byte> answer(std::size_t{4} * 4096);
    const EncodedBytes mean = answer;
    EXPECT_THROW(codec->two_rounds()->answer(agreed, kCount, state), Corrupt) << rows << " " << columns << " " << rank;
    EXPECT_THROW(codec->two_rounds()->finish(agreed, answer, &mean, kCount, state), Corrupt) << rows;
  }
  const std::vector<std::byte> raw(sizeof(float) * kCount), more(4);
  const EncodedBytes none, wrong = more;
  EXPECT_THROW(codec->two_rounds()->finish({}, raw, &wrong, kCount, state), Corrupt);
  EXPECT_THROW(codec->two_rounds()->finish({}, more, &none, kCount, state), Corrupt);
}

// The actions of a step wait for what is on its way of the steps before it, though it has pushed nothing itself.
TEST(PowerSgd, StepsAreDeliveredInOrder) {
  auto first = std::make_shared<Step>(0, nullptr), second = std::make_shared<Step>(1, nullptr),
       third = std::make_shared<Step>(2, nullptr);
  std::shared_ptr<Delivery> held = first->delivery();
  std::string order;
  held->then([&order](const std::exception_ptr&) { order += "first "; });
  second->delivery()->then([&order](const std::exception_ptr&) { order += "second"; });
  first->close(second);
  first.reset();
  second->close(third);
  second.reset();
  EXPECT_EQ(order, "");
  held.reset();
  EXPECT_EQ(order, "first second");
}

struct Matrix {
  NDArray weight;
  Engine* engine;
  // Every element by `value`: of rank one, so that it arrives whole.
  NDArray gradient(float value) const { return NDArray::full(Shape{20, 30}, value, DType::kFloat32, {}, *engine); }
};

Matrix begin(ClusterInProcess& cluster, int worker, KVStore& store, const std::vector<std::string>& keys = {"w"}) {
  Engine& engine = cluster.engine(worker);
  const Matrix matrix{NDArray::zeros(Shape{20, 30}, DType::kFloat32, {}, engine), &engine};
  std::vector<InitValue> values{{keys[0], matrix.weight}};
  for (std::size_t k = 1; k < keys.size(); ++k) values.push_back({keys[k], matrix.weight.clone()});
  store.init(values);
  store.set_optimizer(optim::SGD{.lr = 1});
  return matrix;
}

const char* const kMode = "dist_sync:compression=power_sgd,min_bytes=0";

TEST(PowerSgd, PushAndPullMayBeApart) {
  ClusterInProcess cluster({.mode = kMode, .workers = 3, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    const Matrix matrix = begin(cluster, worker, store);
    for (int step = 0; step < 5; ++step) {
      store.push("w", matrix.gradient(-1));
      if (step % 2 == 0) store.pull("w", matrix.weight);
      store.step_end();
      if (step % 2 == 1) store.pull("w", matrix.weight);
      EXPECT_NEAR(matrix.weight.to_vector<float>()[7], step + 1, 1e-4);
    }
    store.push("w", matrix.gradient(-1));
    EXPECT_THROW(store.push("w", matrix.gradient(-1)), InvalidArgument);  // twice in a step
    store.step_end();
    store.barrier();
    store.pull("w", matrix.weight);
    EXPECT_NEAR(matrix.weight.to_vector<float>()[7], 6, 1e-4);
  });
}

// A step of a worker ends though its own pushes wait for the others, who wait for its step's end.
TEST(PowerSgd, AKeyThatOnlyOneWorkerPushesHoldsNobodyUp) {
  ClusterInProcess cluster({.mode = kMode, .workers = 2, .serial = false});
  cluster.run([&](int worker, KVStore& store) {
    const Matrix matrix = begin(cluster, worker, store, {"a", "b"});
    for (int step = 0; step < 5; ++step) {
      store.push(worker == 0 ? "a" : "b", matrix.gradient(-1));
      store.step_end();
    }
    for (const char* key : {"a", "b"}) {
      store.pull(key, matrix.weight);
      EXPECT_NEAR(matrix.weight.to_vector<float>()[7], 5, 1e-4);
    }
  });
}

// The next round is complete when the one before ends.
TEST(PowerSgd, WorkersMayTakeTurns) {
  for (const bool faulty : {false, true}) {
    ClusterInProcess cluster({.mode = kMode, .workers = 2, .faulty = faulty, .serial = false});
    const Shape shape{16, 3000};  // what is agreed on is more than servers remember for those who ask again
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      const NDArray weight = NDArray::zeros(shape, DType::kFloat32, {}, engine);
      store.init({{"w", weight}});
      store.set_optimizer(optim::SGD{.lr = 1});
      for (int step = 0; step < 20; ++step) {
        if (step % 2 == worker) store.push("w", NDArray::full(shape, -1.0f, DType::kFloat32, {}, engine));
        store.step_end();
      }
      store.barrier();
      store.pull("w", weight);
      for (const float value : weight.to_vector<float>()) ASSERT_NEAR(value, 20, 1e-2);
    });
  }
}

// Killed when it has proposed, or just before: the others finish the round, and its part is not missed, for theirs is
// of the codec's rank with or without it.
TEST(PowerSgd, ARoundEndsWithoutAWorkerThatIsLostInIt) {
  ClusterInProcess cluster({.mode = kMode, .workers = 3, .serial = false});
  std::atomic<bool> killed = false;
  cluster.run([&](int worker, KVStore& store) {
    const Matrix matrix = begin(cluster, worker, store);
    if (worker == 2) {
      store.push("w", NDArray::from<float>(low_rank(20, 30, 1, 5), Shape{20, 30}, {}, *matrix.engine));
      std::this_thread::sleep_for(50ms);
      cluster.kill_worker(2);
      killed = true;
      return;
    }
    while (!killed) std::this_thread::sleep_for(1ms);
    for (int step = 0; step < 3; ++step) {
      store.push_pull({{"w", matrix.gradient(-1)}}, {{"w", matrix.weight}});
      store.step_end();
    }
    for (const float value : matrix.weight.to_vector<float>()) ASSERT_NEAR(value, 3, 1e-4);
  });
}

// It has no factor from before: the first round with it travels raw.
TEST(PowerSgd, AWorkerMayReturn) {
  ClusterInProcess cluster({.mode = kMode, .workers = 3, .serial = false});
  std::atomic<int> ready = 0;
  std::atomic<bool> returned = false;
  std::array<std::atomic<int>, 3> steps{};
  const auto step = [&](KVStore& store, const Matrix& matrix, int worker) {
    store.push_pull({{"w", matrix.gradient(-1)}}, {{"w", matrix.weight}});
    store.step_end();
    matrix.weight.wait();
    ++steps[static_cast<std::size_t>(worker)];
  };
  const auto expect_all = [&](KVStore& store, const Matrix& matrix) {
    store.barrier();
    store.pull("w", matrix.weight);
    const float expected = static_cast<float>(std::max(steps[0], steps[2]));
    for (const float value : matrix.weight.to_vector<float>()) EXPECT_NEAR(value, expected, 1e-4 * expected);
    store.barrier();
  };
  cluster.run([&](int worker, KVStore& store) {
    {
      const Matrix matrix = begin(cluster, worker, store);
      store.barrier();
      for (int i = 0; i < 5; ++i) step(store, matrix, worker);
      store.barrier();
      ++ready;
      if (worker != 1) {
        while (!returned) step(store, matrix, worker);
        return expect_all(store, matrix);
      }
    }
    while (ready < 3) std::this_thread::sleep_for(1ms);
    cluster.kill_worker(1);
    cluster.join_worker(1);
    KVStore& again = cluster.worker(1);
    again.barrier();  // of the program's start: the others have passed it
    const Matrix matrix = begin(cluster, worker, again);
    for (int i = 0; i < 10; ++i) step(again, matrix, worker);
    returned = true;
    expect_all(again, matrix);
  });
}

TEST(PowerSgd, TakesTwoRoundsWhereTheModeDoes) {
  const auto text = [](const std::string& mode) {
    return ModeSetting::parse(Spec::parse(mode)).compression.push.text();
  };
  EXPECT_EQ(text("dist_sync:compression=power_sgd,rank=4"), "power_sgd:rank=4,rounds=2");
  EXPECT_EQ(text("dist_sync:compression=power_sgd,error_feedback=1"), "power_sgd:rounds=2");
  EXPECT_EQ(text("dist_sync:compression=power_sgd,error_feedback=0"), "power_sgd:error_feedback=0,rounds=2");
  EXPECT_EQ(text("dist_sync:compression=power_sgd,rounds=1"), "power_sgd:rounds=1");
  EXPECT_EQ(text("dist_sync:compression=power_sgd,backup=1"), "power_sgd");
  EXPECT_EQ(text("dist_sync:compression=power_sgd,bandwidth=1e9"), "power_sgd");
  EXPECT_EQ(text("dist_async:compression=power_sgd"), "power_sgd");
  EXPECT_EQ(text("dist_local:steps=2,compression=power_sgd"), "power_sgd");
  EXPECT_EQ(text("dist_sync:compression=2bit"), "2bit");
  for (const char* mode :
       {"dist_async:compression=power_sgd,rounds=2", "dist_sync:backup=1,compression=power_sgd,rounds=2",
        "dist_local:steps=2,compression=power_sgd,rounds=2", "dist_sync:compression=power_sgd,rounds=2,bandwidth=1e9",
        "dist_sync:compression=power_sgd,rounds=3"})
    EXPECT_THROW(text(mode), InvalidArgument) << mode;
}

}  // namespace
}  // namespace paceline::test
