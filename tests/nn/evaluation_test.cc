#include "evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>
#include <paceline/ops.h>
#include <support/cluster_in_process.h>

#include <cmath>
#include <limits>
#include <stdexcept>

namespace paceline::test {
namespace {

using nn::BatchResult;
using testing::HasSubstr;
using testing::ThrowsMessage;

Batch batch_of(const NDArray& label, std::int64_t first = 0) {
  Batch batch;
  batch.label = label;
  batch.examples = label.size(0);
  batch.positions = {{first, first + batch.examples}};
  return batch;
}

NDArray same(const NDArray& x) { return x; }

TEST(Evaluation, ARegressionHasALossAndNoAccuracy) {
  const NDArray x = NDArray::from(std::vector<float>{0, 1, 5, -2}, {4, 1}),
                y = NDArray::from(std::vector<float>{0, 2, 3, -2.5f}, {4, 1});
  const double loss = (1 + 4 + 0.25) / 8;
  MemoryIterator alone(x, y, {.batch = 3});
  const nn::Evaluation found = nn::evaluate(nn::Lambda("Same", same), alone, nn::l2);
  EXPECT_EQ(found.examples, 4);
  EXPECT_EQ(found.accuracy, 0);
  EXPECT_NEAR(found.loss, loss, 1e-6);

  const auto kv = KVStore::create("local");
  MemoryIterator data(x, y, {.batch = 3, .source = nn::shared_source(kv)});
  const nn::Module net = nn::Dense(1);
  nn::Trainer trainer(net, optim::SGD{.lr = 0}, kv);
  for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::l2);
  const nn::Evaluation shared = trainer.evaluate(data, nn::l2);
  EXPECT_EQ(shared.examples, 4);
  EXPECT_EQ(shared.accuracy, 0);
  EXPECT_NEAR(shared.loss, nn::evaluate(net, alone, nn::l2).loss, 1e-6);
}

TEST(Evaluation, LabelsThatAreNoClassAreNotCounted) {
  const NDArray scores = NDArray::from(std::vector<float>{1, 2, 0, 3, 2, 1, 0, 0, 5, 4, 1, 1}, {4, 3});
  BatchResult found =
      BatchResult::of(scores, batch_of(NDArray::from(std::vector<std::int32_t>{1, -1, 0, -3}, {4})), {});
  EXPECT_EQ(found.labels, 2);
  EXPECT_EQ(found.right, 1);
  const float none = std::numeric_limits<float>::quiet_NaN();
  found = BatchResult::of(scores, batch_of(NDArray::from(std::vector<float>{1, none, 2, -5}, {4})), {});
  EXPECT_EQ(found.labels, 2);
  EXPECT_EQ(found.right, 2);

  MemoryIterator data(scores, NDArray::from(std::vector<std::int32_t>{1, -1, 2, 1}, {4}), {.batch = 3});
  const nn::Lambda net("Same", same);
  EXPECT_EQ(nn::evaluate(net, data), 2.0 / 3);
  EXPECT_EQ(nn::evaluate(net, data, nullptr).accuracy, 2.0 / 3);
}

TEST(Evaluation, WithoutALossLabelsMustBeClassNumbers) {
  const NDArray scores = NDArray::zeros({4, 3});
  const Batch beyond = batch_of(NDArray::from(std::vector<std::int32_t>{1, 2, 3, 0}, {4}));
  EXPECT_THAT([&] { BatchResult::of(scores, beyond, {}); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the label 3 is none of the 3 classes")));
  const Batch wide = batch_of(NDArray::zeros({4, 2}));
  EXPECT_THAT([&] { BatchResult::of(scores, wide, {}); },
              ThrowsMessage<InvalidArgument>(AllOf(HasSubstr("(4, 3)"), HasSubstr("(4, 2)"))));
  EXPECT_THAT(
      [&] {
        BatchResult::of(NDArray::zeros({4, 1}), batch_of(NDArray::zeros({4})), {});
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("(4, 1)")));
  const nn::Loss zero = [](const NDArray&, const NDArray&) { return NDArray::zeros({1}, DType::kFloat64); };
  EXPECT_EQ(BatchResult::of(scores, wide, zero).labels, 0);
  EXPECT_EQ(BatchResult::of(scores, beyond, zero).labels, 3);
}

TEST(Evaluation, ANoteHoldsAllOfAResult) {
  const std::int64_t many = (std::int64_t{1} << 48) - 1;
  for (const BatchResult& batch :
       std::vector<BatchResult>{{.examples = 1},  // a loss of exactly 0, and no class numbers
                                {.examples = 65535, .labels = 65535, .right = 65535, .loss = 0.1 + 0.2},
                                {.examples = 65536, .labels = many, .right = many, .loss = -1e-300},
                                {.examples = 3, .loss = std::numeric_limits<double>::infinity()}}) {
    const BatchResult read = BatchResult::parse(batch.text());
    EXPECT_EQ(read.examples, batch.examples);
    EXPECT_EQ(read.labels, batch.labels);
    EXPECT_EQ(read.right, batch.right);
    EXPECT_EQ(read.loss, batch.loss);
  }
  for (const char* text : {"", "1 2 3", "1 2 3 x"}) EXPECT_THROW(BatchResult::parse(text), Corrupt) << text;
}

// Delivers half batches, and is lost with the second one, before that is committed.
class Lost final : public DataIterator {
 public:
  explicit Lost(MemoryIterator& data) : data_(data) {}
  void start(std::int64_t epoch, const RangeSet& done) override { data_.start(epoch, done); }
  bool next(Batch& batch) override {
    const bool begins = batches_++ % 2 == 0;
    if (begins && !data_.next(whole_)) return false;
    const std::int64_t half = whole_.examples / 2, begin = begins ? 0 : half;
    batch.data = whole_.data.narrow(0, begin, begin + half);
    batch.label = whole_.label.narrow(0, begin, begin + half);
    batch.examples = half;
    batch.epoch = whole_.epoch;
    batch.positions = {{whole_.positions[0].begin + begin, whole_.positions[0].begin + begin + half}};
    return true;
  }
  bool take_over(bool wait) override { return data_.take_over(wait); }
  std::int64_t size() const override { return data_.size(); }
  void commit(const Batch& batch) override {
    if (batches_ == 2) throw std::runtime_error("lost");
    data_.commit(batch);
  }
  RangeSet committed() const override { return data_.committed(); }

 private:
  MemoryIterator& data_;
  Batch whole_;
  int batches_ = 0;
};

TEST(Evaluation, WhatALostWorkerLeftCountsOnce) {
  ClusterInProcess cluster({.mode = "dist_sync", .workers = 2, .servers = 1, .engine = &default_engine()});
  const NDArray x = NDArray::zeros({40, 2}), y = NDArray::zeros({40}, DType::kInt32);
  cluster.run([&](int worker, KVStore& store) {
    {
      const std::shared_ptr<KVStore> kv(&store, [](KVStore*) {});
      MemoryIterator data(x, y, {.batch = 8, .source = nn::shared_source(kv)});
      nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0}, kv);
      for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
      Lost lost(data);
      if (worker == 1) {
        EXPECT_THROW(trainer.evaluate(lost, nn::softmax_ce), std::runtime_error);
      } else {
        const nn::Evaluation found = trainer.evaluate(data, nn::softmax_ce);
        EXPECT_EQ(found.examples, 40);
        EXPECT_NEAR(found.loss, std::log(2), 1e-6);
      }
    }
    if (worker == 1) cluster.kill_worker(1);
  });
}

// Leaves out the examples of its last batch, but not their positions, and leaves the note of the batch before in it.
class EndsEmpty final : public DataIterator {
 public:
  explicit EndsEmpty(MemoryIterator& data) : data_(data) {}
  void start(std::int64_t epoch, const RangeSet& done) override {
    data_.start(epoch, done);
    batches_ = 0;
  }
  bool next(Batch& batch) override {
    Batch next;
    if (!data_.next(next)) return false;
    const std::int64_t kept = ++batches_ % 3 == 0 ? 0 : next.examples;
    batch.data = next.data.narrow(0, 0, kept);
    batch.label = next.label.narrow(0, 0, kept);
    batch.examples = counts ? kept : 0;
    batch.epoch = next.epoch;
    batch.positions = next.positions;
    return true;
  }
  bool take_over(bool wait) override { return data_.take_over(wait); }
  std::int64_t size() const override { return data_.size(); }
  void commit(const Batch& batch) override { data_.commit(batch); }
  RangeSet committed() const override { return data_.committed(); }

