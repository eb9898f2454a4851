// CSV and TSV as tables.

#include <paceline/convert_sources.h>
#include <paceline/error.h>

#include <algorithm>
#include <set>
#include <utility>

#include "convert/source.h"
#include "convert/table.h"
#include "convert/text_file.h"
#include "text_numbers.h"

namespace paceline {
namespace io {
namespace {

std::string_view trimmed(std::string_view word) {
  constexpr std::string_view kBlank = " \t\r\n";
  word.remove_prefix(std::min(word.find_first_not_of(kBlank), word.size()));
  return word.substr(0, word.find_last_not_of(kBlank) + 1);
}

// The words of a line. A quote counts where it is the first character of a word.
void split_line(std::string_view line, char delimiter, std::vector<std::string>& words) {
  constexpr char kQuote = '"';
  std::size_t count = 0;
  for (bool more = true; more; ++count) {
    if (words.size() <= count) words.emplace_back();
    std::string& word = words[count];
    std::size_t end = 0;
    if (line.starts_with(kQuote)) {
      word.clear();
      for (std::size_t at = 1;; at = end + 2) {
        end = line.find(kQuote, at);
        if (end == std::string_view::npos) throw Corrupt("a quote is not closed");
        word += line.substr(at, end - at);
        if (end + 1 >= line.size() || line[end + 1] != kQuote) break;
        word += kQuote;
      }
      end = std::min(line.find(delimiter, end + 1), line.size());
    } else {
      end = std::min(line.find(delimiter), line.size());
      word = trimmed(line.substr(0, end));
    }
    more = end < line.size();
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  words.resize(count);
}

class CsvRows final : public TableRows {
 public:
  CsvRows(const std::vector<std::string>& files, const CsvSourceOptions& options)
      : delimiter_(options.delimiter),
        header_(find_columns(files, options)),
        lines_(files, {.quote = quote_of(options), .delimiter = options.delimiter, .skip = header_ ? 1u : 0u}),
        identity_(identity_of(files)) {
    for (std::size_t i = 1; header_ && i < files.size(); ++i) {
      std::vector<std::string> words;
      split_line(first_line(files[i], rules(options)), delimiter_, words);
      require(words == columns_ || i == 0, "the header of ", files[i], " is not that of ", files[0]);
    }
  }

  std::int64_t size() const override { return lines_.size(); }
  const std::vector<std::string>& columns() const override { return columns_; }
  std::string place(std::int64_t row) const override { return lines_.place(row); }
  void read(std::int64_t row, std::string& bytes) const override { lines_.read(row, bytes); }
  void each(const std::function<void(std::int64_t row, std::string_view bytes)>& body) const override {
    lines_.each(body);
  }
  void parse(std::string_view bytes, std::vector<std::string>& words) const override {
    split_line(bytes, delimiter_, words);
    if (words.size() != columns_.size())
      throw Corrupt(str("it has ", words.size(), " columns, expected ", columns_.size()));
  }
  std::string identity() const override { return str("csv ", delimiter_, header_, '\n', identity_); }

 private:
  static char quote_of(const CsvSourceOptions& options) { return options.delimiter == '\t' ? '\0' : '"'; }
  static LineRules rules(const CsvSourceOptions& options) {
    return {.quote = quote_of(options), .delimiter = options.delimiter};
  }

  // Sets columns_, and tells whether there is a header.
  bool find_columns(const std::vector<std::string>& files, const CsvSourceOptions& options) {
    require(!files.empty(), "no files were given");
    std::string line = first_line(files[0], rules(options));
    constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
    if (line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
    split_line(line, delimiter_, columns_);
    const bool numbers = std::any_of(columns_.begin(), columns_.end(), [](const std::string& word) {
      float value = 0;
      return parse_finite(word, value);
    });
    const bool differ = std::set<std::string>(columns_.begin(), columns_.end()).size() == columns_.size();
    const bool header = options.header == CsvHeader::kYes || (options.header == CsvHeader::kAuto && !numbers && differ);
    require(!header || differ, "the header of ", files[0], " names two columns alike");
    for (std::size_t i = 0; !header && i < columns_.size(); ++i) columns_[i] = std::to_string(i);
    return header;
  }

  const char delimiter_;
  std::vector<std::string> columns_;
  const bool header_;
  const Lines lines_;
  const std::string identity_;
};

}  // namespace
}  // namespace io

RecordSourceHandle csv_source(const std::vector<std::string>& files, const CsvSourceOptions& options) {
  require(options.delimiter != '"' && options.delimiter != '\n' && options.delimiter != '\r',
          "the delimiter of a table cannot be a quote or a line break");
  return io::table_source(std::make_unique<io::CsvRows>(files, options), options.table);
}

}  // namespace paceline
