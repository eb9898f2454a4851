#include <paceline/libsvm.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <numeric>
#include <string_view>

#include "file.h"

namespace paceline {
namespace {

// The words of one line.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line.substr(0, line.find('#'))) {}

  bool next(std::string_view& word) {
    constexpr std::string_view kBlank = " \t\r\v\f";
    rest_.remove_prefix(std::min(rest_.size(), rest_.find_first_not_of(kBlank)));
    word = rest_.substr(0, rest_.find_first_of(kBlank));
    rest_.remove_prefix(word.size());
    return !word.empty();
  }

 private:
  std::string_view rest_;
};

// Does all of `word` name a number?
template <class T>
bool parse(std::string_view word, T& number) {
  if (word.size() > 1 && word[0] == '+' && word[1] != '-') word.remove_prefix(1);
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  return error == std::errc() && end == word.data() + word.size();
}

// Programs that write doubles write some that a float rounds to 0.
bool parse_finite(std::string_view word, float& number) {
  if (parse(word, number)) return std::isfinite(number);
  double precise = 0;
  if (!parse(word, precise) || !(std::abs(precise) < 1)) return false;
  number = static_cast<float>(precise);
  return true;
}

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
    Words words(std::string_view(text).substr(begin, end - begin));
    begin = end + 1;
    ++line_number;
    std::string_view word;
    if (!words.next(word)) continue;
    if (!parse_finite(word, labels.emplace_back()))
      throw Corrupt(str(path, ":", line_number, ": ", io::quoted(word), " is no label, expected a finite number"));
    while (words.next(word)) {
      const std::size_t colon = std::min(word.size(), word.find(':'));
      std::int64_t index = 0;
      if (!parse(word.substr(0, colon), index) || colon == word.size() ||
          !parse_finite(word.substr(colon + 1), values.emplace_back()))
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
