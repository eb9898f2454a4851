#include "evaluation.h"

#include <paceline/ops.h>
#include <paceline/recorder.h>

#include <array>
#include <bit>
#include <map>

namespace paceline::nn {
namespace {

// Behind all data. A batch's first position is its name; each of its numbers is cut into digits, and a digit is that
// many positions, in a place with room between it and the next.
constexpr std::int64_t kTold = kNotData, kMostPositions = std::int64_t{1} << 35;
constexpr std::int64_t kPlace = std::int64_t{1} << 17, kPlaces = 16, kBatch = kPlaces * kPlace;
constexpr int kDigitBits = 16;
constexpr std::uint64_t kDigit = (std::uint64_t{1} << kDigitBits) - 1;

using Numbers = std::array<std::uint64_t, 4>;
using Digits = std::array<int, 4>;
constexpr Digits kDigits{2, 3, 3, 4};  // of examples, labels, right, loss

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

std::vector<Range> told(const BatchResult& result) {
  require(result.first < kMostPositions, "a batch from position ", result.first,
          " on cannot be told to the other workers; below ", kMostPositions, " one can");
  const Numbers numbers{static_cast<std::uint64_t>(result.examples), static_cast<std::uint64_t>(result.labels),
                        static_cast<std::uint64_t>(result.right), std::bit_cast<std::uint64_t>(result.loss)};
  std::vector<Range> ranges;
  std::int64_t place = kTold + result.first * kBatch;
  for (std::size_t i = 0; i < numbers.size(); ++i)
    for (int digit = 0; digit < kDigits[i]; ++digit, place += kPlace)
      if (const auto value = static_cast<std::int64_t>(numbers[i] >> (digit * kDigitBits) & kDigit); value > 0)
        ranges.push_back({place, place + value});
  return ranges;
}

std::vector<BatchResult> heard(const std::vector<Range>& committed) {
  std::map<std::int64_t, Numbers> batches;
  for (const Range& range : committed) {
    if (range.begin < kTold) continue;
    Numbers& numbers = batches[(range.begin - kTold) / kBatch];
    auto digit = static_cast<int>((range.begin - kTold) % kBatch / kPlace);
    std::size_t number = 0;
    while (number + 1 < kDigits.size() && digit >= kDigits[number]) digit -= kDigits[number++];
    numbers[number] |= static_cast<std::uint64_t>(range.end - range.begin) << (digit * kDigitBits);
  }
  std::vector<BatchResult> results;
  for (const auto& [first, numbers] : batches)
    results.push_back({.first = first,
                       .examples = static_cast<std::int64_t>(numbers[0]),
                       .labels = static_cast<std::int64_t>(numbers[1]),
                       .right = static_cast<std::int64_t>(numbers[2]),
                       .loss = std::bit_cast<double>(numbers[3])});
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

double evaluate(const Module& net, DataIterator& data, Device device) {
  return evaluate(net, data, nullptr, device).accuracy;
}

}  // namespace paceline::nn
