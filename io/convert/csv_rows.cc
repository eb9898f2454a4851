// CSV and TSV as tables.

#include <paceline/convert_sources.h>
#include <paceline/error.h>

#include <algorithm>
#include <set>
#include <utility>

#include "convert/line_rows.h"
#include "csv_decoder.h"
#include "text_numbers.h"

namespace paceline {
namespace io {
namespace {

std::string_view trimmed(std::string_view word) {
  constexpr std::string_view kBlank = " \t\r\n";
  word.remove_prefix(std::min(word.find_first_not_of(kBlank), word.size()));
  return word.substr(0, word.find_last_not_of(kBlank) + 1);
}

LineRules rules_of(const CsvSourceOptions& options, bool skips_header) {
  return {.quote = options.delimiter == '\t' ? '\0' : '"',
          .delimiter = options.delimiter,
          .skip = skips_header ? std::size_t{1} : 0};
}

void split_line(std::string_view line, const LineRules& rules, std::vector<std::string>& words) {
  words.clear();
  for (FieldReader fields(line, rules.delimiter, rules.quote); fields.more();)
    words.emplace_back(trimmed(fields.next()));
}

// The words of the first line.
std::vector<std::string> first_words(const std::string& file, const LineRules& rules) {
  std::string line = first_line(file, rules);
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (line.starts_with(kByteOrderMark)) line.erase(0, kByteOrderMark.size());
  std::vector<std::string> words;
  try {
    split_line(line, rules, words);
  } catch (const Corrupt& error) {
    throw Corrupt(str("the first line of ", file, ' ', error.what()));
  }
  return words;
}

// What the first lines of the files tell.
struct Head {
  std::vector<std::string> columns;
  bool is_header = false;
};

Head head_of(const std::vector<std::string>& files, const CsvSourceOptions& options) {
  require(!files.empty(), "no files were given");
  const LineRules rules = rules_of(options, false);
  Head head{first_words(files[0], rules)};
  const bool numbers = std::any_of(head.columns.begin(), head.columns.end(), [](const std::string& word) {
    float value = 0;
    return parse_finite(word, value);
  });
  const bool differ = std::set<std::string>(head.columns.begin(), head.columns.end()).size() == head.columns.size();
  head.is_header = options.header == CsvHeader::kYes || (options.header == CsvHeader::kAuto && !numbers && differ);
  if (!head.is_header) {
    for (std::size_t i = 0; i < head.columns.size(); ++i) head.columns[i] = std::to_string(i);
    return head;
  }
  require(differ, "the header of ", files[0], " names two columns alike");
  for (const std::string& file : files)
    require(first_words(file, rules) == head.columns, "the header of ", file, " is not that of ", files[0]);
  return head;
}

class CsvRows final : public LineRows {
 public:
  CsvRows(const std::vector<std::string>& files, const CsvSourceOptions& options)
      : CsvRows(files, options, head_of(files, options)) {}

  void parse(std::string_view bytes, std::vector<std::string>& words) const override {
    split_line(bytes, rules_, words);
    if (words.size() != columns_.size())
      throw Corrupt(str("it has ", words.size(), " columns, expected ", columns_.size()));
  }
  std::string identity() const override {
    return str("csv ", rules_.delimiter, rules_.skip, '\n', LineRows::identity());
  }

 private:
  CsvRows(const std::vector<std::string>& files, const CsvSourceOptions& options, Head head)
      : LineRows(files, rules_of(options, head.is_header)), rules_(rules_of(options, head.is_header)) {
    columns_ = std::move(head.columns);
  }

  const LineRules rules_;
};

}  // namespace
}  // namespace io

RecordSourceHandle csv_source(const std::vector<std::string>& files, const CsvSourceOptions& options) {
  require(options.delimiter != '"' && options.delimiter != '\n' && options.delimiter != '\r',
          "the delimiter of a table cannot be a quote or a line break");
  return io::table_source(std::make_unique<io::CsvRows>(files, options), options.table);
}

}  // namespace paceline
