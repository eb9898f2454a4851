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

RowFormat format_of(const CsvSourceOptions& options) {
  return {.quote = options.delimiter == '\t' ? '\0' : '"', .delimiter = options.delimiter};
}

void split_row(std::string_view row, const RowFormat& format, std::vector<std::string>& words) {
  words.clear();
  for (FieldReader fields(row, format.delimiter, format.quote); fields.more();)
    words.emplace_back(trimmed(fields.next()));
}

// The words of the first row of a file; none where the file has no rows.
std::vector<std::string> first_words(const std::string& file, const RowFormat& format) {
  const std::vector<std::string> rows = first_rows(file, format, 1);
  std::vector<std::string> words;
  try {
    if (!rows.empty()) split_row(rows[0], format, words);
  } catch (const Corrupt& error) {
    throw Corrupt(str("the first line of ", file, ' ', error.what()));
  }
  return words;
}

bool is_number(const std::string& word) {
  float value = 0;
  return parse_finite(word, value);
}

// Throws InvalidArgument where the first line, which holds a number or a word twice, may be a header all the same.
void refuse_doubtful(const std::vector<std::string>& first, const std::string& file, const RowFormat& format,
                     const TableOptions& options) {
  const auto refuse = [&](const std::string& why) {
    throw InvalidArgument(str("the first line of ", file, " may be a header: ", why, "; say --header yes or no"));
  };
  const std::vector<std::string> rows = first_rows(file, format, 2);
  std::vector<std::string> second;
  try {
    if (rows.size() > 1) split_row(rows[1], format, second);
  } catch (const Corrupt&) {
    second.clear();  // it counts as a bad row later
  }
  for (std::size_t i = 0; i < std::min(first.size(), second.size()); ++i) {
    const bool word = !is_number(first[i]) && !is_missing(first[i], options);
    if (word && is_number(second[i])) refuse(str(in_quotes(first[i]), " stands above the number ", second[i]));
  }
  // pandas names the columns of an array so, and leaves the name of its index empty.
  const std::size_t index = first.front().empty() ? 1 : 0;
  std::size_t counted = 0;
  while (index + counted < first.size() && first[index + counted] == std::to_string(counted)) ++counted;
  if (counted >= 2 && index + counted == first.size()) refuse("it counts the columns from 0");
}

// What the first lines of the files tell.
struct Head {
  std::vector<std::string> columns = {};
  bool is_header = false;
};

Head head_of(const std::vector<std::string>& files, const CsvSourceOptions& options) {
  require(!files.empty(), "no files were given");
  const RowFormat format = format_of(options);
  Head head;
  std::string first_file;
  for (const std::string& file : files) {
    std::vector<std::string> words = first_words(file, format);
    if (words.empty()) continue;  // as a part that another program has left empty
    if (!first_file.empty()) {
      require(words == head.columns, "the header of ", file, " is not that of ", first_file);
      continue;
    }
    first_file = file;
    head.columns = std::move(words);
    const bool numbers = std::any_of(head.columns.begin(), head.columns.end(), is_number);
    const bool differ = std::set<std::string>(head.columns.begin(), head.columns.end()).size() == head.columns.size();
    head.is_header = options.header == CsvHeader::kYes || (options.header == CsvHeader::kAuto && !numbers && differ);
    require(differ || !head.is_header, "the header of ", file, " names two columns alike");
    if (head.is_header) continue;
    if (options.header == CsvHeader::kAuto) refuse_doubtful(head.columns, file, format, options.table);
    for (std::size_t i = 0; i < head.columns.size(); ++i) head.columns[i] = std::to_string(i);
    break;
  }
  require(!first_file.empty(), files[0], " holds no rows");
  return head;
}

class CsvRows final : public LineRows {
 public:
  CsvRows(const std::vector<std::string>& files, const CsvSourceOptions& options)
      : CsvRows(files, options, head_of(files, options)) {}

  void parse(std::string_view bytes, std::vector<std::string>& words) const override {
    split_row(bytes, format_, words);
    if (words.size() != columns_.size())
      throw Corrupt(str("it has ", words.size(), " columns, expected ", columns_.size()));
  }
  std::string identity() const override { return str("csv ", format_.delimiter, header_, '\n', LineRows::identity()); }

 private:
  CsvRows(const std::vector<std::string>& files, const CsvSourceOptions& options, Head head)
      : LineRows(files, format_of(options), head.is_header), format_(format_of(options)), header_(head.is_header) {
    columns_ = std::move(head.columns);
  }

  const RowFormat format_;
  const bool header_;
};

}  // namespace
}  // namespace io

RecordSourceHandle csv_source(const std::vector<std::string>& files, const CsvSourceOptions& options) {
  require(options.delimiter != '"' && options.delimiter != '\n' && options.delimiter != '\r',
          "the delimiter of a table cannot be a quote or a line break");
  return io::table_source(std::make_unique<io::CsvRows>(files, options), options.table);
}

}  // namespace paceline
