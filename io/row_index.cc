#include "row_index.h"

#include <paceline/detail/in_parallel.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace paceline::io {
namespace {

constexpr std::uint64_t kPieceBytes = 4 << 20;
constexpr std::uint64_t kLookAhead = 64 << 10;  // bytes read behind a piece at first, to find the end of a line
constexpr std::size_t kSpanBytes = 1 << 10, kMostRows = 16;  // from one row that is kept to the next
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

}  // namespace

bool RowFormat::begins_row(std::string_view text) const {
  if (comment) {
    const std::size_t word = text.find_first_not_of(" \t\r\v\f");
    return word != std::string_view::npos && text[word] != '\n' && text[word] != comment;
  }
  if (text.starts_with('\r')) text.remove_prefix(1);
  return !text.empty() && text.front() != '\n';
}

std::size_t RowFormat::line_end(std::string_view text, bool& inside) const {
  const auto find = [&](char c, std::size_t from) { return std::min(text.find(c, from), text.size()); };
  if (!inside) {
    const std::size_t end = find('\n', 0);
    if (!quote || text.substr(0, end).find(quote) == std::string_view::npos) return end;
  }
  // Field by field.
  for (std::size_t at = 0;; ++at) {
    if (!inside && at < text.size() && text[at] == quote) {
      inside = true;
      ++at;
    }
    while (inside) {
      at = find(quote, at);
      if (at == text.size()) return at;
      ++at;
      inside = at < text.size() && text[at] == quote;  // two stand for one
      if (inside) ++at;
    }
    while (at < text.size() && text[at] != delimiter && text[at] != '\n') ++at;
    if (at == text.size() || text[at] == '\n') return at;
  }
}

std::uint64_t begin_of_text(const TextFile& file) {
  std::string buffer;
  const std::uint64_t count = std::min<std::uint64_t>(kByteOrderMark.size(), file.size());
  const std::string_view first = file.read(0, static_cast<std::size_t>(count), buffer);
  if (first.starts_with("\xff\xfe") || first.starts_with("\xfe\xff"))
    throw Corrupt(str(file.path(), " is text in UTF-16, which is not read here; convert it with iconv -t UTF-8"));
  return first == kByteOrderMark ? kByteOrderMark.size() : 0;
}

RowIndex::Rows RowIndex::rows_of(std::string_view text, const RowFormat& format, bool inside) {
  Rows rows;
  std::vector<std::uint32_t> starts;
  for (std::size_t at = 0;; ++at) {
    if (!inside && format.begins_row(text.substr(at))) starts.push_back(static_cast<std::uint32_t>(at));
    at += format.line_end(text.substr(at), inside);
    if (at == text.size()) break;
  }
  rows.inside = inside;
  if (starts.empty()) return rows;
  rows.count = static_cast<std::int64_t>(starts.size());
  rows.last = starts.back();
  const std::size_t stride = std::clamp<std::size_t>(kSpanBytes * starts.size() / text.size(), 1, kMostRows);
  rows.stride = static_cast<std::int64_t>(stride);
  rows.starts.reserve((starts.size() + stride - 1) / stride);
  Start at = {};
  for (std::size_t i = 0; i < starts.size(); i += stride) {
    at.lines += static_cast<std::uint32_t>(std::count(text.begin() + at.bytes, text.begin() + starts[i], '\n'));
    at.bytes = starts[i];
    rows.starts.push_back(at);
  }
  return rows;
}

// The lines that begin behind the ends of lines from `begin` to `end`, or at the beginning of the text.
RowIndex::Piece RowIndex::scan(std::uint64_t begin, std::uint64_t end) const {
  const auto size = static_cast<std::size_t>(end - begin);
  std::string buffer;
  std::string_view text;
  std::size_t first = 0, last = std::string_view::npos;
  for (std::uint64_t more = kLookAhead;; more = std::min(more * 8, format_.longest)) {
    text = file_.read(begin, size + static_cast<std::size_t>(std::min(more, file_.size() - end)), buffer);
    if (begin != text_begin_) first = text.find('\n') + 1;
    if (begin != text_begin_ && (first == 0 || first > size)) return {};  // all of it is in a line that began earlier
    last = text.find('\n', size);
    if (last != std::string_view::npos || begin + text.size() == file_.size()) break;
    if (more >= format_.longest)
      throw Corrupt(str(file_.path(), ": the line that begins at byte ", begin + (text.rfind('\n', size) + 1),
                        " has more than ", format_.longest, " bytes, expected fewer"));
  }
  text = text.substr(0, last).substr(first);
  Piece piece;
  piece.begin = begin + first;
  piece.lines = std::count(text.begin(), text.end(), '\n') + 1;
  RowFormat format = format_;
  if (text.find(format.quote) == std::string_view::npos) format.quote = 0;
  piece.rows = rows_of(text, format, false);
  if (format.quote)
    piece.rows_inside = rows_of(text, format, true);
  else
    piece.rows_inside.inside = true;
  return piece;
}

RowIndex::RowIndex(const TextFile& file, RowFormat format, int threads)
    : file_(file), format_(format), text_begin_(begin_of_text(file)) {
  const std::uint64_t bytes = file.size() - text_begin_;
  std::vector<Piece> pieces(static_cast<std::size_t>((bytes + kPieceBytes - 1) / kPieceBytes));
  detail::in_parallel(pieces.size(), threads, [&](std::size_t i) {
    const std::uint64_t at = text_begin_ + i * kPieceBytes;
    pieces[i] = scan(at, std::min(at + kPieceBytes, file_.size()));
  });
  bool inside = false;
  std::int64_t line = 1;
  for (Piece& piece : pieces) {
    if (piece.lines == 0) continue;
    if (inside) std::swap(piece.rows, piece.rows_inside);
    piece.rows_inside = {};
    inside = piece.rows.inside;
    piece.row = rows_;
    piece.line = line;
    rows_ += piece.rows.count;
    line += piece.lines;
    if (piece.rows.count > 0) pieces_.push_back(std::move(piece));
  }
  if (!inside) return;
  const Piece& last = pieces_.back();
  throw OpenQuote(str(file.path(), ":", line_at(last.begin + last.rows.last),
                      ": the row that begins in this line has a quoted field that does not end"));
}

RowIndex::Span RowIndex::span_of(std::int64_t row) const {
  auto piece = std::ranges::upper_bound(pieces_, row, {}, &Piece::row) - 1;
  const auto place = static_cast<std::size_t>((row - piece->row) / piece->rows.stride);
  Span span;
  span.begin = piece->begin + piece->rows.starts[place].bytes;
  span.row = piece->row + static_cast<std::int64_t>(place) * piece->rows.stride;
  if (place + 1 < piece->rows.starts.size())
    span.end = piece->begin + piece->rows.starts[place + 1].bytes;
  else if (++piece != pieces_.end())
    span.end = piece->begin + piece->rows.starts[0].bytes;
  else
    span.end = file_.size();
  return span;
}

std::int64_t RowIndex::line_at(std::uint64_t offset) const {
  const auto piece = std::ranges::upper_bound(pieces_, offset, {}, &Piece::begin) - 1;
  const Start start = *(std::ranges::upper_bound(piece->rows.starts, offset - piece->begin, {}, &Start::bytes) - 1);
  const std::uint64_t from = piece->begin + start.bytes;
  std::string buffer;
  const std::string_view before = file_.read(from, static_cast<std::size_t>(offset - from), buffer);
  return piece->line + start.lines + std::count(before.begin(), before.end(), '\n');
}

}  // namespace paceline::io
