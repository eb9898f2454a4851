#include "csv_decoder.h"

#include <paceline/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "class_label.h"
#include "file.h"
#include "text_numbers.h"

namespace paceline::io {
namespace {

constexpr std::array<std::string_view, 7> kMissing{"", "NA", "N/A", "NaN", "nan", "NULL", "null"};

std::string_view trimmed(std::string_view field) {
  constexpr std::string_view kBlank = " \t\r\n\v\f";
  field.remove_prefix(std::min(field.size(), field.find_first_not_of(kBlank)));
  return field.substr(0, field.find_last_not_of(kBlank) + 1);
}

// The number as a T, if it is one.
template <class T>
bool to_whole(double number, T& whole) {
  // 2^63 is the first double that no int64 holds.
  const double limit = std::ldexp(1.0, std::numeric_limits<T>::digits);
  const double least = std::numeric_limits<T>::is_signed ? -limit : 0;
  if (!(number >= least && number < limit) || number != std::floor(number)) return false;
  whole = static_cast<T>(number);
  return true;
}

template <class T>
bool parse_field(std::string_view word, T& number) {
  if constexpr (std::is_same_v<T, float>) return parse_finite(word, number);
  if constexpr (std::is_same_v<T, double>) return parse_number(word, number) && std::isfinite(number);
  if (parse_number(word, number)) return true;
  double floating = 0;
  return parse_number(word, floating) && to_whole(floating, number);
}

template <class Body>
auto with_type(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::kFloat64: return body(double());  // NOLINT(bugprone-branch-clone): the types differ
    case DType::kUint8: return body(std::uint8_t());
    case DType::kInt8: return body(std::int8_t());
    case DType::kInt32: return body(std::int32_t());
    case DType::kInt64: return body(std::int64_t());
    default: return body(float());
  }
}

bool is_read(DType dtype) {
  return dtype == DType::kFloat32 || with_type(dtype, [](auto zero) { return !std::is_same_v<decltype(zero), float>; });
}

// What a field has to be, for errors.
std::string expected_of(const CsvArray& array) {
  if (!array.categories.empty()) {
    constexpr std::size_t kMost = 10;
    std::string words = "one of";
    for (std::size_t i = 0; i < std::min(kMost, array.categories.size()); ++i)
      words += " " + in_quotes(array.categories[i]);
    return words + (array.categories.size() > kMost ? " ..." : "");
  }
  if (is_floating(array.dtype)) return "a finite number";
  return with_type(array.dtype, [](auto zero) {
    using Limits = std::numeric_limits<decltype(zero)>;
    return str("a whole number from ", +Limits::lowest(), " to ", +Limits::max());
  });
}

// Throws InvalidArgument where the type of the array does not hold the number.
void require_fits(const CsvArray& array, double number, const char* what) {
  const bool fits = with_type(array.dtype, [&](auto element) {
    if constexpr (std::is_floating_point_v<decltype(element)>)
      return true;
    else
      return to_whole(number, element);
  });
  require(fits, "the array '", array.name, "' is ", name_of(array.dtype), ", which does not hold ", number, ", ", what);
}

}  // namespace

std::string quote_advice(char quote) { return str("; where ", quote, " does not quote, set quote = 0"); }

std::string_view FieldReader::next() {
  if (quote_ && at_ < end_ && *at_ == quote_) return next_quoted();
  const auto length = static_cast<std::size_t>(end_ - at_);
  const void* const found = length ? std::memchr(at_, delimiter_, length) : nullptr;
  const char* const stop = found ? static_cast<const char*>(found) : end_;
  const std::string_view field(at_, static_cast<std::size_t>(stop - at_));
  if (quote_ && field.find(quote_) != std::string_view::npos)
    throw WrongQuote(str("holds ", in_quotes(field), ", where a ", quote_,
                         " stands inside of a field; quote the whole field and double it"));
  at_ = stop + 1;
  return field;
}

std::string_view FieldReader::next_quoted() {
  unquoted_.clear();
  bool doubled = false;
  const char* const begin = ++at_;
  for (const char* part = begin;;) {
    const auto length = static_cast<std::size_t>(end_ - part);
    const auto* const close = static_cast<const char*>(length ? std::memchr(part, quote_, length) : nullptr);
    if (!close) throw WrongQuote(str("holds a field that begins with ", quote_, " and does not end"));
    if (close + 1 < end_ && close[1] == quote_) {
      unquoted_.append(part, close + 1);
      doubled = true;
      part = close + 2;
      continue;
    }
    if (close + 1 < end_ && close[1] != delimiter_)
      throw WrongQuote(str("holds ", in_quotes({begin - 1, static_cast<std::size_t>(end_ - begin) + 1}),
                           ", where text follows the ", quote_, " that ends the field"));
    at_ = close + 2;
    if (!doubled) return {begin, static_cast<std::size_t>(close - begin)};
    unquoted_.append(part, close);
    return unquoted_;
  }
}

