#pragma once
// Rows of fields as the arrays of an example.

#include <paceline/csv.h>
#include <paceline/decoder.h>
#include <paceline/error.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::io {

// A field with a quote in a wrong place. Whoever lets users choose the quote adds quote_advice().
class WrongQuote : public Corrupt {
 public:
  using Corrupt::Corrupt;
};
std::string quote_advice(char quote);

// Takes a row apart, field by field.
class FieldReader {
 public:
  FieldReader(std::string_view row, char delimiter, char quote)
      : at_(row.data()), end_(row.data() + row.size()), delimiter_(delimiter), quote_(quote) {}

  // Is a field left? A row has one at least.
  bool more() const { return at_ <= end_; }
  // The next field, without the quotes around it; valid until the next call. Throws WrongQuote with the reason alone.
  std::string_view next();
  // The same for a field that is a number and nothing else; false, and nothing is read, where it is not.
  template <class T>
  bool next_number(T& number);

 private:
  std::string_view next_quoted();

  const char* at_;
  const char* end_;
  const char delimiter_;
  const char quote_;
  std::string unquoted_;  // of a field with doubled quotes
};

// Which column goes where.
class CsvLayout {
 public:
  struct Format {
    char delimiter = ',';
    char quote = '"';
    bool missing = true;  // fields may be
  };
  // `names`: of the columns; empty: `count` columns are known by their numbers. Throws InvalidArgument.
  CsvLayout(std::vector<CsvArray> arrays, std::vector<std::string> names, std::size_t count, Format format);

  // "label" is a class number, which is not negative.
  void require_class_labels();

  std::vector<ExampleArray> arrays() const;
  // Throws Corrupt with the reason alone.
  void decode(std::string_view row, std::span<void* const> to) const;

 private:
  struct Target {
    std::optional<std::size_t> array;  // none: the column is left out
    std::size_t element = 0;           // of the array
  };
  struct Array {
    CsvArray given;
    Shape shape;
    std::map<std::string, std::size_t, std::less<>> places;  // of the categories
    bool classes = false;
  };

  std::size_t column_of(const CsvArray& array, const std::string& name) const;
  void take(Array& array, std::size_t column);
  bool write_fast(FieldReader& fields, const Array& array, void* to, std::size_t element) const;
  void write(std::string_view field, std::size_t column, const Array& array, void* to, std::size_t element) const;
  [[noreturn]] void throw_wrong(std::size_t column, std::string_view field, const std::string& expected) const;
  std::string text_of(std::size_t column) const;
  std::size_t width_of(std::string_view row) const;

  const std::vector<std::string> names_;
  const Format format_;
  std::vector<Array> arrays_;
  std::vector<Target> targets_;  // one for each column
};

// The decoder of a layout.
DecoderFactory csv_decoder(const std::shared_ptr<const CsvLayout>& layout);

// The fields of a row. Throws Corrupt with the reason alone.
std::vector<std::string> fields_of(std::string_view row, char delimiter, char quote);

}  // namespace paceline::io
