#include "convert/text_file.h"

#include <paceline/error.h>

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

namespace paceline::io {
namespace {

constexpr std::size_t kBlock = 1 << 20;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Where the text of a file begins.
std::uint64_t begin_of_text(const TextFile& file) {
  std::string bytes;
  file.read(0, static_cast<std::size_t>(std::min<std::uint64_t>(kByteOrderMark.size(), file.size())), bytes);
  return bytes == kByteOrderMark ? kByteOrderMark.size() : 0;
}

std::string unpack(const std::string& path) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(path.c_str(), "rb"), gzclose);
  if (!file) throw_io_error("open", path, errno);
  std::string bytes;
  for (;;) {
    const std::size_t before = bytes.size();
    bytes.resize(before + kBlock);
    const int got = gzread(file.get(), bytes.data() + before, static_cast<unsigned>(kBlock));
    bytes.resize(before + static_cast<std::size_t>(std::max(got, 0)));
    int code = Z_OK;
    const char* const reason = gzerror(file.get(), &code);
    if (got < 0 || (got == 0 && code != Z_OK)) throw Corrupt(str(path, " cannot be unpacked by gzip: ", reason));
    if (got == 0) return bytes;
  }
}

// Finds the ends of lines, character by character where there are quotes.
class Cutter {
 public:
  explicit Cutter(const LineRules& rules) : rules_(rules) {}

  // Where the first line break in `bytes` is; npos: the line goes on behind them.
  std::size_t end(std::string_view bytes) {
    if (rules_.quote == '\0') return bytes.find('\n');
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      const char c = bytes[i];
      if (state_ == kQuoted) {
        breaks_ += c == '\n';
        if (c == rules_.quote) state_ = kQuoteInside;
      } else if (c == '\n') {
        state_ = kBegin;
        return i;
      } else if (c == rules_.quote && state_ != kPlain) {
        state_ = kQuoted;
      } else {
        state_ = c == rules_.delimiter ? kBegin : kPlain;
      }
    }
    return std::string_view::npos;
  }
  bool inside_quotes() const { return state_ == kQuoted; }
  // The line breaks inside of quotes so far.
  std::uint64_t breaks() const { return breaks_; }

 private:
  enum State { kBegin, kPlain, kQuoted, kQuoteInside };
  const LineRules rules_;
  State state_ = kBegin;
  std::uint64_t breaks_ = 0;
};

std::string_view without_return(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  return line;
}

}  // namespace

TextFile::TextFile(const std::string& path) : path_(path) {
  file_.emplace(path);
  char head[2] = {};
  if (file_->read_at(0, head, sizeof head) < sizeof head || head[0] != '\x1f' || head[1] != '\x8b') return;
  file_.reset();
  unpacked_ = unpack(path);
}

void TextFile::read(std::uint64_t offset, std::size_t count, std::string& to) const {
  if (!file_) {
    to.assign(unpacked_, offset, count);
    return;
  }
  to.resize(count);
  if (file_->read_at(offset, to.data(), count) != count)
    throw Corrupt(str(path_, " has become shorter while it was read"));
}

Lines::Lines(const std::vector<std::string>& paths, const LineRules& rules) {
  require(!paths.empty(), "no files were given");
  for (const std::string& path : paths) {
    files_.emplace_back(path);
    starts_.push_back(entries_.size());
    scan(files_.back(), rules);
  }
}

void Lines::scan(const TextFile& file, const LineRules& rules) {
  Cutter cutter(rules);
  std::string block;
  std::uint64_t begin = begin_of_text(file);  // of the line
  std::uint64_t number = 1;                   // of the line
  std::uint64_t ends = 0;                     // lines that ended
  char before = 0;                            // the byte before the block
  std::size_t to_skip = rules.skip;
  const auto add = [&](std::uint64_t end) {
    const std::uint64_t length = end - begin;
    if (length == 0) return;
    if (to_skip > 0) {
      --to_skip;
      return;
    }
    constexpr std::uint64_t kMost = std::uint64_t{1} << 29;  // of a record
    if (length >= kMost || number > std::numeric_limits<std::uint32_t>::max())
      throw Corrupt(str(file.path(), ":", number, ": a line of ", length, " bytes, expected fewer than ", kMost,
                        cutter.inside_quotes() ? "; a quote may not be closed" : ""));
    entries_.push_back({begin, static_cast<std::uint32_t>(length), static_cast<std::uint32_t>(number)});
  };
  for (std::uint64_t at = begin; at < file.size();) {
    file.read(at, static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, file.size() - at)), block);
    std::string_view rest = block;
    for (std::size_t end = 0; (end = cutter.end(rest)) != std::string_view::npos; rest.remove_prefix(end + 1)) {
      const std::uint64_t end_at = at + static_cast<std::uint64_t>(rest.data() - block.data()) + end;
      const char last = end > 0 ? rest[end - 1] : rest.data() == block.data() ? before : '\n';
      add(end_at - (last == '\r' ? 1 : 0));
      begin = end_at + 1;
      number = ++ends + cutter.breaks() + 1;
    }
    at += block.size();
    before = block.back();
  }
  if (begin < file.size()) {
    if (cutter.inside_quotes())
      throw Corrupt(str(file.path(), ":", number, ": a quote begins in this line and is not closed"));
    add(file.size());
  }
}

std::size_t Lines::file_of(std::int64_t line) const {
  const auto next = std::upper_bound(starts_.begin(), starts_.end(), static_cast<std::size_t>(line));
  return static_cast<std::size_t>(next - starts_.begin()) - 1;
}

void Lines::read(std::int64_t line, std::string& to) const {
  const Entry& entry = entries_[static_cast<std::size_t>(line)];
  files_[file_of(line)].read(entry.offset, entry.length, to);
  if (to.ends_with('\r')) to.pop_back();
}

std::string Lines::place(std::int64_t line) const {
  return str(files_[file_of(line)].path(), ":", entries_[static_cast<std::size_t>(line)].number);
}

void Lines::each(const std::function<void(std::int64_t line, std::string_view bytes)>& body) const {
  std::string block;
  for (std::size_t first = 0; first < entries_.size();) {
    // As many lines as a block holds, read at once.
    const std::size_t file = file_of(static_cast<std::int64_t>(first));
    const std::size_t end_of_file = file + 1 < starts_.size() ? starts_[file + 1] : entries_.size();
    const std::uint64_t begin = entries_[first].offset;
    std::size_t last = first + 1;
    while (last < end_of_file && entries_[last].offset + entries_[last].length - begin <= kBlock) ++last;
    const Entry& behind = entries_[last - 1];
    files_[file].read(begin, static_cast<std::size_t>(behind.offset + behind.length - begin), block);
    for (; first < last; ++first) {
      const Entry& entry = entries_[first];
      body(static_cast<std::int64_t>(first), without_return(std::string_view(block).substr(
                                                 static_cast<std::size_t>(entry.offset - begin), entry.length)));
    }
  }
}

std::vector<std::string> first_lines(const std::string& path, const LineRules& rules, std::size_t count) {
  const TextFile file(path);
  const std::uint64_t begin = begin_of_text(file);
  std::string block;
  file.read(begin, static_cast<std::size_t>(std::min<std::uint64_t>(kBlock, file.size() - begin)), block);
  Cutter cutter(rules);
  std::vector<std::string> lines;
  for (std::string_view rest = block; !rest.empty() && lines.size() < count;) {
    const std::size_t end = std::min(cutter.end(rest), rest.size());
    const std::string_view line = without_return(rest.substr(0, end));
    if (!line.empty()) lines.emplace_back(line);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return lines;
}

}  // namespace paceline::io
