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
  // Indexes the file. `header`: its first row is none of the rows here.
  RowFile(const std::string& path, RowFormat format, bool header, int threads);

  const std::string& path() const { return file_.path(); }
  std::int64_t rows() const { return index_.rows() - header_; }
  // The first row of the file, the header among them; empty where there is none.
  std::string first_row() const;

  // Calls body(place, offset, text) for the row of each of `numbers`, where `place` is the place of the number in
  // `numbers` and `offset` the text's in the file. Rows come in the order of the file; near ones are read together, up
  // to 1 MiB. Returns the bytes that were read. Thread-safe.
  template <class Body>
  std::uint64_t read(std::span<const std::int64_t> numbers, const Body& body) const;

  // Changes with the number of rows or bytes.
  std::string identity() const { return str(index_.rows(), "-", file_.size()); }

  // "train.csv:17: "
  std::string place_text(std::uint64_t offset) const;

 private:
  struct Wanted {
    std::int64_t row;  // of the index
    std::size_t place;
  };
  std::vector<Wanted> in_order(std::span<const std::int64_t> numbers) const;
  // The span of rows from wanted[first] on, and behind the last that is in it.
  RowIndex::Span span_from(const std::vector<Wanted>& wanted, std::size_t first, std::size_t& end) const;
  void load(const RowIndex::Span& span, std::string& text) const;
  [[noreturn]] void throw_changed() const;

  const InputFile file_;
  const RowIndex index_;
  const bool header_;
};

template <class Body>
std::uint64_t RowFile::read(std::span<const std::int64_t> numbers, const Body& body) const {
  const std::vector<Wanted> wanted = in_order(numbers);
  std::uint64_t bytes = 0;
  std::string text;
  for (std::size_t next = 0; next < wanted.size();) {
    std::size_t end = next;
    const RowIndex::Span span = span_from(wanted, next, end);
    load(span, text);
    bytes += text.size();
    std::string_view rest = text;
    for (std::int64_t row = span.row; next < end;) {
      if (rest.empty()) throw_changed();
      if (index_.format().begins_row(rest)) {
        const std::size_t length = index_.format().row_length(rest);
        if (row++ == wanted[next].row) {
          body(wanted[next].place, span.begin + (text.size() - rest.size()), rest.substr(0, length));
          ++next;
        }
        rest.remove_prefix(length);
      }
      rest.remove_prefix(std::min(rest.find('\n'), rest.size() - 1) + 1);
    }
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
