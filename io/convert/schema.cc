// What the columns of a table are: given as JSON, or found out from the values.

#include <paceline/convert_sources.h>
#include <paceline/crc32c.h>
#include <paceline/detail/atomic_file.h>
#include <paceline/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <utility>

#include "convert/table.h"
#include "convert/tally.h"
#include "file.h"
#include "text_numbers.h"

namespace paceline {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kMostCategories = 100'000;
constexpr std::size_t kMostClassesOfNumbers = 1000;
constexpr std::pair<const char*, ColumnType> kTypes[] = {{"number", ColumnType::kNumber},
                                                         {"category", ColumnType::kCategory},
                                                         {"one_hot", ColumnType::kOneHot},
                                                         {"skip", ColumnType::kSkip}};

ColumnType type_called(const std::string& name) {
  for (const auto& [known, type] : kTypes)
    if (name == known) return type;
  throw Corrupt(str("a column has the type '", name, "', known are number, category, one_hot and skip"));
}

bool contains(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// What all values of a column have in common.
struct Found {
  bool numbers = true;  // but for missing ones
  bool some_number = false;
  std::string word;   // the first one that is no number
  bool whole = true;  // numbers without a fraction
  bool missing = false;
  io::Moments moments;
  std::set<std::string> words;  // where they are collected; "" for a missing one
};

// Looks through all rows. Words are collected of the columns that `collect` names.
std::vector<Found> look_through(const io::TableRows& rows, const TableOptions& options,
                                const std::vector<bool>& collect) {
  std::vector<Found> found(collect.size());
  std::vector<std::string> words;
  rows.each([&](std::int64_t, std::string_view bytes) {
    try {
      rows.parse(bytes, words);
    } catch (const Corrupt&) {
      return;  // counts as bad later
    }
    for (std::size_t i = 0; i < words.size(); ++i) {
      Found& column = found[i];
      const bool missing = io::is_missing(words[i], options);
      column.missing |= missing;
      float value = 0;
      if (!missing && io::parse_finite(words[i], value)) {
        column.some_number = true;
        column.whole &= value == std::floor(value);
        column.moments.add(static_cast<double>(value));
      } else if (!missing) {
        if (column.numbers) column.word = words[i];
        column.numbers = false;
      }
      // One more than are allowed shows that there are too many.
      if (collect[i] && column.words.size() <= kMostCategories) column.words.insert(missing ? "" : words[i]);
    }
  });
  return found;
}

// By size where all are numbers, else by their bytes; a missing one first.
std::vector<std::string> in_order(const std::string& column, const std::set<std::string>& words) {
  std::vector<std::string> sorted(words.begin(), words.end());
  const auto number = [](const std::string& word) {
    float value = 0;
    return io::parse_finite(word, value) ? value : NAN;
  };
  const bool numbers = std::all_of(sorted.begin(), sorted.end(),
                                   [&](const std::string& word) { return word.empty() || !std::isnan(number(word)); });
  if (numbers) {
    std::stable_sort(sorted.begin(), sorted.end(), [&](const std::string& a, const std::string& b) {
      return !b.empty() && (a.empty() || number(a) < number(b));
    });
    const auto same = std::adjacent_find(sorted.begin(), sorted.end(), [&](const std::string& a, const std::string& b) {
      return !a.empty() && number(a) == number(b);
    });
    require(same == sorted.end(), "the column '", column, "' of categories holds '", same == sorted.end() ? "" : *same,
            "' and '", same == sorted.end() ? "" : *std::next(same),
            "', which are the same number; write it in one way, or give a schema");
  }
  return sorted;
}

class Inference {
 public:
  Inference(const io::TableRows& rows, const TableOptions& options) : rows_(rows), options_(options) {
    const std::vector<std::string>& names = rows.columns();
    const auto known = [&](const std::string& name) {
      require(contains(names, name), "the table has no column '", name, "'; it has ", list(names));
    };
    if (!options.label.empty()) known(options.label);
    for (const auto* asked : {&options.categories, &options.one_hot, &options.skip})
      for (const std::string& name : *asked) known(name);
    require(options.label.empty() || !contains(options.skip, options.label), "the label '", options.label,
            "' cannot be left out");
    require(options.label.empty() || !contains(options.one_hot, options.label), "the label '", options.label,
            "' is one number, and cannot be one-hot");
    require(options.fill.empty() || options.fill == "mean" ||
                (io::parse_number(options.fill, fill_) && std::isfinite(static_cast<float>(fill_))),
            "missing numbers can be filled by 'mean' or a finite number, not by '", options.fill, "'");
  }

  TableSchema run() {
    const std::vector<std::string>& names = rows_.columns();
    std::vector<bool> collect(names.size());
    for (std::size_t i = 0; i < names.size(); ++i) collect[i] = wants_categories(names[i]) || is_label(names[i]);
    std::vector<Found> found = look_through(rows_, options_, collect);
    refuse_mixed(found);
    // Columns that turned out to hold words.
    std::vector<bool> words(names.size());
    for (std::size_t i = 0; i < names.size(); ++i)
      words[i] = !found[i].numbers && !collect[i] && !contains(options_.skip, names[i]);
    if (contains_true(words)) {
      std::vector<Found> again = look_through(rows_, options_, words);
      for (std::size_t i = 0; i < names.size(); ++i)
        if (words[i]) found[i].words = std::move(again[i].words);
    }
    TableSchema schema;
    schema.label = options_.label;
    for (std::size_t i = 0; i < names.size(); ++i) schema.columns.push_back(column(names[i], found[i]));
    return schema;
  }

 private:
  static bool contains_true(const std::vector<bool>& values) {
    return std::find(values.begin(), values.end(), true) != values.end();
  }

  static std::string list(const std::vector<std::string>& names) {
    constexpr std::size_t kMost = 20;
    std::string text;
    for (std::size_t i = 0; i < std::min(names.size(), kMost); ++i) text += str(i ? ", '" : "'", names[i], "'");
    return text + (names.size() > kMost ? ", ..." : "");
  }

  bool is_label(const std::string& name) const { return io::is_label(options_.label, name); }

  // A word among numbers may be a damaged number, a missing one, or a category. Only the user knows.
  void refuse_mixed(const std::vector<Found>& found) const {
    std::string mixed;
    for (std::size_t i = 0; i < found.size(); ++i) {
      const std::string& name = rows_.columns()[i];
      const bool said = is_label(name) ? options_.label_kind != LabelKind::kAuto
                                       : wants_categories(name) || contains(options_.skip, name);
      if (said || found[i].numbers || !found[i].some_number) continue;
      mixed += str(mixed.empty() ? "" : ", ", "'", name, "' (", io::in_quotes(found[i].word), ")");
    }
    require(
        mixed.empty(), "these columns hold words among numbers: ", mixed,
        "; add a word for missing values to those of --missing, or name the column in --category or --skip (a label: "
        "--label_type class)");
  }

  bool wants_categories(const std::string& name) const {
    return contains(options_.categories, name) || contains(options_.one_hot, name);
  }

  TableColumn column(const std::string& name, const Found& found) const {
    TableColumn column{.name = name};
    const bool label = is_label(name);
    const bool class_label =
        label && (options_.label_kind == LabelKind::kClass ||
                  (options_.label_kind == LabelKind::kAuto &&
                   (!found.numbers || (found.whole && found.words.size() <= kMostClassesOfNumbers))));
    if (contains(options_.skip, name)) {
      column.type = ColumnType::kSkip;
    } else if (contains(options_.one_hot, name)) {
      column.type = ColumnType::kOneHot;
    } else if (label ? class_label : !found.numbers || wants_categories(name)) {
      column.type = ColumnType::kCategory;
    }
    if (column.type == ColumnType::kCategory || column.type == ColumnType::kOneHot) {
      require(found.words.size() <= kMostCategories, "the column '", name, "' holds more than ", kMostCategories,
              " different words, which are no categories; leave it out (--skip ", name, ")");
      column.categories = in_order(name, found.words);
      // A row without its label is bad, whatever it is filled with.
      if (label) std::erase(column.categories, "");
    } else if (column.type == ColumnType::kNumber && !label && !options_.fill.empty()) {
      column.missing = options_.fill == "mean" ? found.moments.mean() : fill_;
    }
    return column;
  }

  const io::TableRows& rows_;
  const TableOptions& options_;
  double fill_ = 0;
};

TableSchema schema_from_json(const Json& json) {
  TableSchema schema;
  schema.label = json.value("label", "");
  for (const Json& entry : json.at("columns")) {
    TableColumn column{.name = entry.at("name").get<std::string>(), .type = type_called(entry.value("type", "number"))};
    if (entry.contains("categories")) column.categories = entry.at("categories").get<std::vector<std::string>>();
    if (entry.contains("missing")) column.missing = entry.at("missing").get<double>();
    const bool in_categories = column.type == ColumnType::kCategory || column.type == ColumnType::kOneHot;
    if (in_categories && column.categories.empty())
      throw Corrupt(str("the column '", column.name, "' needs \"categories\""));
    schema.columns.push_back(std::move(column));
  }
  return schema;
}

}  // namespace

TableSchema TableSchema::load(const std::string& path) {
  try {
    return schema_from_json(Json::parse(io::read_text(path)));
  } catch (const Json::exception& error) {
    const std::string_view reason = error.what();  // "[json.exception.out_of_range.403] key 'columns' not found"
    throw Corrupt(str("the schema ", path, " cannot be used: ", reason.substr(reason.find(']') + 2)));
  } catch (const Corrupt& error) {
    throw Corrupt(str("the schema ", path, " cannot be used: ", error.what()));
  }
}

void TableSchema::save(const std::string& path) const { detail::AtomicFile::write_text(path, io::text_of(*this)); }

namespace io {

bool is_missing(std::string_view word, const TableOptions& options) {
  return std::find(options.missing_words.begin(), options.missing_words.end(), word) != options.missing_words.end();
}

TableSchema infer_schema(const TableRows& rows, const TableOptions& options) { return Inference(rows, options).run(); }

void check_schema(const TableSchema& schema, const std::vector<std::string>& columns) {
  std::set<std::string> named;
  for (const TableColumn& column : schema.columns) {
    require(is_utf8(column.name), "the column name ", io::in_quotes(column.name), " is not UTF-8");
    require(named.insert(column.name).second, "the schema names the column '", column.name, "' twice");
    require(contains(columns, column.name), "the table has no column '", column.name, "', which the schema names");
    for (const std::string& category : column.categories)
      require(is_utf8(category), "the column '", column.name, "' holds ", io::in_quotes(category),
              ", which is not UTF-8");
  }
  for (const std::string& name : columns)
    require(named.contains(name), "the schema does not name the column '", name,
            "' of the table; give it the type skip to leave it out");
  if (schema.label.empty()) return;
  require(named.contains(schema.label), "the schema names no column '", schema.label, "', which is to be the label");
  for (const TableColumn& column : schema.columns)
    require(column.name != schema.label || column.type == ColumnType::kNumber || column.type == ColumnType::kCategory,
            "the label '", schema.label, "' must have the type number or category");
}

std::string text_of(const TableSchema& schema) {
  Json entries = Json::array();
  for (const TableColumn& column : schema.columns) {
    Json entry = {{"name", column.name}};
    for (const auto& [name, type] : kTypes)
      if (type == column.type) entry["type"] = name;
    if (!column.categories.empty()) entry["categories"] = column.categories;
    if (column.missing) entry["missing"] = *column.missing;
    entries.push_back(std::move(entry));
  }
  const Json json = {{"label", schema.label}, {"columns", std::move(entries)}};
  return json.dump(2) + "\n";
}

std::uint32_t columns_crc32c(const TableSchema& schema) {
  TableSchema kept{{}, schema.label};
  for (const TableColumn& column : schema.columns)
    if (column.type != ColumnType::kSkip) kept.columns.push_back({column.name, column.type, column.categories, {}});
  return crc32c(text_of(kept));
}

bool has_classes(const TableSchema& schema) {
  return std::any_of(schema.columns.begin(), schema.columns.end(), [&](const TableColumn& column) {
    return io::is_label(schema.label, column.name) && column.type == ColumnType::kCategory;
  });
}

}  // namespace io
}  // namespace paceline
