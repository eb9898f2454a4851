#include <paceline/libsvm.h>

#include <paceline/crc32c.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <string_view>

#include "epoch_order.h"
#include "file.h"
#include "text_numbers.h"

namespace paceline {
namespace {

template <class T>
NDArray vector_of(const std::vector<T>& values) {
  return NDArray::from(values, {static_cast<std::int64_t>(values.size())});
}

NDArray row_numbers(std::int64_t count) {
  require(count <= std::numeric_limits<std::int32_t>::max(), "a SparseIterator takes fewer than 2^31 examples, got ",
          count);
  std::vector<std::int32_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return vector_of(rows);
}

}  // namespace

SparseExamples load_libsvm(const std::string& path, const LibsvmOptions& options) {
  require(options.features >= 0, "[load_libsvm] features is ", options.features, ", expected none negative");
  const std::string text = io::read_text(path);
  const std::int64_t lowest = options.from_zero ? 0 : 1;
  std::int64_t features = options.features, line_number = 0;
  std::vector<std::int64_t> starts{0}, columns;
  std::vector<float> values, labels;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.size(), text.find('\n', begin));
    io::Words words(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++line_number;
    std::string_view word;
    if (!words.next(word)) continue;
    if (!io::parse_finite(word, labels.emplace_back()))
      throw Corrupt(str(path, ":", line_number, ": ", io::quoted(word), " is no label, expected a finite number"));
    while (words.next(word)) {
      std::int64_t index = 0;
      if (!io::parse_feature(word, index, values.emplace_back()))
        throw Corrupt(str(path, ":", line_number, ": ", io::quoted(word),
                          " is no feature, expected index:value with a finite value"));
      const bool inside = index >= lowest && (options.features == 0 || index - lowest < options.features);
      if (!inside || index == std::numeric_limits<std::int64_t>::max())
        throw Corrupt(str(path, ":", line_number, ": index ", index, " is outside, expected ", lowest, " to ",
                          options.features == 0 ? "any" : std::to_string(options.features - 1 + lowest)));
      columns.push_back(index - lowest);
      features = std::max(features, columns.back() + 1);
    }
    starts.push_back(static_cast<std::int64_t>(columns.size()));
  }
  const auto rows = static_cast<std::int64_t>(labels.size());
  return {{vector_of(starts), vector_of(columns), vector_of(values), {rows, features}}, vector_of(labels)};
}

SparseIterator::SparseIterator(SparseExamples examples, MemoryIteratorOptions options)
    : examples_(std::move(examples)),
      rows_(NDArray::zeros({examples_.data.shape[0]}), row_numbers(examples_.data.shape[0]), std::move(options)) {
  for (const NDArray* array :
       {&examples_.data.starts, &examples_.data.columns, &examples_.data.values, &examples_.label})
    array->wait();
}

std::string SparseIterator::order() const {
  if (identity_.empty()) {
    std::uint32_t sum = 0;
    for (const NDArray* array :
         {&examples_.data.starts, &examples_.data.columns, &examples_.data.values, &examples_.label})
      sum = crc32c({array->data_as<char>(), array->bytes()}, sum);
    identity_ = io::checksum_text(sum);
  }
  return rows_.order() + " rows=" + identity_;
}

bool SparseIterator::next(SparseBatch& batch) {
  Batch rows;
  if (!rows_.next(rows)) return false;
  const SparseRows& all = examples_.data;
  const auto* const starts = all.starts.data_as<std::int64_t>();
  const auto* const columns = all.columns.data_as<std::int64_t>();
  const auto* const values = all.values.data_as<float>();
  const auto* const labels = examples_.label.data_as<float>();
  std::vector<std::int64_t> batch_starts{0}, batch_columns;
  std::vector<float> batch_values, batch_labels;
  for (const std::int32_t row : rows.label.to_vector<std::int32_t>()) {
    batch_columns.insert(batch_columns.end(), columns + starts[row], columns + starts[row + 1]);
    batch_values.insert(batch_values.end(), values + starts[row], values + starts[row + 1]);
    batch_starts.push_back(static_cast<std::int64_t>(batch_columns.size()));
    batch_labels.push_back(labels[row]);
  }
  batch.data = {
      vector_of(batch_starts), vector_of(batch_columns), vector_of(batch_values), {rows.examples, all.shape[1]}};
  batch.label = vector_of(batch_labels);
  batch.examples = rows.examples;
  batch.epoch = rows.epoch;
  batch.positions = std::move(rows.positions);
  return true;
}

void SparseIterator::commit(const SparseBatch& batch) {
  Batch rows;
  rows.epoch = batch.epoch;
  rows.positions = batch.positions;
  rows_.commit(rows);
}

}  // namespace paceline
