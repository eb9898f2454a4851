// Rows in LibSVM's format.

#include <paceline/convert_sources.h>
#include <paceline/error.h>
#include <paceline/number.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "convert/lines.h"
#include "convert/source.h"
#include "libsvm_row.h"

namespace paceline {
namespace io {
namespace {

constexpr std::int64_t kMostFeatures = std::int64_t{1} << 31;

// A line without what follows a '#'.
struct Row {
  std::string_view label;
  float value = 0;            // of the label
  std::string_view features;  // behind the label
  std::int64_t given = 0;     // features
  std::int64_t places = 0;    // of a row that holds the last of them
};

// Throws Corrupt with the reason alone. `features` 0: any number that can be.
Row parse_row(std::string_view line, bool from_zero, std::int64_t features) {
  Row row;
  line = line.substr(0, line.find('#'));
  row.value = read_libsvm_row(line, from_zero, features > 0 ? features : kMostFeatures - (from_zero ? 0 : 1),
                              [&](std::int64_t column, float) {
                                row.places = std::max(row.places, column + 1);
                                ++row.given;
                              });
  Words(line).next(row.label);
  row.features = line.substr(static_cast<std::size_t>(row.label.data() + row.label.size() - line.data()));
  return row;
}

class LibsvmSource final : public RecordSource {
 public:
  LibsvmSource(const std::vector<std::string>& paths, const LibsvmSourceOptions& options)
      : options_(options), lines_(paths, {.comment = '#'}, false), identity_(identity_of(paths)) {
    constexpr std::size_t kMostClasses = 1000;
    std::map<float, std::int64_t> labels;
    bool whole = true;
    std::int64_t features = 0;
    std::string first_bad;
    lines_.each([&](std::int64_t number, std::string_view line) {
      try {
        const Row row = parse_row(line, options_.from_zero, options_.features);
        whole &= row.value == std::floor(row.value);
        if (labels.size() <= kMostClasses) labels.emplace(row.value, 0);
        features = std::max(features, row.places);
      } catch (const Corrupt& error) {  // it counts as bad later
        if (first_bad.empty()) first_bad = str("; ", lines_.place(number), ": ", error.what());
      }
    });
    features_ = options.features > 0 ? options.features : features;
    require(features_ > 0, paths.at(0), " has no features", first_bad);
    const bool few = labels.size() <= kMostClasses;
    require(options.label != LabelKind::kClass || few, "the labels have more than ", kMostClasses,
            " different values, which are no classes");
    constexpr float kInexact = 1 << 24;  // from here on, a float stands for several whole numbers
    const bool exact = labels.empty() || (labels.begin()->first > -kInexact && labels.rbegin()->first < kInexact);
    require(options.label != LabelKind::kClass || exact,
            "a label is at least 2^24 in size, where float32 does not tell neighbouring classes apart");
    classes_ = options.label == LabelKind::kClass || (options.label == LabelKind::kAuto && whole && few && exact);
    for (const auto& entry : labels)
      if (classes_) numbers_.emplace(entry.first, static_cast<std::int64_t>(numbers_.size()));
  }

  std::int64_t size() const override { return lines_.size(); }
  const char* unit() const override { return "rows"; }
  std::string place(std::int64_t entry) const override { return lines_.place(entry); }
  std::vector<std::uint64_t> keys() const override {
    std::vector<std::uint64_t> keys;
    keys.reserve(static_cast<std::size_t>(size()));
    lines_.each([&](std::int64_t, std::string_view bytes) { keys.push_back(stable_hash(bytes)); });
    return keys;
  }
  std::unique_ptr<EntryEncoder> encoder(const std::function<void()>&) const override;
  std::vector<std::string> number_names() const override {
    return classes_ ? std::vector<std::string>{} : std::vector<std::string>{"label"};
  }

  Manifest description() const override {
    Manifest manifest;
    manifest.payload = "bytes";
    manifest.class_labels = classes_;
    for (const auto& [label, number] : numbers_) manifest.labels.push_back(exact_text(label));
    manifest.decoder = {
        "libsvm_row", {{"features", features_}, {"from_zero", options_.from_zero}, {"class_labels", classes_}}, {}};
    return manifest;
  }

  std::string identity() const override {
    std::string text = str("libsvm ", features_, ' ', options_.from_zero, classes_, '\n', identity_);
    for (const auto& [label, number] : numbers_) text += exact_text(label) + '\n';
    return text;
  }

  void encode(std::string_view line, std::string& record, Tally& tally) const {
    const Row row = parse_row(line, options_.from_zero, features_);
    tally.lengths.add(static_cast<double>(row.given));
    if (classes_) {
      const std::int64_t number = numbers_.at(row.value);
      ++tally.classes[number];
      record = str(number);
    } else {
      tally.number(0).add(static_cast<double>(row.value));
      record = row.label;
    }
    record += row.features;
    record.erase(record.find_last_not_of(" \t\r") + 1);
  }
  void read(std::int64_t entry, std::string& line) const { lines_.read(entry, line); }

 private:
  const LibsvmSourceOptions options_;
  const Lines lines_;
  const std::string identity_;
  std::map<float, std::int64_t> numbers_;  // of the classes, by label
  std::int64_t features_ = 0;
  bool classes_ = false;
};

class LibsvmEncoder final : public EntryEncoder {
 public:
  explicit LibsvmEncoder(const LibsvmSource& source) : source_(source) {}
  void encode(std::int64_t entry, std::string& record, Tally& tally) override {
    source_.read(entry, line_);
    source_.encode(line_, record, tally);
  }

 private:
  const LibsvmSource& source_;
  std::string line_;
};

std::unique_ptr<EntryEncoder> LibsvmSource::encoder(const std::function<void()>&) const {
  return std::make_unique<LibsvmEncoder>(*this);
}

}  // namespace
}  // namespace io

RecordSourceHandle libsvm_source(const std::vector<std::string>& files, const LibsvmSourceOptions& options) {
  constexpr std::int64_t kMost = io::kMostFeatures - 1;
  require(options.features >= 0 && options.features <= kMost, "--features is 0 to ", kMost, ", not ", options.features);
  return std::make_shared<io::LibsvmSource>(files, options);
}

}  // namespace paceline
