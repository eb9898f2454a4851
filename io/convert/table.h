#pragma once
// Tables of words: how rows are read, what the columns are, and how a row becomes a record.

#include <paceline/convert_sources.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::io {

// The rows of a table, as words. Thread-safe.
class TableRows {
 public:
  virtual ~TableRows() = default;
  virtual std::int64_t size() const = 0;
  virtual const std::vector<std::string>& columns() const = 0;
  virtual std::string place(std::int64_t row) const = 0;
  // The bytes of a row.
  virtual void read(std::int64_t row, std::string& bytes) const = 0;
  virtual void each(const std::function<void(std::int64_t row, std::string_view bytes)>& body) const = 0;
  // The words of a row, one for each column; those of CSV and TSV without the space around them. Throws Corrupt. Its
  // message gives the reason only; the caller adds file and row.
  virtual void parse(std::string_view bytes, std::vector<std::string>& words) const = 0;
  virtual std::string identity() const = 0;
};

// Is the word among those for a missing value?
bool is_missing(std::string_view word, const TableOptions& options);

// The schema that the options and the values give. Throws InvalidArgument for columns that are not there.
TableSchema infer_schema(const TableRows& rows, const TableOptions& options);

// Throws InvalidArgument where a schema does not fit the columns.
void check_schema(const TableSchema& schema, const std::vector<std::string>& columns);

// As TableSchema::save() writes it.
std::string text_of(const TableSchema& schema);

// The checksum of what the numbers of a row mean: the names, types and categories of the columns that are not left out.
std::uint32_t columns_crc32c(const TableSchema& schema);

// Is this column the label? `label` is its name; empty: there is none, though a column may have no name.
inline bool is_label(const std::string& label, const std::string& column) { return !label.empty() && column == label; }

// Is the label a class number?
bool has_classes(const TableSchema& schema);

RecordSourceHandle table_source(std::unique_ptr<const TableRows> rows, const TableOptions& options);

}  // namespace paceline::io