template <class T>
bool FieldReader::next_number(T& number) {
  const auto [stop, error] = std::from_chars(at_, end_, number);
  if (error != std::errc() || (stop != end_ && *stop != delimiter_)) return false;
  if constexpr (std::is_floating_point_v<T>)
    if (!std::isfinite(number)) return false;
  at_ = stop + 1;
  return true;
}

std::vector<std::string> fields_of(std::string_view row, char delimiter, char quote) try {
  std::vector<std::string> fields;
  for (FieldReader reader(row, delimiter, quote); reader.more();) fields.emplace_back(reader.next());
  return fields;
} catch (const WrongQuote& error) {
  throw Corrupt(error.what() + quote_advice(quote));
}

CsvLayout::CsvLayout(std::vector<CsvArray> arrays, std::vector<std::string> names, std::size_t count, Format format)
    : names_(std::move(names)), format_(format), targets_(names_.empty() ? count : names_.size()) {
  std::optional<std::size_t> rest;
  for (CsvArray& given : arrays) {
    require(is_read(given.dtype), "the array '", given.name, "' is to be ", name_of(given.dtype),
            ", expected float32, float64, uint8, int8, int32 or int64");
    Array& array = arrays_.emplace_back();
    array.given = std::move(given);
    for (std::size_t i = 0; i < array.given.categories.size(); ++i)
      require(array.places.emplace(array.given.categories[i], i).second, "the array '", array.given.name,
              "' has the category '", array.given.categories[i], "' twice");
    if (!array.given.categories.empty())
      require_fits(array.given, static_cast<double>(array.given.categories.size() - 1), "its last category");
    if (array.given.missing) require_fits(array.given, *array.given.missing, "its value for missing fields");
    if (!array.given.columns.empty()) continue;
    require(!rest, "the arrays '", arrays_[rest.value_or(0)].given.name, "' and '", array.given.name,
            "' both name no columns; one alone can have all that are left");
    rest = arrays_.size() - 1;
  }
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    std::size_t element = 0;
    for (const std::string& name : arrays_[i].given.columns) {
      const std::size_t column = column_of(arrays_[i].given, name);
      require(!targets_[column].array, text_of(column), " is in the arrays '",
              arrays_[targets_[column].array.value_or(0)].given.name, "' and '", arrays_[i].given.name,
              "', or twice in one");
      targets_[column] = {i, element++};
    }
  }
  std::vector<std::size_t> elements(arrays_.size());
  for (Target& target : targets_) {
    if (!target.array && rest) target = {rest, elements[*rest]};
    if (target.array) ++elements[*target.array];
  }
  for (std::size_t i = 0; i < arrays_.size(); ++i) {
    const CsvArray& given = arrays_[i].given;
    const auto width = static_cast<std::int64_t>(elements[i]);
    require(width > 0, "no column is left for the array '", given.name, "'");
    arrays_[i].shape = given.shape.value_or(given.name == "label" && width == 1 ? Shape{} : Shape{width});
    require(arrays_[i].shape.size() == width, "the array '", given.name, "' has ", width,
            " columns, which do not fill the shape ", arrays_[i].shape);
  }
}

std::size_t CsvLayout::column_of(const CsvArray& array, const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  if (found != names_.end()) {
    require(std::find(found + 1, names_.end(), name) == names_.end(), "two columns are called '", name,
            "'; name the one for '", array.name, "' by its number");
    return static_cast<std::size_t>(found - names_.begin());
  }
  std::int64_t number = 0;
  const auto count = static_cast<std::int64_t>(targets_.size());
  if (parse_number(name, number)) {
    require(number >= -count && number < count, "the array '", array.name, "' wants column ", number, " of ", count,
            ", expected ", -count, " to ", count - 1);
    return static_cast<std::size_t>(number < 0 ? number + count : number);
  }
  std::string known;
  constexpr std::size_t kMost = 20;
  for (std::size_t i = 0; i < std::min(kMost, names_.size()); ++i) known += " " + in_quotes(names_[i]);
  if (names_.size() > kMost) known += " ...";
  throw InvalidArgument(
      str("there is no column '", name, "' for the array '", array.name, "'; ",
          names_.empty() ? "without a header, columns are named by their numbers from 0" : "there are", known));
}

