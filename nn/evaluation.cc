#include "evaluation.h"

#include <paceline/ops.h>
#include <paceline/recorder.h>

#include <bit>
#include <map>

namespace paceline::nn {
namespace {

// A batch has this many positions, one for each bit of its numbers: the loss, the labels, those that are right. Where
// they begin is its name.
constexpr std::int64_t kLossBits = 64, kCountBits = 32, kBits = kLossBits + 2 * kCountBits;
constexpr std::int64_t kMostExamples = std::int64_t{1} << 20, kMostPositions = std::int64_t{1} << 35;

void add_bits(std::uint64_t number, std::int64_t begin, PositionRanges& ranges) {
  for (; number != 0; number &= number - 1) {
    const std::int64_t place = begin + std::countr_zero(number);
    if (!ranges.empty() && ranges.back().second == place)
      ++ranges.back().second;
    else
      ranges.emplace_back(place, place + 1);
  }
}

}  // namespace

BatchResult BatchResult::of(const NDArray& scores, const Batch& batch, const Loss& loss) {
  BatchResult result;
  result.first = batch.positions.empty() ? 0 : batch.positions[0].begin;
  result.examples = batch.examples;
  const NDArray label = batch.label.to(scores.device());
  const std::int64_t classes = scores.size(-1);
  const bool are_classes = classes > 1 && label.size() * classes == scores.size();
  require(are_classes || loss,
          "accuracy needs a class number for each row of scores of two classes or more, but scores ", scores.shape(),
          " have labels ", label.shape(), "; to evaluate such a network, give a loss");
  if (are_classes) {
    const std::vector<std::int64_t> best = argmax(scores, -1).to_vector<std::int64_t>();
    const std::vector<double> wanted = label.cast(DType::kFloat64).to_vector<double>();
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      result.labels += wanted[i] >= 0 && wanted[i] < static_cast<double>(classes);
      result.right += wanted[i] == static_cast<double>(best[i]);
    }
  }
  if (loss) result.loss = loss(scores, label).item<double>() * static_cast<double>(batch.examples);
  return result;
}

PositionRanges told(const BatchResult& result) {
  require(result.first < kMostPositions && result.examples < kMostExamples, "a batch of ", result.examples,
          " examples from position ", result.first, " on cannot be told to the other workers; at most ",
          kMostExamples - 1, " and below ", kMostPositions, " can");
  const std::int64_t begin = (result.first * kMostExamples + result.examples) * kBits;
  PositionRanges ranges;
  add_bits(std::bit_cast<std::uint64_t>(result.loss), begin, ranges);
  add_bits(static_cast<std::uint64_t>(result.labels), begin + kLossBits, ranges);
  add_bits(static_cast<std::uint64_t>(result.right), begin + kLossBits + kCountBits, ranges);
  return ranges;
}

std::vector<BatchResult> heard(const PositionRanges& told) {
  struct Bits {
    std::uint64_t loss = 0, labels = 0, right = 0;
  };
  std::map<std::int64_t, Bits> batches;
  for (const auto& [begin, end] : told)
    for (std::int64_t place = begin; place < end; ++place) {
      Bits& bits = batches[place / kBits];
      const std::int64_t bit = place % kBits, count = bit - kLossBits;
      (count < 0            ? bits.loss
       : count < kCountBits ? bits.labels
                            : bits.right) |= std::uint64_t{1} << (count < 0 ? bit : count % kCountBits);
    }
  std::vector<BatchResult> results;
  for (const auto& [name, bits] : batches)
    results.push_back({.first = name / kMostExamples,
                       .examples = name % kMostExamples,
                       .labels = static_cast<std::int64_t>(bits.labels),
                       .right = static_cast<std::int64_t>(bits.right),
                       .loss = std::bit_cast<double>(bits.loss)});
  return results;
}

Evaluation sum_of(const std::vector<BatchResult>& results) {
  Evaluation all;
  std::int64_t labels = 0, right = 0;
  for (const BatchResult& result : results) {
    all.examples += result.examples;
    labels += result.labels;
    right += result.right;
    all.loss += result.loss;
  }
  if (labels > 0) all.accuracy = static_cast<double>(right) / static_cast<double>(labels);
  if (all.examples > 0) all.loss /= static_cast<double>(all.examples);
  return all;
}

Evaluation evaluate(const Module& net, DataIterator& data, const Loss& loss, Device device) {
  const RecordingScope no_recording(nullptr);
  std::vector<BatchResult> results;
  for (Batch& batch : EpochRange(data, 0, {}))
    results.push_back(BatchResult::of(net(batch.data.to(device), {.training = false, .device = device}), batch, loss));
  return sum_of(results);
}

}  // namespace paceline::nn
