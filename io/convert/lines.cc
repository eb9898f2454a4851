#include "convert/lines.h"

#include <paceline/error.h>

#include <algorithm>
#include <numeric>

#include "record_order.h"

namespace paceline::io {

Lines::Lines(const std::vector<std::string>& paths, const RowFormat& format, bool header) {
  require(!paths.empty(), "no files were given");
  for (const std::string& path : paths) {
    files_.emplace_back(path, format, header, 0, TextFile::Memory::kUnpacked);
    starts_.push_back(starts_.back() + files_.back().rows());
  }
}

template <class Body>
void Lines::with_row(std::int64_t row, const Body& body) const {
  const std::size_t file = range_of(starts_, row);
  const std::int64_t own = row - starts_[file];
  files_[file].read(
      {&own, 1}, [&](std::size_t, std::uint64_t offset, std::string_view bytes) { body(files_[file], offset, bytes); });
}

void Lines::read(std::int64_t row, std::string& to) const {
  with_row(row, [&](const RowFile&, std::uint64_t, std::string_view bytes) { to = bytes; });
}

std::string Lines::place(std::int64_t row) const {
  std::string place;
  with_row(row, [&](const RowFile& file, std::uint64_t offset, std::string_view) { place = file.place_text(offset); });
  return place;
}

void Lines::each(const std::function<void(std::int64_t row, std::string_view bytes)>& body) const {
  constexpr std::int64_t kTogether = 4096;
  std::vector<std::int64_t> numbers;
  for (std::size_t file = 0; file < files_.size(); ++file) {
    for (std::int64_t first = 0; first < files_[file].rows(); first += kTogether) {
      numbers.resize(static_cast<std::size_t>(std::min(kTogether, files_[file].rows() - first)));
      std::iota(numbers.begin(), numbers.end(), first);
      files_[file].read(numbers, [&](std::size_t place, std::uint64_t, std::string_view bytes) {
        body(starts_[file] + numbers[place], bytes);
      });
    }
  }
}

std::vector<std::string> first_rows(const std::string& path, const RowFormat& format, std::size_t count) {
  constexpr std::uint64_t kAtFirst = 1 << 20;  // bytes
  const TextFile file(path, TextFile::Memory::kUnpacked);
  const std::uint64_t begin = begin_of_text(file), bytes = file.size() - begin;
  std::string buffer;
  for (std::uint64_t most = kAtFirst;; most = std::min(most * 8, format.longest)) {
    const std::string_view text = file.read(begin, static_cast<std::size_t>(std::min(most, bytes)), buffer);
    std::vector<std::string> rows;
    bool whole = false;  // is the end of the last row there?
    format.each_row(text, [&](std::size_t place, std::string_view row) {
      rows.emplace_back(row);
      whole = text.find('\n', place + row.size()) != std::string_view::npos;
      return rows.size() < count;
    });
    if ((whole && rows.size() == count) || most >= bytes || most >= format.longest) return rows;
  }
}

}  // namespace paceline::io
