#include <paceline/csv.h>

#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include <utility>

#include "csv_decoder.h"
#include "example_arrays.h"
#include "row_store.h"

namespace paceline {
namespace {

// The arrays that the simple options ask for.
std::vector<CsvArray> arrays_of(const CsvIteratorOptions& options) {
  if (!options.arrays.empty()) {
    require(options.label.empty() && options.classes.empty() && !options.missing,
            "CsvIteratorOptions has arrays, which say all about columns; leave out label, classes and missing");
    return options.arrays;
  }
  std::vector<CsvArray> arrays{{.name = "data", .missing = options.missing}};
  if (options.label.empty()) return arrays;
  arrays.push_back({.name = "label",
                    .columns = {options.label},
                    .dtype = options.class_labels ? DType::kInt32 : DType::kFloat32,
                    .categories = options.classes});
  return arrays;
}

bool is_delimiter(char c) { return c != '\n' && c != '\r' && c != 0; }

}  // namespace

struct CsvIterator::State {
  State(const std::string& path, const CsvIteratorOptions& options) {
    require(is_delimiter(options.delimiter) && options.delimiter != options.quote, "the delimiter of ", redacted(path),
            " cannot be an end of line, or the quote");
    require(options.quote != '\n' && options.quote != '\r', "the quote of ", redacted(path),
            " cannot be an end of line");
    try {
      file = std::make_shared<io::RowFile>(path, io::RowFormat{.quote = options.quote, .delimiter = options.delimiter},
                                           options.header, options.decode_threads);
    } catch (const io::OpenQuote& error) {
      throw Corrupt(error.what() + io::quote_advice(options.quote));
    }
    require(file->rows() > 0, file->path(), " holds no rows", options.header ? " behind its header" : "");
    try {
      columns = io::fields_of(file->first_row(), options.delimiter, options.quote);
    } catch (const Corrupt& error) {
      throw Corrupt(str(file->path(), ": its first row ", error.what()));
    }
    std::shared_ptr<io::CsvLayout> layout;
    try {
      layout =
          std::make_shared<io::CsvLayout>(arrays_of(options), options.header ? columns : std::vector<std::string>(),
                                          columns.size(), io::CsvLayout::Format{options.delimiter, options.quote});
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(str(file->path(), ": ", error.what()));
    }
    io::require_distinct(layout->arrays(), "a CsvIterator");
    if (options.arrays.empty() && options.class_labels) layout->require_class_labels();
    if (!options.header)
      for (std::size_t i = 0; i < columns.size(); ++i) columns[i] = std::to_string(i);
    rows = std::make_shared<io::RowStore>(file, io::csv_decoder(layout), options.on_damage,
                                          options.header ? "" : "-no-header");  // whose rows begin one earlier
  }

  std::shared_ptr<const io::RowFile> file;
  std::vector<std::string> columns;
  std::shared_ptr<io::RowStore> rows;
};

CsvIterator::CsvIterator(const std::string& path, const CsvIteratorOptions& options)
    : CsvIterator(std::make_shared<State>(path, options), options) {}

CsvIterator::CsvIterator(const std::shared_ptr<State>& state, const CsvIteratorOptions& options)
    : PipelineIterator(io::row_pipeline(*state->file, state->rows, options)), state_(state) {}

CsvIterator::~CsvIterator() = default;

const std::vector<std::string>& CsvIterator::columns() const { return state_->columns; }
std::vector<RecordDamage> CsvIterator::damage() const { return state_->rows->damage().listed(); }
std::int64_t CsvIterator::damaged() const { return state_->rows->damage().count(); }

}  // namespace paceline
