#pragma once
// Where the rows of a text file are.

#include <paceline/error.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "text_file.h"

namespace paceline::io {

// How text is cut into rows. A row is a line, but for two exceptions: an empty line is no row, and a row of fields goes
// on behind ends of lines that are between quotes. As in RFC 4180, quotes enclose whole fields: one that does not begin
// a field is text, and two within quotes stand for one.
struct RowFormat {
  char quote = 0;        // around fields; 0: nothing is quoted, as in plain text
  char delimiter = ',';  // between fields, where something is quoted
  char comment = 0;  // a line whose first word begins with it is no row, nor is one of blanks alone; 0: there is none
  std::uint64_t longest = 1 << 29;  // bytes; a row has fewer, as a record has

  // Does a row begin at the front of `text`, where a line begins?
  bool begins_row(std::string_view text) const;
  // Where the first end of a line in `text` is that is not between quotes; text.size() where there is none. `inside`:
  // does `text` begin between quotes? Else it begins a line. It becomes whether the place that is returned is between
  // quotes.
  std::size_t line_end(std::string_view text, bool& inside) const;
  // Calls body(place in `text`, row) for the rows of `text`, which begins a line, until body returns false. Rows come
  // without their ends of lines.
  template <class Body>
  void each_row(std::string_view text, const Body& body) const;
};

// Where the text of a file begins: behind a byte order mark of UTF-8. Throws Corrupt where it is in UTF-16.
std::uint64_t begin_of_text(const TextFile& file);

// A file ends between quotes.
class OpenQuote : public Corrupt {
 public:
  using Corrupt::Corrupt;
};

// Keeps where some rows begin, about one in each KiB of text and every 16th at least. So it takes half a byte of memory
// for each row, or less than a sixtieth of the text where that is more.
class RowIndex {
 public:
  // Reads the file once, in pieces of 4 MiB that `threads` threads take in turn. Throws IoError, and Corrupt where the
  // file is no text, or a line is too long for a row. Throws OpenQuote. `file` must outlive the index.
  RowIndex(const TextFile& file, RowFormat format, int threads);

  std::int64_t rows() const { return rows_; }
  const RowFormat& format() const { return format_; }

  // Bytes of the file, the first of which begins row `row`. They end with a row.
  struct Span {
    std::uint64_t begin = 0, end = 0;
    std::int64_t row = 0;
  };
  // The span that holds a row: at most 16 rows, and the lines behind them that are none.
  Span span_of(std::int64_t row) const;

  // The number, from 1, of the line at `offset`, where a row begins. Reads at most the row's span.
  std::int64_t line_at(std::uint64_t offset) const;

 private:
  // Of a row: how many bytes and lines it begins behind the piece's begin.
  struct Start {
    std::uint32_t bytes, lines;
  };
  // The rows that begin in a piece of the file.
  struct Rows {
    std::int64_t count = 0;
    std::int64_t stride = 1;  // from one in `starts` to the next
    std::vector<Start> starts;
    std::uint32_t last = 0;  // bytes before the last row
    bool inside = false;     // is the piece's end between quotes?
  };
  // From behind the first end of a line in 4 MiB of the file to the first one behind these.
  struct Piece {
    std::uint64_t begin = 0;
    std::int64_t lines = 0;  // 0: it has no text
    std::int64_t row = 0;    // the first
    std::int64_t line = 0;   // the first, from 1
    Rows rows;
    Rows rows_inside;  // until it is known: those if the piece begins between quotes
  };
  Piece scan(std::uint64_t begin, std::uint64_t end) const;

  static Rows rows_of(std::string_view text, const RowFormat& format, bool inside);

  const TextFile& file_;
  const RowFormat format_;
  const std::uint64_t text_begin_;
  std::int64_t rows_ = 0;
  std::vector<Piece> pieces_;  // that hold the beginning of a row
};

template <class Body>
void RowFormat::each_row(std::string_view text, const Body& body) const {
  for (std::size_t at = 0; at < text.size(); ++at) {
    const std::string_view rest = text.substr(at);
    bool inside = false;
    const std::size_t end = line_end(rest, inside);
    if (begins_row(rest)) {
      std::string_view row = rest.substr(0, end);
      if (row.ends_with('\r')) row.remove_suffix(1);
      if (!body(at, row)) return;
    }
    at += end;
  }
}

}  // namespace paceline::io
