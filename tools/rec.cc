// Lists and verifies data sets and record files.

#include <paceline/error.h>
#include <paceline/image.h>
#include <paceline/manifest.h>

#include <cinttypes>
#include <filesystem>

#include "flags.h"

DEFINE_int64(limit, 20, "records that `list` prints of each file; 0: all");

namespace paceline {
namespace {

constexpr char kUsage[] =
    "rec list FILE      prints what a data set (.manifest) or a record file (.rec) holds\n"
    "rec verify FILE    reads every record; names each damaged one by file, offset and record; exit code 1 if any";

std::string describe(const std::string& bytes) {
  try {
    const ImageRecord record(bytes);
    ImageCodec codec;
    Image image;
    codec.decode(record.image(), image);
    std::string labels;
    for (int i = 0; i < record.label_count(); ++i) labels += str(i ? "," : "", record.label(i));
    return str("label ", labels, "  id ", record.id(), "  image ", image.width, " x ", image.height, " x ",
               image.channels);
  } catch (const Corrupt&) {
    return "no image record";
  }
}

void list_records(const std::string& path) {
  RecordReader reader(path);
  std::string record;
  std::int64_t count = 0;
  while (reader.next(record)) {
    if (FLAGS_limit == 0 || count < FLAGS_limit) {
      std::printf("%10" PRId64 "  offset %12" PRIu64 "  %9zu bytes  %s\n", count, reader.offset(), record.size(),
                  describe(record).c_str());
    }
    ++count;
  }
  std::printf("%s: %" PRId64 " records\n", path.c_str(), count);
}

void list(const std::string& path) {
  require(FLAGS_limit >= 0, "--limit cannot be ", FLAGS_limit);
  if (std::filesystem::path(path).extension() == ".rec") return list_records(path);
  const Manifest manifest = Manifest::load(path);
  const ImageSize& image = manifest.image;
  std::printf("records      %" PRId64
              "\nencoding     %s\nimage        %d x %d x %d (width, height, channels; 0: they differ)\n",
              manifest.records(), manifest.encoding.c_str(), image.width, image.height, image.channels);
  std::printf("labels       %d for each record%s\n", manifest.label_width,
              manifest.class_labels ? ", class numbers" : "");
  for (std::size_t i = 0; i < manifest.labels.size(); ++i)
    std::printf("class %6zu %s\n", i, manifest.labels[i].c_str());
  for (const Shard& shard : manifest.shards) {
    std::printf("shard        %s  %" PRId64 " records  %" PRIu64 " bytes  crc32c %08x\n", shard.path.c_str(),
                shard.records, shard.bytes, shard.crc32c);
  }
}

int verify_file(const std::string& path) {
  const VerifyReport report = verify(path);
  for (const std::string& problem : report.problems) std::fprintf(stderr, "%s\n", problem.c_str());
  std::printf("%s: %" PRId64 " records in %" PRId64 " files, %zu problems\n", path.c_str(), report.records,
              report.shards, report.problems.size());
  return report.problems.empty() ? 0 : 1;
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  paceline::tools::parse_flags(paceline::kUsage, __FILE__, &argc, &argv, 2);
  const std::string command = argc == 3 ? argv[1] : "";
  return paceline::tools::run_main("rec", [&] {
    paceline::require(command == "list" || command == "verify", "needs `list` or `verify`, and a file; see rec --help");
    if (command == "verify") return paceline::verify_file(argv[2]);
    paceline::list(argv[2]);
    return 0;
  });
}
