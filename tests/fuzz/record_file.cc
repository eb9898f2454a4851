#include <paceline/manifest.h>
#include <paceline/record_tools.h>
#include <paceline/recordio.h>

#include <filesystem>
#include <string>
#include <vector>

#include "fuzz.h"

namespace paceline::fuzz {

// The index, the checksums (none: no such file), then the record file.
void record_file(std::string_view input) {
  Cutter cut(input);
  file_of(cut.text(), "files.idx");
  const std::string checksums = path_of("files.crc");
  if (const std::string_view text = cut.text(); text.empty())
    std::filesystem::remove(checksums);
  else
    file_of(text, "files.crc");
  const std::string path = file_of(cut.rest(), "files.rec");

  const std::size_t bound = 16384 + 64 * input.size();
  const auto file = within(
      bound, [&] { return parsed<Corrupt>([&] { return std::make_unique<RecordFile>(path); }).value_or(nullptr); });
  bool sound = file != nullptr;
  std::vector<std::string> told;
  for (std::int64_t place = 0; file && place < file->size(); ++place) {
    std::string record;
    RecordDamage damage;
    const bool good = within(bound, [&] { return file->try_read(place, record, damage); });
    expect(good || !damage.reason.empty(), "a damage without a reason");
    expect(!good || record.size() <= cut.rest().size(), "a record longer than its file");
    sound = sound && good;
    told.push_back(good ? record : damage.reason);
  }
  const std::size_t block = std::size_t{1} << 20;
  if (file)
    within(bound + block, [&] {
      RecordBuffer buffer;
      file->visit(0, file->size(), buffer,
                  [&](std::int64_t place, std::string_view record, const RecordDamage* damage) {
                    expect(told[static_cast<std::size_t>(place)] == (damage ? damage->reason : record),
                           "visit() tells another");
                  });
      return true;
    });
  const VerifyReport report = verify(path);
  expect(sound || !report.problems.empty(), "verify() finds nothing wrong");
}

}  // namespace paceline::fuzz
