#pragma once
// Where the rows of a text file are.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "file.h"

namespace paceline::io {

// Which lines are rows. An empty line is none.
struct RowFormat {
  char quote = 0;    // text between two of these may hold ends of lines; 0: nothing is quoted
  char comment = 0;  // a line whose first word begins with it is no row, nor is one of blanks alone; 0: there is none

  // Does a row begin at the front of `text`, where a line begins?
  bool begins_row(std::string_view text) const;
  // The length of the row at the front of `text`, without its end of line.
  std::size_t row_length(std::string_view text) const;
};

// Keeps where every 16th row begins: a quarter of a byte of memory for each row, and 50 bytes for each 4 MiB of text.
class RowIndex {
 public:
  // Reads the file once, in pieces of 4 MiB that `threads` threads take in turn. Throws IoError, and Corrupt where the
  // file is no text, or ends between quotes. `file` must outlive the index.
  RowIndex(const InputFile& file, RowFormat format, int threads);

  std::int64_t rows() const { return rows_; }
  const RowFormat& format() const { return format_; }

  // Bytes of the file, the first of which begins row `row`. They end with a row.
  struct Span {
    std::uint64_t begin = 0, end = 0;
    std::int64_t row = 0;
  };
  // The span that holds a row: at most 16 rows, and the lines behind them that are none.
  Span span_of(std::int64_t row) const;

  // The number, from 1, of the line at `offset`. Reads the file from its beginning: for errors.
  std::int64_t line_at(std::uint64_t offset) const;

 private:
  static constexpr std::int64_t kStride = 16;
  // Every kStride-th of the rows that begin in a piece of the file, as distances from the piece.
  struct Starts {
    std::int64_t rows = 0;
    std::vector<std::uint32_t> every;
  };
  struct Piece {
    std::uint64_t begin = 0;
    std::int64_t first = 0;  // row
    Starts starts;
    std::optional<Starts> inside;  // until it is known: the same if the piece begins between quotes
    bool odd = false;              // number of quotes
  };
  Piece scan(std::uint64_t begin, std::uint64_t end) const;
  void add(Starts& starts, std::string_view text, std::size_t line) const;
  [[noreturn]] void throw_open_quote() const;

  const InputFile& file_;
  const RowFormat format_;
  std::uint64_t text_begin_ = 0;  // behind a byte order mark
  std::int64_t rows_ = 0;
  std::vector<Piece> pieces_;  // that hold the beginning of a row
};

}  // namespace paceline::io
