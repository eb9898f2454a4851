// Rows of a table as records.

#include <paceline/error.h>
#include <paceline/image.h>
#include <paceline/number.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "convert/source.h"
#include "convert/table.h"
#include "file.h"
#include "safetensors.h"
#include "text_numbers.h"

namespace paceline::io {
namespace {

// A column of the schema, and where it is in the rows.
struct PlacedColumn {
  TableColumn column;
  std::size_t place = 0;
  std::size_t statistics = 0;                             // of numbers: place among Tally::numbers
  std::unordered_map<std::string, std::int32_t> numbers;  // of categories
};

// The numbers of a row.
struct RowNumbers {
  std::vector<float> data;               // of all columns but the label
  std::vector<std::int32_t> categories;  // of columns of the type kCategory but the label
  float label = 0;
};

// These options say what a schema says already.
void refuse_beside_schema(const TableOptions& options) {
  const auto refuse = [](bool given, const char* name) {
    require(!given, "TableOptions::", name, " does not apply beside a schema, which says what the columns are");
  };
  refuse(options.label_kind != LabelKind::kAuto, "label_kind");
  refuse(!options.categories.empty(), "categories");
  refuse(!options.one_hot.empty(), "one_hot");
  refuse(!options.skip.empty(), "skip");
  refuse(!options.fill.empty(), "fill");
}

class TableSource final : public RecordSource {
 public:
  TableSource(std::unique_ptr<const TableRows> rows, const TableOptions& options)
      : rows_(std::move(rows)), options_(options) {
    if (options.schema) refuse_beside_schema(options);
    schema_ = options.schema ? *options.schema : infer_schema(*rows_, options);
    if (options.schema && !options.label.empty()) schema_.label = options.label;
    const std::vector<std::string>& names = rows_->columns();
    check_schema(schema_, names);
    if (!options.split_key.empty()) {
      const auto found = std::find(names.begin(), names.end(), options.split_key);
      require(found != names.end(), "the table has no column '", options.split_key, "', which is to decide the split");
      split_place_ = static_cast<std::size_t>(found - names.begin());
    }
    for (const TableColumn& column : schema_.columns) place(column, names);
    require(width_ > 0, "no column is left beside the label");
    std::vector<ExampleArray> arrays;
    for (const PlacedColumn& column : columns_) arrays.push_back(array_of(column.column));
    if (options.payload != RowPayload::kArrays) return;
    for (std::size_t i = 0; i < arrays.size(); ++i)
      require(!arrays[i].name.empty(), "a column has no name, which its array needs");
    const auto labels =
        std::count_if(arrays.begin(), arrays.end(), [](const ExampleArray& a) { return a.name == "label"; });
    require(labels <= 1, "a column is named 'label' beside the label '", schema_.label, "'; leave it out");
    head_ = tensors_head(arrays);
    arrays_ = std::move(arrays);
  }

  std::int64_t size() const override { return rows_->size(); }
  const char* unit() const override { return "rows"; }
  std::string place(std::int64_t entry) const override { return rows_->place(entry); }

  std::vector<std::uint64_t> keys() const override {
    std::vector<std::uint64_t> keys;
    keys.reserve(static_cast<std::size_t>(size()));
    std::vector<std::string> words;
    rows_->each([&](std::int64_t, std::string_view bytes) {
      if (!options_.split_key.empty()) {
        try {
          rows_->parse(bytes, words);
          keys.push_back(stable_hash(words[split_place_]));
          return;
        } catch (const Corrupt&) {
          // It is a bad row wherever it goes.
        }
      }
      keys.push_back(stable_hash(bytes));
    });
    return keys;
  }

  std::unique_ptr<EntryEncoder> encoder(const std::function<void()>&) const override;

