#include <paceline/libsvm.h>

#include <charconv>

#include "arrays.h"

namespace paceline::fuzz {
namespace {

template <class T>
std::string written(T number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

}  // namespace

// Where indices begin and whether the number of features is given, in one byte; then the file.
void libsvm(std::string_view input) {
  Cutter cut(input);
  const auto choice = cut.number<std::uint8_t>();
  LibsvmOptions options{.features = choice & 2 ? 100 : 0, .from_zero = (choice & 1) != 0};
  const std::string path = file_of(cut.rest());
  const auto read =
      within(65536 + 64 * input.size(), [&] { return parsed<Corrupt>([&] { return load_libsvm(path, options); }); });
  if (!read) return;
  const auto starts = read->data.starts.to_vector<std::int64_t>(),
             columns = read->data.columns.to_vector<std::int64_t>();
  const auto values = read->data.values.to_vector<float>(), labels = read->label.to_vector<float>();
  expect(starts.size() == labels.size() + 1 && starts.front() == 0 &&
             starts.back() == static_cast<std::int64_t>(columns.size()) && columns.size() == values.size(),
         "the parts do not fit together");
  expect(options.features == 0 || read->data.shape[1] == options.features, read->data.shape[1], " columns");
  std::string text;
  for (std::size_t row = 0; row < labels.size(); ++row) {
    text += written(labels[row]);
    for (auto i = static_cast<std::size_t>(starts[row]); i < static_cast<std::size_t>(starts.at(row + 1)); ++i) {
      expect(columns[i] >= 0 && columns[i] < read->data.shape[1], "column ", columns[i], " of ", read->data.shape[1]);
      text += ' ' + written(columns[i]) + ':' + written(values[i]);
    }
    text += '\n';
  }
  options = {.features = read->data.shape[1], .from_zero = true};
  const SparseExamples again = load_libsvm(file_of(text), options);
  expect(same(again.data.starts, read->data.starts) && same(again.data.columns, read->data.columns) &&
             same(again.data.values, read->data.values) && same(again.label, read->label),
         "the examples come back as others");
}

}  // namespace paceline::fuzz