  bool counts = true;

 private:
  MemoryIterator& data_;
  int batches_ = 0;
};

TEST(Evaluation, ABatchWithoutExamplesCountsForNothing) {
  const std::shared_ptr<KVStore> kv = KVStore::create("local");
  MemoryIterator data(NDArray::zeros({6, 2}), NDArray::zeros({6}, DType::kInt32),
                      {.batch = 2, .source = nn::shared_source(kv)});
  const nn::Module net = nn::Dense(2);
  nn::Trainer trainer(net, optim::SGD{.lr = 0}, kv);
  for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
  MemoryIterator own(NDArray::zeros({6, 2}), NDArray::zeros({6}, DType::kInt32), {.batch = 2});
  EndsEmpty ends(data), ends_alone(own);
  const nn::Evaluation shared = trainer.evaluate(ends, nn::softmax_ce);
  EXPECT_EQ(shared.examples, 4);
  EXPECT_NEAR(shared.loss, std::log(2), 1e-6);
  const nn::Evaluation alone = nn::evaluate(net, ends_alone, nn::softmax_ce);
  EXPECT_EQ(alone.examples, 4);
  EXPECT_NEAR(alone.loss, std::log(2), 1e-6);
  ends.counts = ends_alone.counts = false;
  EXPECT_THROW(trainer.evaluate(ends, nn::softmax_ce), InvalidArgument);
  EXPECT_THROW(nn::evaluate(net, ends_alone, nn::softmax_ce), InvalidArgument);
}

TEST(Training, ABatchMustSayHowManyExamplesItHas) {
  nn::Trainer trainer(nn::Dense(2), optim::SGD{.lr = 0.1}, KVStore::create("local"));
  Batch batch;
  batch.data = NDArray::zeros({4, 3});
  batch.label = NDArray::zeros({4}, DType::kInt32);
  EXPECT_THROW(trainer.step(batch, nn::softmax_ce), InvalidArgument);
  batch.examples = 4;
  trainer.step(batch, nn::softmax_ce);
  batch.label = NDArray::zeros({6}, DType::kInt32);
  EXPECT_THROW(trainer.step(batch, nn::softmax_ce), InvalidArgument);
}

}  // namespace
}  // namespace paceline::test
