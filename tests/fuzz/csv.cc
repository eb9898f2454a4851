#include <paceline/csv.h>

#include <charconv>
#include <cmath>
#include <numeric>
#include <optional>
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
  std::vector<double> values;
  std::int64_t damaged = 0;
};

// The constructor may refuse a file, read() may not.
class Iterator {
 public:
  Iterator(const std::string& path, Format format)
      : data_(path, {.batch = 3,
                     .arrays = {kAllColumns},
                     .header = format.header,
                     .delimiter = format.delimiter,
                     .quote = format.quote,
                     .on_damage = OnDamage::kSkip,
                     .decode_threads = 1}) {}

  const std::vector<std::string>& columns() const { return data_.columns(); }
  Examples read() {
    Examples read;
    data_.start(0);
    for (Batch batch; data_.next(batch);)
      for (const double value : batch.data.to_vector<double>()) read.values.push_back(value);
    read.damaged = data_.damaged();
    return read;
  }

 private:
  CsvIterator data_;
};

// Reads on this thread, which is several times as fast.
class RowByRow {
 public:
  RowByRow(const std::string& path, Format format)
      : file_(path, {.quote = format.quote, .delimiter = format.delimiter}, format.header, 1),
        columns_(io::fields_of(first_row(), format.delimiter, format.quote)),
        layout_({kAllColumns}, format.header ? columns_ : std::vector<std::string>(), columns_.size(),
                {format.delimiter, format.quote}) {}

  const std::vector<std::string>& columns() const { return columns_; }
  Examples read() {
    std::vector<std::int64_t> rows(static_cast<std::size_t>(file_.rows()));
    std::iota(rows.begin(), rows.end(), 0);
    Examples read;
    file_.read(rows, [&](std::size_t, std::uint64_t, std::string_view row) {
      std::vector<double> values(columns_.size());
      void* const to = values.data();
      try {
        layout_.decode(row, {&to, 1});
        read.values.insert(read.values.end(), values.begin(), values.end());
      } catch (const Corrupt&) {
        ++read.damaged;
      }
    });
    return read;
  }

 private:
  std::string first_row() const {
    require(file_.rows() > 0, "no rows");
    return file_.first_row();
  }

  const io::RowFile file_;
  const std::vector<std::string> columns_;
  const io::CsvLayout layout_;
};

template <class Reader>
void check(const std::string& path, std::string_view text, Format format) {
  std::optional<Reader> reader;
  const auto opened = parsed<Corrupt, InvalidArgument>([&] {
    reader.emplace(path, format);
    return true;
  });
  if (!opened) return;
  const Rules rules(text, format);
  expect(rules.ends && rules.rows.size() > (format.header ? 1 : 0), "a file without rows was opened");
  const auto first = rules.fields(rules.rows[0]);
  expect(first && first->size() == reader->columns().size(), reader->columns().size(), " columns");
  if (format.header) expect(reader->columns() == *first, "the header has other names");
  Examples expected;
  for (std::size_t i = format.header ? 1 : 0; i < rules.rows.size(); ++i) {
    const auto fields = rules.fields(rules.rows[i]);
    std::vector<double> values;
    if (fields)
      for (const std::string& field : *fields)
        if (const auto number = Rules::number(field)) values.push_back(*number);
    if (values.size() == first->size() && fields->size() == first->size())
      expected.values.insert(expected.values.end(), values.begin(), values.end());
    else
      ++expected.damaged;
  }
  const Examples read = reader->read();
  expect(read.damaged == expected.damaged, read.damaged, " rows are damaged, not ", expected.damaged);
  expect(read.values == expected.values, "the rows come back as others");
}

}  // namespace

// The header, the delimiter, the quote and the reader in one byte; then the file.
void csv(std::string_view input) {
  Cutter cut(input);
  const auto choice = cut.number<std::uint8_t>();
  const Format format{(choice & 1) != 0, choice & 2 ? ';' : ',', choice & 4 ? '\0' : '"'};
  const std::string path = file_of(cut.rest());
  if (choice / 8 == 31)
    check<Iterator>(path, cut.rest(), format);
  else
    check<RowByRow>(path, cut.rest(), format);
}

}  // namespace paceline::fuzz
