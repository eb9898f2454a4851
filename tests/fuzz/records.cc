#include <paceline/recordio.h>

#include "fuzz.h"

namespace paceline::fuzz {
namespace {

constexpr std::size_t kBuffer = std::size_t{2} << 20;  // of the reader

std::vector<std::string> read_all(RecordReader reader) {
  std::vector<std::string> records;
  std::string record;
  for (std::uint64_t last = 0; reader.next(record); last = reader.offset()) {
    expect(reader.offset() % 4 == 0 && (records.empty() || reader.offset() > last), "a record at offset ",
           reader.offset(), " behind one at ", last);
    records.push_back(record);
  }
  return records;
}

}  // namespace

void records(std::string_view input) {
  const std::string path = file_of(input, "input.rec");
  const auto read = within(kBuffer + 32 * input.size(),
                           [&] { return parsed<Corrupt>([&] { return read_all(RecordReader(path)); }); });
  RecordReader skipping(path, OnDamage::kSkip);
  std::vector<std::string> found;
  for (std::string record; skipping.next(record);) found.push_back(record);
  expect(skipping.damage().empty() == read.has_value(), "the reader that skips and the strict one disagree");
  if (!read) return;
  expect(found == *read, "the reader that skips gives other records");

  const std::string written = path_of("output.rec");
  RecordIndex index;
  {
    RecordWriter writer(written);
    for (const std::string& record : *read)
      index.push_back({static_cast<std::int64_t>(index.size()), writer.write(record)});
    writer.close();
  }
  expect(read_all(RecordReader(written)) == *read, "the records come back as others");
  expect(scan_index(written) == index, "the index of the written file is another");
  write_index(index_path(path), scan_index(path));
  const RecordFile file(path);
  expect(file.size() == static_cast<std::int64_t>(read->size()), file.size(), " records by index");
  for (std::int64_t place = 0; place < file.size(); ++place) {
    std::string record;
    file.read(place, record);
    expect(record == read->at(static_cast<std::size_t>(place)), "record ", place, " is another by index");
  }
}

}  // namespace paceline::fuzz
