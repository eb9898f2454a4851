#include "evaluation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>
#include <paceline/ops.h>

#include <limits>

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
  BatchResult found = BatchResult::of(scores, batch_of(NDArray::from(std::vector<std::int32_t>{1, -1, 0, 3}, {4})), {});
  EXPECT_EQ(found.labels, 2);
  EXPECT_EQ(found.right, 1);
  const float none = std::numeric_limits<float>::quiet_NaN();
  found = BatchResult::of(scores, batch_of(NDArray::from(std::vector<float>{1, none, 2, -5}, {4})), {});
  EXPECT_EQ(found.labels, 2);
  EXPECT_EQ(found.right, 2);
}

TEST(Evaluation, WithoutALossLabelsMustBeClassNumbers) {
  const NDArray scores = NDArray::zeros({4, 3});
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
}

}  // namespace
}  // namespace paceline::test
