// Looks into record files and data sets, and makes data sets of record files.

#include <paceline/error.h>
#include <paceline/image.h>
#include <paceline/record_tools.h>

#include <cerrno>
#include <charconv>
#include <cinttypes>
#include <filesystem>
#include <fstream>
#include <map>
#include <system_error>

#include "flags.h"
#include "interrupt.h"
#include "progress.h"

DEFINE_int64(limit, 20, "records that `list` prints of each file, labels that `stats` prints; 0: all");
DEFINE_int32(shards, 0, "record files that `split`, `merge` and `lines` write; 0: one");
DEFINE_string(manifest, "", "manifest that `index` writes; '' is that of the one file, A.manifest beside A.rec");
DEFINE_string(classes, "", "text file with the names of the classes for `index`, one on each line, from class 0 on");
DEFINE_int32(threads, 0, "files that are worked on at a time; 0: as many as there are cores");

namespace paceline {
namespace {

constexpr char kUsage[] =
    "rec COMMAND [flags] ...\n\n"
    "SOURCE is a data set (.manifest) or a record file (.rec).\n"
    "  list SOURCE...              prints what it holds\n"
    "  verify SOURCE...            reads every record; names each damaged one; exit code 1 if any; contents without\n"
    "                              checksums cannot be checked\n"
    "  stats SOURCE...             counts records, labels, sizes and encodings\n"
    "  index FILE.rec...           writes .idx and .crc where they are missing, and a manifest; changes no record\n"
    "  lines PREFIX TEXT...        packs each line of text files as a record, into --shards files\n"
    "  append SET.manifest SOURCE...  adds record files to a data set, as further shards\n"
    "  split PREFIX SOURCE         copies the records into a data set of --shards files\n"
    "  merge PREFIX SOURCE...      copies the records of all sources into a data set\n"
    "  extract FOLDER SOURCE       writes each image into a file, and a list that im2rec reads\n"
    "  repair PREFIX SOURCE        copies what can be read, and says what is lost";

constexpr int kMostArguments = 1 << 20;

// Shows how many of the sources' bytes were read.
class Work {
 public:
  explicit Work(const std::vector<std::string>& sources) : progress_(total(sources), "MB", 1e6) {}

  RecordWork operator()() {
    return {.threads = tools::threads_wanted(FLAGS_threads), .progress = [this](std::uint64_t bytes) {
              tools::stop_if_interrupted();
              progress_.add(static_cast<double>(bytes));
            }};
  }

 private:
  static double total(const std::vector<std::string>& sources) {
    double bytes = 0;
    for (const std::string& source : sources) {
      for (const std::string& file : record_files(source)) {
        std::error_code missing;  // is found when the file is read
        const std::uintmax_t size = std::filesystem::file_size(file, missing);
        if (!missing) bytes += static_cast<double>(size);
      }
    }
    return bytes;
  }

