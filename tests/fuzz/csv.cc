#include <paceline/csv.h>

#include <charconv>
#include <cmath>
#include <numeric>
#include <vector>

#include "csv_decoder.h"
#include "fuzz.h"
#include "row_store.h"

namespace paceline::fuzz {
namespace {

constexpr double kMissing = -7;
const CsvArray kAllColumns{.name = "data", .dtype = DType::kFloat64, .missing = kMissing};

struct Format {
  bool header;
  char delimiter, quote;
};

// The rules of csv.h, character by character.
class Rules {
 public:
  Rules(std::string_view text, Format format) : format_(format) {
    if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
    // Between quotes; behind them, where a quote is one of two; where a field begins; within a plain field.
    enum { kQuoted, kClosed, kFieldBegin, kPlain } place = kFieldBegin;
    std::string line;
    for (const char c : text) {
      const bool quote = format.quote && c == format.quote;
      if (place == kQuoted) {
        if (quote) place = kClosed;
        line += c;
      } else if (c == '\n') {
        take(line);
        place = kFieldBegin;
      } else {
        const bool opens = quote && (place == kFieldBegin || place == kClosed);
        place = opens ? kQuoted : c == format.delimiter ? kFieldBegin : kPlain;
        line += c;
      }
    }
    take(line);
    ends = place != kQuoted;
  }

  // The fields of a row; none where its quotes are wrong.
  std::optional<std::vector<std::string>> fields(const std::string& row) const {
    std::vector<std::string> fields;
    for (std::size_t i = 0;; ++i) {
      std::string& field = fields.emplace_back();
      if (format_.quote && i < row.size() && row[i] == format_.quote) {
        for (++i;; ++i) {
          if (i >= row.size()) return std::nullopt;
          if (row[i] == format_.quote) {
            ++i;
            if (i == row.size() || row[i] != format_.quote) break;
          }
          field += row[i];
        }
      } else {
        for (; i < row.size() && row[i] != format_.delimiter; ++i) field += row[i];
        if (format_.quote && field.find(format_.quote) != std::string::npos) return std::nullopt;
      }
      if (i == row.size()) return fields;
      if (row[i] != format_.delimiter) return std::nullopt;
    }
  }

  static std::optional<double> number(std::string_view field) {
    constexpr std::string_view kBlank = " \t\r\n\v\f";
    field.remove_prefix(std::min(field.size(), field.find_first_not_of(kBlank)));
    field = field.substr(0, field.find_last_not_of(kBlank) + 1);
    for (const char* missing : {"", "NA", "N/A", "NaN", "nan", "NULL", "null"})
      if (field == missing) return kMissing;
    if (field.size() > 1 && field[0] == '+' && field[1] != '-') field.remove_prefix(1);
    double value = 0;
    const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    if (error != std::errc() || end != field.data() + field.size() || !std::isfinite(value)) return std::nullopt;
    return value;
  }

  std::vector<std::string> rows;
  bool ends = true;  // every quote

 private:
  void take(std::string& line) {
    if (line.ends_with('\r')) line.pop_back();
    if (!line.empty()) rows.push_back(line);
    line.clear();
  }

  const Format format_;
};

// What a reader makes of a file.
struct Examples {
  std::vector<std::string> columns;
  std::vector<double> values;
  std::int64_t damaged = 0;
};

Examples read_by_iterator(const std::string& path, Format format) {
  CsvIterator data(path, {.batch = 3,
                          .arrays = {kAllColumns},
                          .header = format.header,
                          .delimiter = format.delimiter,
                          .quote = format.quote,
                          .on_damage = OnDamage::kSkip,
                          .decode_threads = 1});
  Examples read{data.columns(), {}, 0};
  if (!format.header) read.columns.resize(data.columns().size());
  data.start(0);
  for (Batch batch; data.next(batch);)
    for (const double value : batch.data.to_vector<double>()) read.values.push_back(value);
  read.damaged = data.damaged();
  return read;
}

// On this thread, which is ten times as fast.
Examples read_row_by_row(const std::string& path, Format format) {
  const io::RowFile file(path, {.quote = format.quote, .delimiter = format.delimiter}, format.header, 1);
  require(file.rows() > 0, "no rows");
  Examples read{io::fields_of(file.first_row(), format.delimiter, format.quote), {}, 0};
  const std::size_t width = read.columns.size();
  if (!format.header) read.columns.assign(width, "");
  const io::CsvLayout layout({kAllColumns}, format.header ? read.columns : std::vector<std::string>(), width,
                             {format.delimiter, format.quote});
  std::vector<std::int64_t> rows(static_cast<std::size_t>(file.rows()));
  std::iota(rows.begin(), rows.end(), 0);
  file.read(rows, [&](std::size_t, std::uint64_t, std::string_view row) {
    std::vector<double> values(width);
    void* const to = values.data();
    try {
      layout.decode(row, {&to, 1});
    } catch (const Corrupt&) {
      ++read.damaged;
      return;
    }
    read.values.insert(read.values.end(), values.begin(), values.end());
  });
  return read;
}

}  // namespace

// The header, the delimiter, the quote and the reader in one byte; then the file.
void csv(std::string_view input) {
  Cutter cut(input);
  const auto choice = cut.number<std::uint8_t>();
  const Format format{(choice & 1) != 0, choice & 2 ? ';' : ',', choice & 4 ? '\0' : '"'};
  const bool by_iterator = choice / 8 == 31;
  const std::string path = file_of(cut.rest());
  const auto read = parsed<Corrupt, InvalidArgument>(
      [&] { return by_iterator ? read_by_iterator(path, format) : read_row_by_row(path, format); });
  if (!read) return;
  const Rules rules(cut.rest(), format);
  expect(rules.ends && rules.rows.size() > (format.header ? 1 : 0), "a file without rows was opened");
  const auto first = rules.fields(rules.rows[0]);
  expect(first && first->size() == read->columns.size(), read->columns.size(), " columns");
  if (format.header) expect(read->columns == *first, "the header has other names");
  std::vector<double> expected;
  std::int64_t damaged = 0;
  for (std::size_t i = format.header ? 1 : 0; i < rules.rows.size(); ++i) {
    const auto fields = rules.fields(rules.rows[i]);
    std::vector<double> values;
    if (fields)
      for (const std::string& field : *fields)
        if (const auto number = Rules::number(field)) values.push_back(*number);
    if (values.size() == first->size() && fields->size() == first->size())
      expected.insert(expected.end(), values.begin(), values.end());
    else
      ++damaged;
  }
  expect(read->damaged == damaged, read->damaged, " rows are damaged, not ", damaged);
  expect(read->values == expected, "the rows come back as others");
}

}  // namespace paceline::fuzz
