#pragma once
// Examples that are rows of a text file.

#include <paceline/decoder.h>
#include <paceline/error.h>
#include <paceline/recordio.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "damage_log.h"
#include "file.h"
#include "pipeline.h"
#include "row_index.h"

namespace paceline::io {

class RowFile {
 public:
  // Indexes the file with so many threads; 0: the cores of the budget. `header`: its first row is none of the rows
  // here.
  RowFile(const std::string& path, RowFormat format, bool header, int threads,
          TextFile::Memory memory = TextFile::Memory::kSmall);

  const std::string& path() const { return file_.path(); }
  std::int64_t rows() const { return std::max<std::int64_t>(0, index_.rows() - header_); }
  // The first row of the file, the header among them; empty where there is none.
  std::string first_row() const;

  // Calls body(place, offset, text) for the row of each of `numbers`, where `place` is the place of the number in
  // `numbers` and `offset` the text's in the file. No number may come twice. Rows come in the order of the file; near
  // ones are read together, up to 1 MiB. Returns the bytes that were read. Thread-safe.
  template <class Body>
  std::uint64_t read(std::span<const std::int64_t> numbers, const Body& body) const;

  // Changes with the number of rows or bytes.
  std::string identity() const { return str(index_.rows(), "-", file_.size()); }

  // "train.csv:17", where a row begins at `offset`.
  std::string place_text(std::uint64_t offset) const { return str(path(), ":", index_.line_at(offset)); }

 private:
  struct Wanted {
    std::int64_t row;  // of the index
    std::size_t place;
    RowIndex::Span span;
  };
  std::vector<Wanted> in_order(std::span<const std::int64_t> numbers) const;
  // The span of rows from wanted[first] on, and behind the last that is in it.
  static RowIndex::Span span_from(const std::vector<Wanted>& wanted, std::size_t first, std::size_t& end);
  std::string_view load(const RowIndex::Span& span, std::string& buffer) const;
  [[noreturn]] void throw_changed() const;

  const TextFile file_;
  const RowIndex index_;
  const bool header_;
};

template <class Body>
std::uint64_t RowFile::read(std::span<const std::int64_t> numbers, const Body& body) const {
  const std::vector<Wanted> wanted = in_order(numbers);
  std::uint64_t bytes = 0;
  std::string buffer;
  for (std::size_t next = 0; next < wanted.size();) {
    std::size_t end = next;
    const RowIndex::Span span = span_from(wanted, next, end);
    const std::string_view text = load(span, buffer);
    bytes += text.size();
    std::int64_t row = span.row;
    index_.format().each_row(text, [&](std::size_t at, std::string_view found) {
      if (row++ == wanted[next].row) {
        body(wanted[next].place, span.begin + at, found);
        ++next;
      }
      return next < end;
    });
    if (next < end) throw_changed();
  }
  return bytes;
}

// Makes of each row what a decoder makes of its text.
class RowStore final : public ExampleStore {
 public:
  // `mark`: what else the identity says.
  RowStore(std::shared_ptr<const RowFile> file, DecoderFactory decoder, OnDamage on_damage, std::string mark = "");

  std::vector<ExampleArray> arrays() const override { return arrays_; }
  std::unique_ptr<BatchMaker> maker(int thread, const std::shared_ptr<BatchMemory>& memory) override;
  std::string identity() const override { return file_->identity() + mark_; }
  void ended() override { damage_.warn(file_->path()); }
  const DamageLog& damage() const { return damage_; }

 private:
  class Maker;

  const std::shared_ptr<const RowFile> file_;
  const DecoderFactory decoder_;
  const std::vector<ExampleArray> arrays_;
  const OnDamage on_damage_;
  const std::string mark_;
  DamageLog damage_;
};

// A pipeline over all rows, with the options that the iterators over rows share.
template <class Options>
std::unique_ptr<Pipeline> row_pipeline(const RowFile& file, std::shared_ptr<ExampleStore> store,
                                       const Options& options) {
  require(options.decode_threads >= 0, "decode_threads cannot be ", options.decode_threads);
  return std::make_unique<Pipeline>(
      PipelineOptions{.what = file.path(),
                      .starts = {0, file.rows()},
                      .order = {.batch = options.batch, .seed = options.shuffle, .partition = Partition::kRecords},
                      .source = options.source,
                      .threads = options.decode_threads,
                      .prefetch = options.prefetch},
      std::move(store));
}

// The rows' numbers of an epoch's positions.
std::vector<std::int64_t> examples_at(const std::vector<std::int64_t>& positions, const EpochView& epoch);

}  // namespace paceline::io