void CsvLayout::require_class_labels() {
  for (Array& array : arrays_) array.classes |= array.given.name == "label";
}

std::vector<ExampleArray> CsvLayout::arrays() const {
  std::vector<ExampleArray> result;
  for (const Array& array : arrays_) result.push_back({array.given.name, array.shape, array.given.dtype});
  return result;
}

std::string CsvLayout::text_of(std::size_t column) const {
  return column >= names_.size() ? str("column ", column)
                                 : str("column ", column, " (", in_quotes(names_[column]), ")");
}

void CsvLayout::throw_wrong(std::size_t column, std::string_view field, const std::string& expected) const {
  throw Corrupt(str(text_of(column), " is ", in_quotes(field), ", expected ", expected));
}

bool CsvLayout::write_fast(FieldReader& fields, const Array& array, void* to, std::size_t element) const {
  if (!array.places.empty() || array.classes) return false;
  return with_type(array.given.dtype,
                   [&](auto zero) { return fields.next_number(static_cast<decltype(zero)*>(to)[element]); });
}

void CsvLayout::write(std::string_view field, std::size_t column, const Array& array, void* to,
                      std::size_t element) const {
  const std::string_view word = trimmed(field);
  with_type(array.given.dtype, [&](auto zero) {
    using T = decltype(zero);
    T& value = static_cast<T*>(to)[element];
    if (!array.places.empty()) {
      auto place = array.places.find(field);
      if (place == array.places.end()) place = array.places.find(word);
      if (place != array.places.end()) {
        value = static_cast<T>(place->second);
        return;
      }
    } else if (float label = 0; array.classes && parse_finite(word, label)) {
      value = static_cast<T>(class_number(label, 0));
      return;
    } else if (parse_field(word, value)) {
      return;
    }
    if (!format_.missing || std::find(kMissing.begin(), kMissing.end(), word) == kMissing.end())
      throw_wrong(column, field, expected_of(array.given));
    if (!array.given.missing)
      throw_wrong(column, field, expected_of(array.given) + "; CsvArray::missing is a value for missing fields");
    value = static_cast<T>(*array.given.missing);
  });
}

void CsvLayout::decode(std::string_view row, std::span<void* const> to) const {
  FieldReader fields(row, format_.delimiter, format_.quote);
  std::size_t column = 0;
  try {
    for (; column < targets_.size() && fields.more(); ++column) {
      const Target& target = targets_[column];
      if (!target.array) {
        fields.next();
        continue;
      }
      const Array& array = arrays_[*target.array];
      void* const place = to[*target.array];
      if (!write_fast(fields, array, place, target.element)) write(fields.next(), column, array, place, target.element);
    }
    if (column == targets_.size() && !fields.more()) return;
  } catch (const WrongQuote& error) {
    throw Corrupt(str(text_of(column), " ", error.what(), quote_advice(format_.quote)));
  } catch (const Corrupt&) {
    if (width_of(row) == targets_.size()) throw;  // otherwise the wrong number of columns says more
  }
  throw Corrupt(str("it has ", width_of(row), " columns, expected ", targets_.size()));
}

std::size_t CsvLayout::width_of(std::string_view row) const {
  std::size_t column = 0;
  try {
    for (FieldReader fields(row, format_.delimiter, format_.quote); fields.more(); ++column) fields.next();
  } catch (const WrongQuote& error) {
    throw Corrupt(str(text_of(column), " ", error.what(), quote_advice(format_.quote)));
  }
  return column;
}

namespace {

class CsvDecoder final : public Decoder {
 public:
  explicit CsvDecoder(std::shared_ptr<const CsvLayout> layout) : layout_(std::move(layout)) {}
  std::vector<ExampleArray> arrays() const override { return layout_->arrays(); }
  void decode(std::string_view record, std::uint64_t, std::span<void* const> to) override {
    layout_->decode(record, to);
  }

 private:
  const std::shared_ptr<const CsvLayout> layout_;
};

}  // namespace

DecoderFactory csv_decoder(const std::shared_ptr<const CsvLayout>& layout) {
  return [layout] { return std::make_unique<CsvDecoder>(layout); };
}

}  // namespace paceline::io