  tools::Progress progress_;
};

std::string labels_text(const ImageRecord& record) {
  constexpr int kMost = 8;
  std::string text;
  for (int i = 0; i < std::min(record.label_count(), kMost); ++i) {
    char digits[32];
    if (i > 0) text += ',';
    text.append(digits, std::to_chars(digits, digits + sizeof digits, record.label(i)).ptr);
  }
  return text + (record.label_count() > kMost ? str(",... (", record.label_count(), ")") : "");
}

std::string describe(const std::string& bytes, ImageCodec& codec) {
  try {
    const ImageRecord record(bytes);
    const ImageHeader image = codec.header(record.image());
    return str("label ", labels_text(record), "  id ", record.id(), "  image ", image.width, " x ", image.height, " x ",
               image.channels);
  } catch (const Corrupt&) {
    return "no image record";
  }
}

void list_records(const std::string& path) {
  RecordReader reader(path);
  ImageCodec codec;
  std::string record;
  std::int64_t count = 0;
  while (reader.next(record)) {
    if (FLAGS_limit == 0 || count < FLAGS_limit) {
      std::printf("%10" PRId64 "  offset %12" PRIu64 "  %9zu bytes  %s\n", count, reader.offset(), record.size(),
                  describe(record, codec).c_str());
    }
    ++count;
  }
  std::printf("%s: %" PRId64 " records\n", path.c_str(), count);
}

void print_description(const Manifest& manifest) {
  const ImageSize& image = manifest.image;
  std::printf("records      %" PRId64 "\npayload      %s\n", manifest.records(), manifest.payload.c_str());
  if (manifest.payload == "image") {
    std::printf("encoding     %s\nimage        %d x %d x %d (width, height, channels; 0: they differ)\n",
                manifest.encoding.c_str(), image.width, image.height, image.channels);
    std::printf("labels       %s%d for each record%s\n", manifest.variable_labels ? "at most " : "",
                manifest.label_width, manifest.class_labels ? ", class numbers" : "");
  }
  if (!manifest.decoder.name.empty()) std::printf("decoder      %s\n", manifest.decoder.text().c_str());
}

void print_statistics(const DataStatistics& statistics) {
  const auto print = [](const std::string& name, const NumberStatistics& numbers) {
    std::printf("%-12s mean %.6g  deviation %.6g  from %.6g to %.6g", name.c_str(), numbers.mean, numbers.deviation,
                numbers.smallest, numbers.largest);
    if (numbers.missing > 0) std::printf("  %" PRId64 " missing", numbers.missing);
    std::printf("\n");
  };
  if (statistics.lengths.count > 0) print("lengths", statistics.lengths);
  std::int64_t shown = 0;
  for (const auto& [name, numbers] : statistics.numbers) {
    if (FLAGS_limit > 0 && ++shown > FLAGS_limit) break;
    print("numbers " + name, numbers);
  }
  if (FLAGS_limit > 0 && shown > FLAGS_limit) std::printf("and further numbers; --limit 0 prints all\n");
}

// The names in --classes.
std::vector<std::string> class_names() {
  std::vector<std::string> names;
  if (FLAGS_classes.empty()) return names;
  std::ifstream file(FLAGS_classes, std::ios::binary);
  std::string line;
  while (std::getline(file, line)) {
    if (line.ends_with('\r')) line.pop_back();
    require(!line.empty(), FLAGS_classes, " has an empty line, where the name of class ", names.size(), " should be");
    names.push_back(line);
  }
  if (!file.eof()) throw IoError(str("cannot read ", FLAGS_classes, ": ", std::generic_category().message(errno)));
  require(!names.empty(), FLAGS_classes, " names no classes");
  return names;
}

int list(const std::vector<std::string>& sources) {
  for (const std::string& source : sources) {
    if (record_files(source) == std::vector{source}) {
      list_records(source);
      continue;
    }
    const Manifest manifest = Manifest::load(source);
    print_description(manifest);
    print_statistics(manifest.statistics);
    for (std::size_t i = 0; i < manifest.labels.size(); ++i) {
      const auto count = manifest.statistics.classes.find(manifest.labels[i]);
      std::printf("class %6zu %s", i, manifest.labels[i].c_str());
      if (count != manifest.statistics.classes.end()) std::printf("  %" PRId64 " records", count->second);
      std::printf("\n");
    }
    for (const Shard& shard : manifest.shards) {
      std::printf("shard        %s  %" PRId64 " records  %" PRIu64 " bytes  crc32c %08x\n", shard.path.c_str(),
                  shard.records, shard.bytes, shard.crc32c);
    }
  }
  return 0;
}

int verify_all(const std::vector<std::string>& sources) {
  bool sound = true;
  Work work(sources);
  for (const std::string& source : sources) {
    const VerifyReport report = verify(source, work());
    for (const std::string& problem : report.problems) std::fprintf(stderr, "%s\n", problem.c_str());
    std::printf("%s: %" PRId64 " records in %" PRId64 " files, %zu problems", source.c_str(), report.records,
                report.shards, report.problems.size());
    if (report.left_out > 0) std::printf("; %" PRId64 " further records are in no index", report.left_out);
    if (report.unchecked > 0)
      std::printf("; %" PRId64 " records without checksums: their contents were not checked", report.unchecked);
    std::printf("\n");
    sound &= report.problems.empty();
  }
  return sound ? 0 : 1;
}

std::string range_text(int smallest, int largest) {
  return smallest == largest ? str(smallest) : str(smallest, " to ", largest);
}

int stats(const std::vector<std::string>& sources) {
  Work work(sources);
  RecordStatistics all;
  for (const std::string& source : sources) all.add(statistics(source, work()));
  std::printf(
      "records      %" PRId64 "\nbytes        %" PRIu64 " (shortest %" PRIu64 ", mean %.0f, longest %" PRIu64 ")\n",
      all.records, all.bytes, all.shortest,
      static_cast<double>(all.bytes) / static_cast<double>(std::max<std::int64_t>(all.records, 1)), all.longest);
  for (const auto& [encoding, count] : all.encodings)
    std::printf("%-12s %" PRId64 "\n", encoding == "none" ? "no image" : encoding.c_str(), count);
  if (all.images() == 0) return 0;
  std::printf("width        %s\nheight       %s\nchannels     %s\nlabels       %s for each record%s\n",
              range_text(all.smallest.width, all.largest.width).c_str(),
              range_text(all.smallest.height, all.largest.height).c_str(),
              range_text(all.smallest.channels, all.largest.channels).c_str(),
              range_text(all.fewest_labels, all.most_labels).c_str(), all.class_labels ? ", class numbers" : "");
  std::int64_t shown = 0;
  for (const auto& [label, count] : all.labels) {
    if (FLAGS_limit > 0 && ++shown > FLAGS_limit) break;
    std::printf("label %-6s %" PRId64 "\n", str(label).c_str(), count);
  }
  if (FLAGS_limit > 0 && shown > FLAGS_limit) std::printf("and further labels; --limit 0 prints all\n");
  return 0;
}

int index(const std::vector<std::string>& files) {
  require(files.size() == 1 || !FLAGS_manifest.empty(), "several files need --manifest, the manifest to write");
  const std::string path =
      FLAGS_manifest.empty() ? std::filesystem::path(files[0]).replace_extension(".manifest").string() : FLAGS_manifest;
  for (const std::string& file : files)
    require(std::filesystem::path(file).extension() == ".rec", file, " is not named as record files are, .rec");
  Work work(files);
  const Manifest manifest = index_records(files, path, work(), class_names());
  std::printf("%s: %" PRId64 " records in %zu files\n", path.c_str(), manifest.records(), manifest.shards.size());
  print_description(manifest);
  return 0;
}

int append(const std::vector<std::string>& arguments) {
  const std::vector<std::string> sources(arguments.begin() + 1, arguments.end());
  Work work(sources);
  const Manifest manifest = append_records(arguments[0], sources, work());
  std::printf("%s: %" PRId64 " records in %zu files\n", arguments[0].c_str(), manifest.records(),
              manifest.shards.size());
  return 0;
}

int copy(const std::vector<std::string>& arguments) {
  const std::vector<std::string> sources(arguments.begin() + 1, arguments.end());
  Work work(sources);
  const Manifest manifest = copy_records(sources, arguments[0], std::max(FLAGS_shards, 1), work());
  std::printf("%s.manifest: %" PRId64 " records in %zu files\n", arguments[0].c_str(), manifest.records(),
              manifest.shards.size());
  return 0;
}

int split(const std::vector<std::string>& arguments) {
  require(FLAGS_shards > 0, "`split` needs --shards, the number of record files to write");
  return copy(arguments);
}

int lines(const std::vector<std::string>& arguments) {
  const int shards = std::max(FLAGS_shards, 1);
  DatasetWriter writer(arguments[0], shards);
  std::int64_t count = 0;
  for (auto path = arguments.begin() + 1; path != arguments.end(); ++path) {
    std::ifstream file(*path, std::ios::binary);
    std::string line;
    while (std::getline(file, line)) {
      tools::stop_if_interrupted();
      if (!line.empty() && line.back() == '\r') line.pop_back();
      if (line.empty()) continue;
      // In turns, so that every shard is a fair sample.
      writer.write(static_cast<int>(count % shards), count, line);
      ++count;
    }
    if (!file.eof()) throw IoError(str("cannot read ", *path, ": ", std::generic_category().message(errno)));
  }
  require(count >= shards, count, " lines cannot fill ", shards, " shards");
  Manifest manifest;
  manifest.payload = "bytes";
  std::printf("%s: %" PRId64 " records in %d files\n", writer.finish(manifest).c_str(), count, shards);
  return 0;
}

int extract(const std::vector<std::string>& arguments) {
  Work work({arguments[1]});
  const ExtractReport report = extract_records(arguments[1], arguments[0], work());
  std::printf("%s: %" PRId64 " images, listed in %s", arguments[0].c_str(), report.images, report.list.c_str());
  if (report.others > 0) std::printf(", %" PRId64 " other records", report.others);
  std::printf("\n");
  return 0;
}

int repair(const std::vector<std::string>& arguments) {
  Work work({arguments[1]});
  const RepairReport report = repair_records(arguments[1], arguments[0], work());
  for (const RecordDamage& damage : report.lost) {
    std::printf("lost: %s", damage.text().c_str());
    if (damage.skipped > 0) std::printf(" (%" PRIu64 " bytes were skipped)", damage.skipped);
    std::printf("\n");
  }
  std::printf("%s.manifest: %" PRId64 " records saved; %zu damaged places, %" PRIu64 " bytes lost\n",
              arguments[0].c_str(), report.records, report.lost.size(), report.bytes);
  return 0;
}

struct Command {
  std::size_t fewest;
  std::size_t most;
  int (*run)(const std::vector<std::string>& arguments);
};

const std::map<std::string, Command> kCommands = {
    {"list", {1, kMostArguments, list}},
    {"verify", {1, kMostArguments, verify_all}},
    {"stats", {1, kMostArguments, stats}},
    {"index", {1, kMostArguments, index}},
    {"append", {2, kMostArguments, append}},
    {"split", {2, 2, split}},
    {"lines", {2, kMostArguments, lines}},
    {"merge", {2, kMostArguments, copy}},
    {"extract", {2, 2, extract}},
    {"repair", {2, 2, repair}},
};

int run(const std::vector<std::string>& arguments) {
  std::string known;
  for (const auto& [name, command] : kCommands) known += " " + name;
  require(!arguments.empty(), "needs a command; known:", known, "; rec --help says more");
  const auto command = kCommands.find(arguments[0]);
  require(command != kCommands.end(), "unknown command '", arguments[0], "'; known:", known);
  const std::vector<std::string> rest(arguments.begin() + 1, arguments.end());
  const auto [fewest, most, body] = command->second;
  require(rest.size() >= fewest && rest.size() <= most, "`", arguments[0], "` takes ",
          fewest == most ? "" : "at least ", fewest, " arguments; rec --help says which");
  require(FLAGS_limit >= 0, "--limit cannot be ", FLAGS_limit);
  require(FLAGS_shards >= 0, "--shards cannot be ", FLAGS_shards);
  return body(rest);
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  paceline::tools::parse_flags(paceline::kUsage, __FILE__, &argc, &argv, paceline::kMostArguments);
  paceline::tools::notice_signals();
  return paceline::tools::run_main("rec", [&] { return paceline::run({argv + 1, argv + argc}); });
}
