// Converts data of other formats into a data set: shards of records, their indexes and checksums, and a manifest.

#include <paceline/convert_sources.h>
#include <paceline/error.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <utility>

#include "converting.h"
#include "flags.h"

DEFINE_string(format, "auto", "csv, tsv, libsvm, jsonl, text, numpy, webdataset, images or rec; auto: by the name");
DEFINE_string(split, "", "sets and their shares, as train=0.8,validation=0.1,test=0.1; '': one set");
DEFINE_string(split_key, "", "column whose value decides the set of a row; '': the whole entry, or an image's path");
DEFINE_string(bad, "fail", "entries that cannot be read: fail lists them and writes nothing, skip leaves them out");
DEFINE_int64(bad_limit, 0, "end at once where more entries are bad; 0: there is no limit");

DEFINE_string(label, "", "column, or array, with the label");
DEFINE_string(label_type, "auto", "class, number, or auto: class where labels are words or few whole numbers");
DEFINE_string(header, "auto", "does the first line of a CSV file name the columns: yes, no or auto");
DEFINE_string(delimiter, ",", "between the values of a CSV file, one character");
DEFINE_string(schema, "", "types of the columns: the PREFIX.schema.json of another run; '': by the values");
DEFINE_string(category, "", "columns that hold categories though they are numbers, with commas between");
DEFINE_string(one_hot, "", "columns that become one number for each category, with commas between");
DEFINE_string(skip, "", "columns to leave out, with commas between");
DEFINE_string(missing, ",?,NA,N/A,NaN,nan,NULL,null", "words for a missing value, with commas between");
DEFINE_string(fill, "", "what missing numbers become: mean, or a number; '': such rows are bad");
DEFINE_string(payload, "tensor",
              "records of rows: tensor (float32, fastest), row (numbers as text), or arrays (one for each column)");

DEFINE_bool(lines, false, "text: each line is a record; else windows are");
DEFINE_int64(window, 128, "text: bytes of a training example");
DEFINE_int64(stride, 0, "text: bytes from one window to the next; 0: as many as in a window");
DEFINE_string(text_field, "", "jsonl: the records are this text of each object");
DEFINE_int64(features, 0, "libsvm: numbers of an example; 0: by the largest index");
DEFINE_bool(from_zero, false, "libsvm: indices count from 0");
DEFINE_string(data, "", "numpy: array that becomes `data`");

