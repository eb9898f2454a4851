#include "row_index.h"

#include <paceline/detail/in_parallel.h>
#include <paceline/error.h>

#include <algorithm>
#include <cstring>

namespace paceline::io {
namespace {

constexpr std::uint64_t kPieceBytes = 4 << 20;
constexpr std::size_t kLookAhead = 4096;  // bytes read behind a piece, to tell whether its last line is a row
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

// Throws Corrupt where the first bytes of a file are those of gzip or of text in UTF-16.
void require_text(const std::string& path, std::string_view begin) {
  if (begin.starts_with("\x1f\x8b"))
    throw Corrupt(str(path, " is compressed by gzip, which is not read here; unpack it with gunzip first"));
  if (begin.starts_with("\xff\xfe") || begin.starts_with("\xfe\xff"))
    throw Corrupt(str(path, " is text in UTF-16, which is not read here; convert it with iconv -t UTF-8"));
}

}  // namespace

bool RowFormat::begins_row(std::string_view text) const {
  if (comment) {
    const std::size_t word = text.find_first_not_of(" \t\r\v\f");
    return word != std::string_view::npos && text[word] != '\n' && text[word] != comment;
  }
  if (text.starts_with('\r')) text.remove_prefix(1);
  return !text.empty() && text.front() != '\n';
}

std::size_t RowFormat::row_length(std::string_view text) const {
  const auto find = [&](char c, std::size_t from) { return std::min(text.find(c, from), text.size()); };
  std::size_t end = find('\n', 0);
  if (quote && end > 0 && std::memchr(text.data(), quote, end)) {
    // An end of line between an opening and a closing quote does not end the row.
    std::size_t at = 0;
    for (;;) {
      const std::size_t open = find(quote, at);
      end = find('\n', at);
      if (end < open || open == text.size()) break;
      at = std::min(find(quote, open + 1) + 1, text.size());
    }
  }
  if (end > 0 && text[end - 1] == '\r') --end;
  return end;
}

void RowIndex::add(Starts& starts, std::string_view text, std::size_t line) const {
  if (!format_.begins_row(text.substr(line))) return;
  if (starts.rows++ % kStride == 0) starts.every.push_back(static_cast<std::uint32_t>(line));
}

// Finds the rows that begin behind the ends of lines from `begin` to `end`. It also looks at the line at text_begin_,
// which has no end of line before it.
RowIndex::Piece RowIndex::scan(std::uint64_t begin, std::uint64_t end) const {
  std::string bytes(static_cast<std::size_t>(end - begin) + kLookAhead, '\0');
  bytes.resize(file_.read_at(begin, bytes.data(), bytes.size()));
  const std::string_view text = bytes;
  const std::size_t length = std::min(text.size(), static_cast<std::size_t>(end - begin));
  Piece piece;
  piece.begin = begin;
  if (begin == text_begin_) add(piece.starts, text, 0);
  const char* const data = text.data();
  if (!format_.quote || !std::memchr(data, format_.quote, length)) {
    for (std::size_t at = 0; at < length;) {
      const void* const found = std::memchr(data + at, '\n', length - at);
      if (!found) break;
      at = static_cast<std::size_t>(static_cast<const char*>(found) - data) + 1;
      add(piece.starts, text, at);
    }
    piece.inside = Starts();
    return piece;
  }
  piece.inside = Starts();
  for (std::size_t at = 0; at < length; ++at) {
    if (data[at] == format_.quote)
      piece.odd = !piece.odd;
    else if (data[at] == '\n')
      add(piece.odd ? *piece.inside : piece.starts, text, at + 1);
  }
  return piece;
}

RowIndex::RowIndex(const InputFile& file, RowFormat format, int threads) : file_(file), format_(format) {
  char begin[4] = {};
  const std::string_view first(begin, file.read_at(0, begin, sizeof begin));
  require_text(file.path(), first);
  if (first.starts_with(kByteOrderMark)) text_begin_ = kByteOrderMark.size();
  const std::uint64_t bytes = file.size() - text_begin_;
  std::vector<Piece> pieces(static_cast<std::size_t>((bytes + kPieceBytes - 1) / kPieceBytes));
  detail::in_parallel(pieces.size(), threads, [&](std::size_t i) {
    const std::uint64_t at = text_begin_ + i * kPieceBytes;
    pieces[i] = scan(at, std::min(at + kPieceBytes, file_.size()));
  });
  bool inside = false;
  for (Piece& piece : pieces) {
    if (inside) piece.starts = std::move(*piece.inside);
    piece.inside.reset();
    inside ^= piece.odd;
    piece.first = rows_;
    rows_ += piece.starts.rows;
    if (piece.starts.rows == 0) continue;
    piece.starts.every.shrink_to_fit();
    pieces_.push_back(std::move(piece));
  }
  if (inside) throw_open_quote();
}

RowIndex::Span RowIndex::span_of(std::int64_t row) const {
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), row,
                                [](std::int64_t wanted, const Piece& p) { return wanted < p.first; }) -
               1;
  const auto place = static_cast<std::size_t>((row - piece->first) / kStride);
  Span span;
  span.begin = piece->begin + piece->starts.every[place];
  span.row = piece->first + static_cast<std::int64_t>(place) * kStride;
  if (place + 1 < piece->starts.every.size())
    span.end = piece->begin + piece->starts.every[place + 1];
  else if (++piece != pieces_.end())
    span.end = piece->begin + piece->starts.every[0];
  else
    span.end = file_.size();
  return span;
}

std::int64_t RowIndex::line_at(std::uint64_t offset) const {
  std::string bytes(static_cast<std::size_t>(std::min(kPieceBytes, offset)), '\0');
  std::int64_t lines = 1;
  for (std::uint64_t at = 0; at < offset;) {
    const std::size_t got =
        file_.read_at(at, bytes.data(), static_cast<std::size_t>(std::min<std::uint64_t>(bytes.size(), offset - at)));
    if (got == 0) break;
    lines += std::count(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(got), '\n');
    at += got;
  }
  return lines;
}

// Nobody knows which quote is too many. The last one is a place to begin to look.
void RowIndex::throw_open_quote() const {
  std::string bytes;
  std::size_t found = std::string::npos;
  std::uint64_t begin = file_.size();
  while (found == std::string::npos && begin > 0) {
    const std::uint64_t end = begin;
    begin -= std::min(begin, kPieceBytes);
    bytes.resize(static_cast<std::size_t>(end - begin));
    bytes.resize(file_.read_at(begin, bytes.data(), bytes.size()));
    found = bytes.rfind(format_.quote);
  }
  throw Corrupt(str(file_.path(), ": the number of ", format_.quote, " is odd, so a quoted field never ends; the last ",
                    format_.quote, " is in line ", line_at(begin + found), "; where they do not quote, set quote = 0"));
}

}  // namespace paceline::io