  Manifest description() const override {
    Manifest manifest;
    manifest.payload = "bytes";
    manifest.class_labels = has_classes(schema_);
    manifest.columns_crc32c = columns_crc32c(schema_);
    for (const PlacedColumn& column : columns_)
      if (is_label(column.column) && manifest.class_labels) manifest.labels = column.column.categories;
    DecoderDescription& decoder = manifest.decoder;
    const bool labelled = !schema_.label.empty();
    if (options_.payload == RowPayload::kArrays) {
      decoder = {"tensors", {}, arrays_};
      return manifest;
    }
    if (options_.payload == RowPayload::kTensor)
      decoder = {"tensor", {{"labels", labelled}}, {{"data", {width_}, DType::kFloat32}}};
    else
      decoder = {"csv_row", {{"columns", width_}, {"label", labelled ? 0 : -1}}, {}};
    decoder.options["class_labels"] = manifest.class_labels;
    return manifest;
  }

  std::vector<std::string> number_names() const override { return number_names_; }

  std::string identity() const override {
    std::string text = str(rows_->identity(), "payload ", static_cast<int>(options_.payload), "\nlabel ", schema_.label,
                           "\nsplit by ", options_.split_key, "\nmissing");
    for (const std::string& word : options_.missing_words) text += str(" '", word, "'");
    for (const TableColumn& column : schema_.columns) {
      text += str('\n', column.name, '\t', static_cast<int>(column.type), '\t', column.missing.value_or(0),
                  column.missing.has_value());
      for (const std::string& category : column.categories) text += '\t' + category;
    }
    return text + '\n';
  }

  std::map<std::string, std::string> companions() const override { return {{".schema.json", text_of(schema_)}}; }

  // Throws Corrupt with the reason alone.
  void numbers_of(const std::vector<std::string>& words, RowNumbers& row, Tally& tally) const;
  void pack(const RowNumbers& row, std::int64_t entry, std::string& record) const;
  const TableRows& rows() const { return *rows_; }

 private:
  bool is_label(const TableColumn& column) const { return io::is_label(schema_.label, column.name); }

  void place(const TableColumn& column, const std::vector<std::string>& names) {
    if (column.type == ColumnType::kSkip) return;
    PlacedColumn placed{column, 0, number_names_.size(), {}};
    placed.place = static_cast<std::size_t>(std::find(names.begin(), names.end(), column.name) - names.begin());
    for (const std::string& category : column.categories)
      placed.numbers.emplace(category, static_cast<std::int32_t>(placed.numbers.size()));
    require(placed.numbers.size() == column.categories.size(), "the column '", column.name, "' has a category twice");
    if (column.type == ColumnType::kNumber) number_names_.push_back(column.name);
    const auto numbers = static_cast<std::int64_t>(column.categories.size());
    if (!is_label(column)) width_ += column.type == ColumnType::kOneHot ? numbers : 1;
    columns_.push_back(std::move(placed));
  }

  ExampleArray array_of(const TableColumn& column) const {
    const std::string name = is_label(column) ? "label" : column.name;
    if (column.type == ColumnType::kOneHot)
      return {name, {static_cast<std::int64_t>(column.categories.size())}, DType::kFloat32};
    return {name, {}, column.type == ColumnType::kCategory ? DType::kInt32 : DType::kFloat32};
  }

