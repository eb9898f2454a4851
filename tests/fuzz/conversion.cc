#include <paceline/convert_sources.h>
#include <paceline/record_loader.h>
#include <paceline/record_tools.h>

#include "fuzz.h"

namespace paceline::fuzz {
namespace {

RecordSourceHandle opened(std::uint8_t format, const std::string& path) {
  TableOptions table{.fill = format & 8 ? "mean" : "", .payload = static_cast<RowPayload>(format / 16 % 3)};
  switch (format & 7) {
    case 0: return csv_source({path}, {.table = table});
    case 1: return csv_source({path}, {.delimiter = '\t', .header = CsvHeader::kNo, .table = table});
    case 2: return json_lines_source({path}, table);
    case 3: return text_source({path}, {.window = 16, .lines = (format & 8) != 0});
    case 4: return libsvm_source({path}, {.features = 100, .from_zero = (format & 8) != 0});
    case 5: return numpy_source({path});
    case 6: return webdataset_source({path}, {.pass_through = (format & 8) != 0});
    default: return text_source({path}, {.window = 16, .field = "text"});
  }
}

}  // namespace

// The format in one byte; then the file. What is converted, a loader reads.
void conversion(std::string_view input) {
  Cutter cut(input);
  const auto format = cut.number<std::uint8_t>();
  const std::string path = file_of(cut.rest());
  const std::string set = path_of("set");
  const auto report =
      parsed<Corrupt, InvalidArgument>([&] { return convert(set, *opened(format, path), {.skip_bad = true}); });
  if (!report) return;
  expect(verify(report->sets[0].manifest).problems.empty(), "a record is damaged");
  if ((format & 7) == 6) return;  // images differ in size
  RecordLoader loader(report->sets[0].manifest, {.batch = 4});
  std::int64_t examples = 0;
  for (const Batch& batch : EpochRange(loader, 0, {})) examples += batch.examples;
  expect(examples == report->sets[0].records, examples, " examples of ", report->sets[0].records, " records");
}

}  // namespace paceline::fuzz