namespace paceline {
namespace {

constexpr char kUsage[] =
    "to_rec [flags] PREFIX SOURCE...\n\n"
    "Converts data into PREFIX.manifest and shards that a RecordLoader reads without further options. SOURCE is\n"
    "  .csv .tsv              rows of numbers and words; --label names the label. PREFIX.schema.json keeps the types\n"
    "  .libsvm .svm           rows in LibSVM's format\n"
    "  .jsonl .ndjson         an object on each line: a row, or with --text_field a text\n"
    "  .txt                   text: windows of --window bytes, or --lines\n"
    "  .npy .npz              NumPy's arrays, an example for each index of the first axis\n"
    "  .tar                   WebDataset's samples of an image and a .cls\n"
    "  a folder, .lst, IDX    images, as im2rec packs them\n"
    "  .rec .manifest         records, to be divided or shuffled anew\n"
    "Text may be packed by gzip, as in rows.csv.gz. Bad entries are listed in PREFIX.bad.txt.\n"
    "With --split the sets are PREFIX-train.manifest and so on. An entry stays in its set when others are added.\n"
    "A run that was killed goes on when the same command is started again. The result is the same, byte for byte.";

constexpr int kMostArguments = 1 << 20;

std::vector<std::string> words_of(const std::string& list) {
  std::vector<std::string> words;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    words.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

std::vector<std::string> names_of(const std::string& list) {
  return list.empty() ? std::vector<std::string>{} : words_of(list);
}

std::vector<Split> splits_of(const std::string& list) {
  std::vector<Split> splits;
  for (const std::string& word : names_of(list)) {
    const std::size_t equals = word.find('=');
    Split split{word.substr(0, equals), 0};
    const std::string share = equals == std::string::npos ? "" : word.substr(equals + 1);
    const auto [end, error] = std::from_chars(share.data(), share.data() + share.size(), split.share);
    require(error == std::errc() && end == share.data() + share.size(), "--split has '", word,
            "', expected a name and a share, as train=0.8");
    splits.push_back(std::move(split));
  }
  double total = 0;
  bool whole_parts = true;  // as 8 and 2
  for (const Split& split : splits) {
    total += split.share;
    whole_parts = whole_parts && split.share >= 1;
  }
  require(splits.empty() || whole_parts || std::abs(total - 1) < 2e-3, "the shares of --split add up to ", total,
          ", expected 1: every entry belongs to one of the sets");
  return splits;
}

// One of several words of a flag.
template <class T>
T choice(const char* flag, const std::string& word, std::initializer_list<std::pair<const char*, T>> known) {
  std::string names;
  for (const auto& [name, value] : known) {
    if (word == name) return value;
    names += str(names.empty() ? "" : ", ", name);
  }
  throw InvalidArgument(str("--", flag, " is '", word, "', expected one of ", names));
}

// The format that the name of a source tells.
std::string format_of(const std::string& source) {
  const std::filesystem::path path(source);
  if (std::filesystem::is_directory(path)) return "images";
  const bool packed = path.extension() == ".gz";
  const std::string extension = (packed ? path.stem() : path).extension().string();
  static const std::map<std::string, std::string> formats = {
      {".csv", "csv"},      {".tsv", "tsv"},  {".libsvm", "libsvm"}, {".svm", "libsvm"}, {".jsonl", "jsonl"},
      {".ndjson", "jsonl"}, {".txt", "text"}, {".npy", "numpy"},     {".npz", "numpy"},  {".tar", "webdataset"},
      {".lst", "images"},   {".rec", "rec"},  {".manifest", "rec"}};
  const auto found = formats.find(extension);
  if (found != formats.end()) return found->second;
  if (path.filename().string().find("idx") != std::string::npos) return "images";
  throw InvalidArgument(str("the name of ", source, " does not tell its format; give it with --format"));
}

TableOptions table_options() {
  TableOptions options;
  if (!FLAGS_schema.empty()) options.schema = TableSchema::load(FLAGS_schema);
  options.label = FLAGS_label;
  options.label_kind =
      choice<LabelKind>("label_type", FLAGS_label_type,
                        {{"auto", LabelKind::kAuto}, {"class", LabelKind::kClass}, {"number", LabelKind::kNumber}});
  options.categories = names_of(FLAGS_category);
  options.one_hot = names_of(FLAGS_one_hot);
  options.skip = names_of(FLAGS_skip);
  options.missing_words = words_of(FLAGS_missing);
  options.fill = FLAGS_fill;
  options.split_key = FLAGS_split_key;
  options.payload =
      choice<RowPayload>("payload", FLAGS_payload,
                         {{"tensor", RowPayload::kTensor}, {"row", RowPayload::kRow}, {"arrays", RowPayload::kArrays}});
  return options;
}

// A source, and what one entry of it is called.
using NamedSource = std::pair<RecordSourceHandle, const char*>;

NamedSource csv(const std::vector<std::string>& files, char delimiter) {
  const CsvHeader header = choice<CsvHeader>(
      "header", FLAGS_header, {{"auto", CsvHeader::kAuto}, {"yes", CsvHeader::kYes}, {"no", CsvHeader::kNo}});
  return {csv_source(files, {.delimiter = delimiter, .header = header, .table = table_options()}), "row"};
}

NamedSource comma_separated(const std::vector<std::string>& files) {
  require(FLAGS_delimiter.size() == 1, "--delimiter is '", FLAGS_delimiter, "', expected one character");
  return csv(files, FLAGS_delimiter[0]);
}

NamedSource tab_separated(const std::vector<std::string>& files) { return csv(files, '\t'); }

NamedSource text(const std::vector<std::string>& files) {
  const TextSourceOptions options{
      .window = FLAGS_window, .lines = FLAGS_lines, .stride = FLAGS_stride, .field = FLAGS_text_field};
  return {text_source(files, options), FLAGS_lines || !FLAGS_text_field.empty() ? "line" : "window"};
}

NamedSource json_lines(const std::vector<std::string>& files) {
  return FLAGS_text_field.empty() ? NamedSource{json_lines_source(files, table_options()), "row"} : text(files);
}

NamedSource libsvm(const std::vector<std::string>& files) {
  return {libsvm_source(
              files, {.features = FLAGS_features, .from_zero = FLAGS_from_zero, .label = table_options().label_kind}),
          "row"};
}

NamedSource numpy(const std::vector<std::string>& files) {
  return {numpy_source(files, {.data = FLAGS_data, .label = FLAGS_label}), "example"};
}

NamedSource images(const std::vector<std::string>& files) {
  require(files.size() == 1, "images come from one folder, list or IDX file, not from ", files.size());
  return {image_source(files[0], tools::image_source_options()), "image"};
}

NamedSource webdataset(const std::vector<std::string>& files) {
  return {webdataset_source(files, tools::image_source_options()), "image"};
}

NamedSource records(const std::vector<std::string>& files) { return {record_source(files), "record"}; }

// The formats, and the flags that apply to each beside the common ones.
struct Format {
  NamedSource (*open)(const std::vector<std::string>& files);
  std::vector<std::string> flags;
};

const std::vector<std::string> kTableFlags = {"label", "label_type", "schema", "category", "one_hot",
                                              "skip",  "missing",    "fill",   "payload",  "split_key"};
const std::vector<std::string> kImageFlags = {"encoding",    "quality",  "resize",
                                              "center_crop", "channels", "pass_through"};

std::vector<std::string> with(std::vector<std::string> flags, std::initializer_list<const char*> more) {
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

const std::map<std::string, Format>& formats() {
  static const std::map<std::string, Format> formats = {
      {"csv", {comma_separated, with(kTableFlags, {"header", "delimiter"})}},
      {"tsv", {tab_separated, with(kTableFlags, {"header"})}},
      {"jsonl", {json_lines, kTableFlags}},
      {"text", {text, {"lines", "window", "stride"}}},
      {"libsvm", {libsvm, {"features", "from_zero", "label_type"}}},
      {"numpy", {numpy, {"data", "label"}}},
      {"webdataset", {webdataset, kImageFlags}},
      {"images", {images, with(kImageFlags, {"labels", "root"})}},
      {"rec", {records, {}}}};
  return formats;
}

// The flags that apply to a format with the other flags as they are.
std::vector<std::string> flags_for(const std::string& format) {
  if (format == "jsonl" && !FLAGS_text_field.empty()) return {"text_field", "window"};
  std::vector<std::string> flags = formats().at(format).flags;
  if (FLAGS_schema.empty()) return flags;
  for (const char* const said : {"label_type", "category", "one_hot", "skip", "fill"}) std::erase(flags, said);
  return flags;
}

tools::FlagSources flag_sources() { return {{__FILE__, tools::kConvertingFlags}}; }

// A flag that would change nothing is a mistake.
void refuse_other_flags(const std::string& format) {
  const std::vector<std::string> common = {"format", "shards", "threads", "shuffle",
                                           "seed",   "split",  "bad",     "bad_limit"};
  for (const auto& flag : tools::flags_of(flag_sources())) {
    const auto among = [&](const std::vector<std::string>& names) {
      return std::find(names.begin(), names.end(), flag.name) != names.end();
    };
    require(flag.is_default || among(common) || among(flags_for(format)), "--", flag.name,
            " does not apply to the format ", format,
            !FLAGS_schema.empty()       ? " with --schema, which says what the columns are"
            : !FLAGS_text_field.empty() ? " with --text_field"
                                        : "");
  }
}

int run(const std::string& prefix, const std::vector<std::string>& sources) {
  ConvertOptions options = tools::convert_options();
  std::string format = FLAGS_format;
  if (format == "auto") {
    format = format_of(sources[0]);
    for (const std::string& source : sources)
      require(format_of(source) == format, sources[0], " and ", source, " are not of the same format");
  }
  const auto found = formats().find(format);
  require(found != formats().end(), "--format is '", format,
          "', expected one of csv, tsv, libsvm, jsonl, text, numpy, webdataset, images, rec");
  refuse_other_flags(format);
  const bool skip_bad = choice<bool>("bad", FLAGS_bad, {{"fail", false}, {"skip", true}});
  require(FLAGS_bad_limit >= 0, "--bad_limit cannot be ", FLAGS_bad_limit);
  const std::vector<Split> splits = splits_of(FLAGS_split);
  require(!splits.empty() || FLAGS_split_key.empty(), "--split_key needs --split, the sets to divide the rows into");
  const NamedSource source = found->second.open(sources);
  options.splits = splits;
  options.skip_bad = skip_bad;
  options.bad_limit = FLAGS_bad_limit;
  options.skip_hint = "--bad skip leaves them out";
  return tools::convert_and_tell(prefix, *source.first, std::move(options), source.second);
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  paceline::tools::parse_flags(paceline::kUsage, paceline::flag_sources(), &argc, &argv, paceline::kMostArguments);
  return paceline::tools::run_main("to_rec", [&] {
    paceline::require(argc >= 3, "needs a prefix and a source; see to_rec --help");
    return paceline::run(argv[1], {argv + 2, argv + argc});
  });
}