  const std::unique_ptr<const TableRows> rows_;
  const TableOptions options_;
  TableSchema schema_;
  std::vector<PlacedColumn> columns_;
  std::vector<ExampleArray> arrays_;  // of kArrays
  std::vector<std::string> number_names_;
  std::string head_;        // of kArrays
  std::int64_t width_ = 0;  // numbers beside the label
  std::size_t split_place_ = 0;
};

void TableSource::numbers_of(const std::vector<std::string>& words, RowNumbers& row, Tally& tally) const {
  row.data.clear();
  row.categories.clear();
  for (const PlacedColumn& placed : columns_) {
    const TableColumn& column = placed.column;
    const std::string& word = words[placed.place];
    const bool missing = is_missing(word, options_);
    const auto say = [&](const char* what, const std::string& expected) {
      throw Corrupt(str("its column '", column.name, "' ", what, missing ? "" : io::in_quotes(word), expected));
    };
    if (column.type == ColumnType::kNumber) {
      float value = 0;
      if (missing) {
        tally.number(placed.statistics).add_missing();
        if (!column.missing) say("is missing", is_label(column) ? "" : "; --fill says what to take instead");
        value = static_cast<float>(*column.missing);
      } else {
        if (!parse_finite(word, value)) say("is ", ", expected a finite number");
        tally.number(placed.statistics).add(static_cast<double>(value));
      }
      (is_label(column) ? row.label : row.data.emplace_back()) = value;
      continue;
    }
    auto found = placed.numbers.find(word);  // a schema may name a word that is missing elsewhere
    if (found == placed.numbers.end() && missing) found = placed.numbers.find("");
    if (found == placed.numbers.end())
      say(missing ? "is missing" : "is ", missing ? "" : ", which is no category of the schema");
    if (is_label(column)) {
      row.label = static_cast<float>(found->second);
      ++tally.classes[found->second];
    } else if (column.type == ColumnType::kCategory) {
      row.categories.push_back(found->second);
      row.data.push_back(static_cast<float>(found->second));
    } else {
      row.data.resize(row.data.size() + column.categories.size());
      row.data[row.data.size() - column.categories.size() + static_cast<std::size_t>(found->second)] = 1;
    }
  }
}

void TableSource::pack(const RowNumbers& row, std::int64_t entry, std::string& record) const {
  const bool labelled = !schema_.label.empty();
  if (options_.payload == RowPayload::kTensor) {
    const std::string_view values(reinterpret_cast<const char*>(row.data.data()), row.data.size() * sizeof(float));
    record =
        labelled ? pack_image_record({&row.label, 1}, static_cast<std::uint64_t>(entry), values) : std::string(values);
    return;
  }
  if (options_.payload == RowPayload::kRow) {
    if (labelled) record += exact_text(row.label);
    for (const float value : row.data) {
      if (!record.empty()) record += ',';
      record += exact_text(value);
    }
    return;
  }
  record = head_;
  const auto append = [&](const void* values, std::size_t bytes) {
    record.append(static_cast<const char*>(values), bytes);
  };
  std::size_t data = 0, category = 0;
  for (const PlacedColumn& placed : columns_) {
    const std::size_t width =
        placed.column.type == ColumnType::kOneHot ? placed.column.categories.size() : std::size_t{1};
    if (is_label(placed.column)) {
      const auto number = static_cast<std::int32_t>(row.label);
      const bool is_class = placed.column.type == ColumnType::kCategory;
      append(is_class ? static_cast<const void*>(&number) : &row.label, sizeof number);
      continue;
    }
    if (placed.column.type == ColumnType::kCategory)
      append(&row.categories[category++], sizeof(std::int32_t));
    else
      append(&row.data[data], width * sizeof(float));
    data += width;
  }
}

class TableEncoder final : public EntryEncoder {
 public:
  explicit TableEncoder(const TableSource& source) : source_(source) {}
  void encode(std::int64_t entry, std::string& record, Tally& tally) override {
    source_.rows().read(entry, bytes_);
    source_.rows().parse(bytes_, words_);
    source_.numbers_of(words_, row_, tally);
    source_.pack(row_, entry, record);
  }

 private:
  const TableSource& source_;
  std::string bytes_;
  std::vector<std::string> words_;
  RowNumbers row_;
};

std::unique_ptr<EntryEncoder> TableSource::encoder(const std::function<void()>&) const {
  return std::make_unique<TableEncoder>(*this);
}

}  // namespace

RecordSourceHandle table_source(std::unique_ptr<const TableRows> rows, const TableOptions& options) {
  return std::make_shared<TableSource>(std::move(rows), options);
}

}  // namespace paceline::io
