// Text as records: windows, lines, and fields of JSON lines.

#include <paceline/convert_sources.h>
#include <paceline/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <utility>

#include "convert/json_line.h"
#include "convert/lines.h"
#include "convert/source.h"
#include "text_file.h"

namespace paceline {
namespace io {
namespace {

Manifest describe_text(std::int64_t window, bool random) {
  Manifest manifest;
  manifest.payload = "bytes";
  manifest.class_labels = false;
  manifest.decoder = {"text", {{"window", window}, {"random", random}}, {}};
  return manifest;
}

// What a record needs to hold one pair of a byte and the next.
constexpr std::size_t kFewestBytes = 2;

class Windows final : public RecordSource {
 public:
  Windows(const std::vector<std::string>& paths, const TextSourceOptions& options)
      : window_(options.window),
        stride_(options.stride > 0 ? options.stride : options.window),
        identity_(identity_of(paths)) {
    for (const std::string& path : paths) {
      files_.emplace_back(path, TextFile::Memory::kUnpacked);
      starts_.push_back(size_);
      // A window and the byte behind it; the last one may be shorter.
      const auto bytes = static_cast<std::int64_t>(files_.back().size());
      if (bytes >= static_cast<std::int64_t>(kFewestBytes)) size_ += (bytes - 2) / stride_ + 1;
    }
  }

  std::int64_t size() const override { return size_; }
  const char* unit() const override { return "windows"; }
  std::string place(std::int64_t entry) const override {
    return str(files_[file_of(entry)].path(), ": byte ", begin_of(entry));
  }
  std::vector<std::uint64_t> keys() const override {
    std::vector<std::uint64_t> keys;
    keys.reserve(static_cast<std::size_t>(size_));
    for (std::int64_t entry = 0; entry < size_; ++entry)
      keys.push_back(stable_hash(
          str(std::filesystem::path(files_[file_of(entry)].path()).filename().string(), ':', begin_of(entry))));
    return keys;
  }
  std::unique_ptr<EntryEncoder> encoder(const std::function<void()>&) const override;
  Manifest description() const override { return describe_text(window_, false); }
  std::string identity() const override { return str("windows ", window_, ' ', stride_, '\n', identity_); }

  void read(std::int64_t entry, std::string& record) const {
    const TextFile& file = files_[file_of(entry)];
    const std::uint64_t begin = begin_of(entry);
    std::string buffer;
    record = file.read(
        begin, std::min(static_cast<std::size_t>(window_) + 1, static_cast<std::size_t>(file.size() - begin)), buffer);
  }

 private:
  std::size_t file_of(std::int64_t entry) const {
    return static_cast<std::size_t>(std::upper_bound(starts_.begin(), starts_.end(), entry) - starts_.begin()) - 1;
  }
  std::uint64_t begin_of(std::int64_t entry) const {
    return static_cast<std::uint64_t>((entry - starts_[file_of(entry)]) * stride_);
  }

  const std::int64_t window_;
  const std::int64_t stride_;
  const std::string identity_;
  std::deque<TextFile> files_;
  std::vector<std::int64_t> starts_;  // the first window of each file
  std::int64_t size_ = 0;
};

// Lines, or one field of the objects in them.
class TextLines final : public RecordSource {
 public:
  TextLines(const std::vector<std::string>& paths, const TextSourceOptions& options)
      : options_(options), lines_(paths, {}, false), identity_(identity_of(paths)) {}

  std::int64_t size() const override { return lines_.size(); }
  const char* unit() const override { return "lines"; }
  std::string place(std::int64_t entry) const override { return lines_.place(entry); }
  std::vector<std::uint64_t> keys() const override {
    std::vector<std::uint64_t> keys;
    keys.reserve(static_cast<std::size_t>(size()));
    lines_.each([&](std::int64_t, std::string_view bytes) { keys.push_back(stable_hash(bytes)); });
    return keys;
  }
  std::unique_ptr<EntryEncoder> encoder(const std::function<void()>&) const override;
  Manifest description() const override { return describe_text(options_.window, true); }
  std::string identity() const override {
    return str("lines ", options_.window, " of '", options_.field, "'\n", identity_);
  }

  void read(std::int64_t entry, std::string& record) const {
    lines_.read(entry, record);
    if (!options_.field.empty()) {
      const nlohmann::json json = parse_object(record);
      const auto found = json.find(options_.field);
      if (found == json.end() || !found->is_string()) throw Corrupt(str("it has no text '", options_.field, "'"));
      record = found->get<std::string>();
    }
  }

 private:
  const TextSourceOptions options_;
  const Lines lines_;
  const std::string identity_;
};

template <class Source>
class TextEncoder final : public EntryEncoder {
 public:
  explicit TextEncoder(const Source& source) : source_(source) {}
  void encode(std::int64_t entry, std::string& record, Tally& tally) override {
    source_.read(entry, record);
    if (record.size() < kFewestBytes)
      throw Corrupt(str("its ", record.size(), " bytes are fewer than ", kFewestBytes, ", a byte and the next"));
    tally.lengths.add(static_cast<double>(record.size()));
  }

 private:
  const Source& source_;
};

std::unique_ptr<EntryEncoder> Windows::encoder(const std::function<void()>&) const {
  return std::make_unique<TextEncoder<Windows>>(*this);
}
std::unique_ptr<EntryEncoder> TextLines::encoder(const std::function<void()>&) const {
  return std::make_unique<TextEncoder<TextLines>>(*this);
}

}  // namespace
}  // namespace io

RecordSourceHandle text_source(const std::vector<std::string>& files, const TextSourceOptions& options) {
  constexpr std::int64_t kMost = std::int64_t{1} << 24;
  require(options.window >= 1 && options.window <= kMost, "--window is 1 to ", kMost, ", not ", options.window);
  require(options.stride >= 0, "--stride cannot be ", options.stride);
  require(options.stride == 0 || (!options.lines && options.field.empty()), "--stride is for windows of text");
  if (options.lines || !options.field.empty()) return std::make_shared<io::TextLines>(files, options);
  return std::make_shared<io::Windows>(files, options);
}

}  // namespace paceline
