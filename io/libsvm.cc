#include <paceline/libsvm.h>

#include <paceline/crc32c.h>
#include <paceline/detail/remote.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "epoch_order.h"
#include "file.h"
#include "libsvm_row.h"

namespace paceline {
namespace {

template <class T>
NDArray vector_of(const std::vector<T>& values) {
  return NDArray::from(values, {static_cast<std::int64_t>(values.size())});
}

NDArray row_numbers(std::int64_t count) {
  std::vector<std::int64_t> rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), 0);
  return vector_of(rows);
}

}  // namespace

SparseExamples load_libsvm(const std::string& path, const LibsvmOptions& options) {
  require(options.features >= 0, "[load_libsvm] features is ", options.features, ", expected none negative");
  const std::string text = io::read_text(path);
  std::int64_t features = options.features, line_number = 0;
  std::vector<std::int64_t> starts{0}, columns;
  std::vector<float> values, labels;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.size(), text.find('\n', begin));
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++line_number;
    std::string_view word;
    if (!io::Words(line).next(word)) continue;
    try {
      labels.push_back(
          io::read_libsvm_row(line, options.from_zero, options.features, [&](std::int64_t column, float value) {
            columns.push_back(column);
            values.push_back(value);
            features = std::max(features, column + 1);
          }));
    } catch (const Corrupt& error) {
      throw Corrupt(str(redacted(path), ":", line_number, ": ", error.what()));
    }
    starts.push_back(static_cast<std::int64_t>(columns.size()));
  }
  const auto rows = static_cast<std::int64_t>(labels.size());
  return {{vector_of(starts), vector_of(columns), vector_of(values), {rows, features}}, vector_of(labels)};
}

SparseIterator::SparseIterator(SparseExamples examples, MemoryIteratorOptions options)
    : examples_(std::move(examples)), rows_({{"row", row_numbers(examples_.data.shape[0])}}, std::move(options)) {
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
  for (const std::int64_t row : rows.array("row").to_vector<std::int64_t>()) {
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
