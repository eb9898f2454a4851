#include "row_store.h"

#include <paceline/cores.h>
#include <paceline/error.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "array_memory.h"

namespace paceline::io {
namespace {

constexpr std::uint64_t kMostTogether = 1 << 20;  // bytes

}  // namespace

RowFile::RowFile(const std::string& path, RowFormat format, bool header, int threads, TextFile::Memory memory)
    : file_(path, memory), index_(file_, format, threads ? threads : core_budget()), header_(header) {}

std::string RowFile::first_row() const {
  std::string first, buffer;
  if (index_.rows() == 0) return first;
  index_.format().each_row(load(index_.span_of(0), buffer), [&](std::size_t, std::string_view row) {
    first = row;
    return false;
  });
  return first;
}

std::vector<RowFile::Wanted> RowFile::in_order(std::span<const std::int64_t> numbers) const {
  std::vector<Wanted> wanted;
  wanted.reserve(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::int64_t row = numbers[i] + header_;
    wanted.push_back({row, i, index_.span_of(row)});
  }
  std::ranges::sort(wanted, {}, &Wanted::row);
  return wanted;
}

RowIndex::Span RowFile::span_from(const std::vector<Wanted>& wanted, std::size_t first, std::size_t& end) {
  RowIndex::Span span = wanted[first].span;
  for (end = first + 1; end < wanted.size(); ++end) {
    const RowIndex::Span& next = wanted[end].span;
    if (next.end == span.end) continue;
    if (next.begin != span.end || next.end - span.begin > kMostTogether) break;
    span.end = next.end;
  }
  return span;
}

std::string_view RowFile::load(const RowIndex::Span& span, std::string& buffer) const {
  const StageScope stage(Stage::kRead);
  const std::uint64_t longest = index_.format().longest;
  if (span.end - span.begin >= longest)
    throw Corrupt(str(place_text(span.begin), ": the rows from here on have ", span.end - span.begin,
                      " bytes, expected fewer than ", longest, "; a quote may not be closed"));
  return file_.read(span.begin, static_cast<std::size_t>(span.end - span.begin), buffer);
}

void RowFile::throw_changed() const {
  throw Corrupt(str(path(), " has other rows than when it was opened; do not change a file while it is read"));
}

std::vector<std::int64_t> examples_at(const std::vector<std::int64_t>& positions, const EpochView& epoch) {
  std::vector<std::int64_t> examples;
  examples.reserve(positions.size());
  for (const std::int64_t position : positions) examples.push_back(epoch.example(position));
  return examples;
}

class RowStore::Maker final : public BatchMaker {
 public:
  Maker(RowStore& store, std::shared_ptr<BatchMemory> memory)
      : store_(store), memory_(std::move(memory)), decoder_(store.decoder_()), to_(store.arrays_.size()) {
    for (const ExampleArray& array : store.arrays_) arrays_.emplace_back(array);
  }

  MadeBatch make(const std::vector<std::int64_t>& positions, const EpochView& epoch) override {
    const auto count = static_cast<std::int64_t>(positions.size());
    for (ArrayMemory& array : arrays_) array.allocate(*memory_, count);
    std::vector<std::size_t> bad;
    MadeBatch made;
    const StageScope stage(Stage::kDecode);
    const std::vector<std::int64_t> rows = examples_at(positions, epoch);
    made.bytes = store_.file_->read(rows, [&](std::size_t place, std::uint64_t offset, std::string_view text) {
      for (std::size_t i = 0; i < arrays_.size(); ++i) to_[i] = arrays_[i].place(static_cast<std::int64_t>(place));
      try {
        decoder_->decode(text, epoch.seed(positions[place]), to_);
      } catch (const Corrupt& error) {
        if (store_.on_damage_ == OnDamage::kFail)
          throw Corrupt(str(store_.file_->place_text(offset), ": ", error.what()));
        store_.damage_.add({store_.file_->path(), offset, rows[place], error.what()});
        bad.push_back(place);
      }
    });
    made.examples = count - static_cast<std::int64_t>(bad.size());
    leave_out(std::move(bad), count);
    if (made.examples == 0) return made;
    for (ArrayMemory& array : arrays_) made.arrays.push_back(array.take(made.examples));
    return made;
  }

 private:
  void leave_out(std::vector<std::size_t> bad, std::int64_t count) {
    if (bad.empty()) return;
    std::sort(bad.begin(), bad.end());
    auto next = bad.begin();
    std::int64_t to = 0;
    for (std::int64_t from = 0; from < count; ++from) {
      if (next != bad.end() && static_cast<std::int64_t>(*next) == from) {
        ++next;
        continue;
      }
      if (to != from)
        for (const ArrayMemory& array : arrays_) std::memcpy(array.place(to), array.place(from), array.bytes());
      ++to;
    }
  }

  RowStore& store_;
  std::shared_ptr<BatchMemory> memory_;
  std::unique_ptr<Decoder> decoder_;
  std::vector<ArrayMemory> arrays_;
  std::vector<void*> to_;
};

RowStore::RowStore(std::shared_ptr<const RowFile> file, DecoderFactory decoder, OnDamage on_damage, std::string mark)
    : file_(std::move(file)),
      decoder_(std::move(decoder)),
      arrays_(decoder_()->arrays()),
      on_damage_(on_damage),
      mark_(std::move(mark)) {}

std::unique_ptr<BatchMaker> RowStore::maker(int, const std::shared_ptr<BatchMemory>& memory) {
  return std::make_unique<Maker>(*this, memory);
}

}  // namespace paceline::io
