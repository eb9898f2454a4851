#include <paceline/record_tools.h>

#include <gmock/gmock.h>
#include <paceline/convert_sources.h>
#include <paceline/error.h>
#include <paceline/image_list.h>
#include <paceline/record_loader.h>

#include <atomic>
#include <map>

#include "fixtures.h"

namespace paceline::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing::SizeIs;

// Record files as MXNet's im2rec leaves them: `name`.rec, with an index or without.
void write_foreign(const TemporaryFolder& folder, const std::string& name, const std::vector<std::string>& records,
                   bool indexed = false) {
  RecordWriter writer(folder / name + ".rec");
  RecordIndex index;
  for (const std::string& record : records)
    index.push_back({100 + static_cast<std::int64_t>(index.size()), writer.write(record)});
  writer.close();
  if (indexed) write_index(folder / name + ".idx", index);
}

std::string image_record(const std::vector<float>& labels, std::uint64_t id, const Image& image,
                         ImageEncoding encoding = ImageEncoding::kPng) {
  return pack_image_record(labels, id, ImageCodec().encode(image, encoding));
}

Image plain(int height, int width, int channels, std::uint8_t value) {
  return {height, width, channels,
          std::vector<std::uint8_t>(static_cast<std::size_t>(height * width * channels), value)};
}

std::vector<std::string> some_images(int count, int channels = 3) {
  std::vector<std::string> records;
  for (int i = 0; i < count; ++i) {
    records.push_back(image_record({static_cast<float>(i % 3)}, static_cast<std::uint64_t>(i),
                                   plain(4, 5, channels, static_cast<std::uint8_t>(i))));
  }
  return records;
}

std::vector<std::string> records_of(const std::string& source) {
  std::vector<std::string> records;
  std::string record;
  for (const std::string& path : record_files(source)) {
    RecordReader reader(path);
    while (reader.next(record)) records.push_back(record);
  }
  return records;
}

// The labels of an epoch by the image's first value.
std::map<int, std::vector<float>> epoch(const std::string& manifest, RecordLoaderOptions options = {}) {
  RecordLoader loader(manifest, std::move(options));
  std::map<int, std::vector<float>> seen;
  for (const Batch& batch : EpochRange(loader, 0, {})) {
    const std::vector<float> values = batch.data.to_vector<float>();
    const std::vector<float> labels = batch.label.cast(DType::kFloat32).to_vector<float>();
    const auto each = [&](const auto& all, std::int64_t i) {
      const auto width = static_cast<std::ptrdiff_t>(all.size()) / batch.examples;
      return std::vector<float>(all.begin() + i * width, all.begin() + (i + 1) * width);
    };
    for (std::int64_t i = 0; i < batch.examples; ++i)
      seen[static_cast<int>(std::lround(each(values, i)[0] * 255))] = each(labels, i);
  }
  return seen;
}

TEST(IndexRecords, MakesADataSetOfAFileThatStays) {
  TemporaryFolder folder;
  write_foreign(folder, "a", some_images(7));
  const std::string before = read_all(folder / "a.rec");
  const Manifest manifest = index_records({folder / "a.rec"}, folder / "a.manifest");
  EXPECT_EQ(read_all(folder / "a.rec"), before);
  EXPECT_THAT(folder.files(), ElementsAre("a.crc", "a.idx", "a.manifest", "a.rec"));
  EXPECT_EQ(manifest.records(), 7);
  EXPECT_EQ(manifest.image, (ImageSize{4, 5, 3}));
  EXPECT_EQ(manifest.encoding, "png");
  EXPECT_TRUE(manifest.class_labels);
  EXPECT_THAT(verify(folder / "a.manifest").problems, IsEmpty());
  const auto seen = epoch(folder / "a.manifest");
  ASSERT_THAT(seen, SizeIs(7));
  for (const auto& [value, labels] : seen) EXPECT_THAT(labels, ElementsAre(static_cast<float>(value % 3)));
  EXPECT_THAT(error_of<InvalidArgument>([&] { index_records({folder / "a.rec"}, folder / "a.manifest"); }),
              HasSubstr("a.manifest exists; remove it first"));
}

TEST(IndexRecords, NamesTheClasses) {
  TemporaryFolder folder;
  write_foreign(folder, "a", some_images(7));
  const std::string path = folder / "a.manifest";
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                index_records({folder / "a.rec"}, path, {}, {"cat", "dog"});
              }),
              HasSubstr("has the label 2, but only 2 classes are named"));
  EXPECT_FALSE(std::filesystem::exists(path));
  index_records({folder / "a.rec"}, path, {}, {"cat", "dog", "cow"});
  EXPECT_THAT(Manifest::load(path).labels, ElementsAre("cat", "dog", "cow"));
}

TEST(IndexRecords, ComparesTheNamesWithEveryLabel) {
  TemporaryFolder folder;
  std::vector<std::string> records;
  for (int label = 0; label <= 1000; ++label)
    records.push_back(image_record({static_cast<float>(label < 1000 ? label : 1500)}, 0, plain(1, 1, 1, 0)));
  write_foreign(folder, "a", records);
  // X  EXPECT_EQ(statistics(folder / "a.rec").largest_label, 1500);
  const std::vector<std::string> classes(1000, "one");
  EXPECT_THAT(error_of<InvalidArgument>([&] { index_records({folder / "a.rec"}, folder / "a.manifest", {}, classes); }),
              HasSubstr("has the label 1500, but only 1000 classes are named"));
}

TEST(IndexRecords, TakesIndexesAsTheyAreAndFilesElsewhere) {
  TemporaryFolder folder;
  write_foreign(folder, "a", some_images(5), true);
  write_foreign(folder, "b", some_images(4), true);
  // The second names two of its records only.
  RecordIndex index = read_index(folder / "b.idx");
  write_index(folder / "b.idx", {index[3], index[1]});
  const std::string kept = read_all(folder / "b.idx");
  std::filesystem::create_directory(folder / "sets");
  const std::string path = folder / "sets/both.manifest";
  const Manifest manifest = index_records({folder / "a.rec", folder / "b.rec"}, path, {.threads = 2});
  EXPECT_EQ(manifest.shards[0].path, "../a.rec");
  EXPECT_EQ(manifest.records(), 7);
  EXPECT_EQ(read_all(folder / "b.idx"), kept);
  EXPECT_THAT(verify(path).problems, IsEmpty());
  EXPECT_EQ(verify(path).left_out, 2);
  EXPECT_EQ(RecordFile(folder / "b.rec").key(0), 101);
  EXPECT_THAT(epoch(path), SizeIs(5));
}

TEST(IndexRecords, KnowsLabelsOfDetectionAndSeveralLabels) {
  TemporaryFolder folder;
  // Header of 2 and objects of 5 numbers, as MXNet's im2rec packs boxes.
  write_foreign(folder, "boxes",
                {image_record({2, 5, 0, .1f, .1f, .2f, .2f}, 0, plain(4, 4, 3, 1)),
                 image_record({2, 5, 1, 0, 0, 1, 1, 2, 0, 0, .5f, .5f}, 1, plain(4, 4, 3, 2))});
  const Manifest boxes = index_records({folder / "boxes.rec"}, folder / "boxes.manifest");
  EXPECT_EQ(boxes.label_width, 12);
  EXPECT_TRUE(boxes.variable_labels);
  EXPECT_FALSE(boxes.class_labels);
  const auto seen = epoch(folder / "boxes.manifest");
  EXPECT_THAT(seen.at(1), ElementsAre(2, 5, 0, .1f, .1f, .2f, .2f, -1, -1, -1, -1, -1));
  EXPECT_THAT(seen.at(2), ElementsAre(2, 5, 1, 0, 0, 1, 1, 2, 0, 0, .5f, .5f));
  write_foreign(folder, "two", {image_record({.5f, 7}, 0, plain(4, 4, 3, 1))});
  const Manifest two = index_records({folder / "two.rec"}, folder / "two.manifest");
  EXPECT_EQ(two.label_width, 2);
  EXPECT_FALSE(two.variable_labels);
}

TEST(IndexRecords, NamesDamageAndWritesNothing) {
  TemporaryFolder folder;
  write_foreign(folder, "a", some_images(5));
  const std::uint64_t second = scan_index(folder / "a.rec")[1].offset;
  flip_bit(folder / "a.rec", second);
  EXPECT_THAT(
      error_of<Corrupt>([&] { index_records({folder / "a.rec"}, folder / "a.manifest"); }),
      AllOf(HasSubstr(str("a.rec: record 1 at offset ", second, " is damaged: wrong magic number; `rec repair")),
            HasSubstr("copies the records that can be read")));
  EXPECT_THAT(folder.files(), ElementsAre("a.rec"));
  write_foreign(folder, "a", some_images(5), true);
  write_all(folder / "a.idx", "0\t4\n");
  EXPECT_THAT(error_of<Corrupt>([&] { index_records({folder / "a.rec"}, folder / "a.manifest"); }),
              HasSubstr("no record begins there"));
  write_all(folder / "none.rec", "");
  EXPECT_THAT(error_of<InvalidArgument>([&] { index_records({folder / "none.rec"}, folder / "a.manifest"); }),
              HasSubstr("none.rec holds no records"));
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                index_records({folder / "none.rec", folder / "./none.rec"}, folder / "a.manifest");
              }),
              HasSubstr("was given twice"));
}

TEST(IndexRecords, CallsOtherRecordsBytes) {
  TemporaryFolder folder;
  write_foreign(folder, "a", {"one", "two"});
  EXPECT_EQ(index_records({folder / "a.rec"}, folder / "a.manifest").payload, "bytes");
  EXPECT_THAT(verify(folder / "a.manifest").problems, IsEmpty());
}

TEST(AppendRecords, AddsShardsThatFit) {
  TemporaryFolder folder;
  const std::string set = write_data_set(folder, 20, 2);
  std::vector<std::string> more;
  for (int i = 20; i < 25; ++i) {
    Image image{2, 3, 1, {static_cast<std::uint8_t>(i), 0, 0, 0, 0, 0}};
    more.push_back(image_record({static_cast<float>(i % 10)}, static_cast<std::uint64_t>(i), image));
  }
  write_foreign(folder, "more", more);
  EXPECT_EQ(append_records(set, {folder / "more.rec"}).records(), 25);
  EXPECT_THAT(verify(set).problems, IsEmpty());
  EXPECT_EQ(Manifest::load(set).encoding, "mixed");
  EXPECT_THAT(epoch(set), SizeIs(25));
  EXPECT_THAT(error_of<InvalidArgument>([&] { append_records(set, {folder / "more.rec"}); }),
              HasSubstr("names " + folder / "more.rec" + " already"));
  write_foreign(folder, "boxes", {image_record({1, 2}, 0, plain(2, 3, 1, 1))});
  EXPECT_THAT(error_of<InvalidArgument>([&] { append_records(set, {folder / "boxes.rec"}); }),
              HasSubstr("the records have 2 labels"));
  EXPECT_EQ(Manifest::load(set).records(), 25);
}

TEST(CopyRecords, SplitsAndMergesByteForByte) {
  TemporaryFolder folder;
  write_foreign(folder, "a", some_images(7), true);
  const std::vector<std::string> records = records_of(folder / "a.rec");
  const Manifest three = copy_records({folder / "a.rec"}, folder / "three", 3, {.threads = 3});
  ASSERT_THAT(three.shards, SizeIs(3));
  EXPECT_EQ(three.image, (ImageSize{4, 5, 3}));
  EXPECT_EQ(records_of(folder / "three.manifest"), records);
  EXPECT_THAT(verify(folder / "three.manifest").problems, IsEmpty());
  EXPECT_EQ(RecordFile(folder / "three-00001-of-00003.rec").key(0), 102);

  // Equal keys of two files are not kept.
  std::vector<std::string> twice = records;
  twice.insert(twice.end(), records.begin(), records.end());
  copy_records({folder / "three.manifest", folder / "a.rec"}, folder / "one", 1);
  EXPECT_EQ(records_of(folder / "one.manifest"), twice);
  EXPECT_EQ(RecordFile(folder / "one-00000-of-00001.rec").key(9), 9);
  EXPECT_THAT(error_of<InvalidArgument>([&] { copy_records({folder / "a.rec"}, folder / "x", 8); }),
              HasSubstr("7 records cannot fill 8 shards"));
}

TEST(CopyRecords, KeepsTheNamesOfClasses) {
  TemporaryFolder folder;
  const std::string set = write_data_set(folder, 20, 2);
  Manifest manifest = Manifest::load(set);
  manifest.labels = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "nine"};
  manifest.shuffle_seed = 4;
  manifest.save(set);
  // Into the place of its source.
  const Manifest copy = copy_records({set}, folder / "set", 4);
  EXPECT_EQ(copy.labels, manifest.labels);
  EXPECT_EQ(copy.shuffle_seed, 4u);
  EXPECT_THAT(epoch(set), SizeIs(20));
  write_data_set(folder, 20, 1, "other");
  manifest = Manifest::load(folder / "other.manifest");
  manifest.labels = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
  manifest.save(folder / "other.manifest");
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                copy_records({set, folder / "other.manifest"}, folder / "x", 1);
              }),
              HasSubstr("other.manifest names other classes"));
}

TEST(CopyRecords, RefusesLabelsThatHaveNoName) {
  TemporaryFolder folder;
  const std::string set = write_data_set(folder, 20, 2);
  Manifest manifest = Manifest::load(set);
  manifest.labels = {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"};
  manifest.save(set);
  write_foreign(folder, "known", {image_record({9}, 0, plain(2, 3, 1, 0))});
  write_foreign(folder, "unknown", {image_record({3}, 0, plain(2, 3, 1, 0)), image_record({12}, 1, plain(2, 3, 1, 0))});
  EXPECT_EQ(copy_records({set, folder / "known.rec"}, folder / "more", 1).labels, manifest.labels);
  const std::vector<std::string> both = {set, folder / "unknown.rec"}, before = folder.files();
  const auto no_name = HasSubstr("has the label 12, but only 10 classes are named");
  EXPECT_THAT(error_of<InvalidArgument>([&] { copy_records(both, folder / "x", 1); }), no_name);
  EXPECT_THAT(error_of<InvalidArgument>([&] { append_records(set, {folder / "unknown.rec"}); }), no_name);
  EXPECT_THAT(error_of<InvalidArgument>([&] { record_source(both); }), no_name);
  EXPECT_EQ(folder.files(), before);
}

// A data set whose records are rows of numbers behind a label.
std::string write_rows(const TemporaryFolder& folder, const std::string& name, int columns, bool class_labels = true) {
  DatasetWriter writer(folder / name, 1);
  for (std::int64_t i = 0; i < 4; ++i) {
    std::string row = std::to_string(i % 2);
    for (int column = 0; column < columns; ++column) row += str(",", column + static_cast<int>(i));
    writer.write(0, i, row);
  }
  Manifest manifest;
  manifest.payload = "bytes";
  manifest.class_labels = class_labels;
  manifest.decoder = {"csv_row", {{"columns", columns}, {"label", 0}, {"class_labels", class_labels}}, {}};
  manifest.statistics.classes = {{"0", 2}, {"1", 2}};
  return writer.finish(manifest);
}

TEST(CopyRecords, KeepsTheDecoder) {
  TemporaryFolder folder;
  const std::string set = write_rows(folder, "set", 2);
  const Manifest copy = copy_records({set}, folder / "copy", 2);
  EXPECT_EQ(copy.decoder, Manifest::load(set).decoder);
  EXPECT_TRUE(copy.class_labels);
  EXPECT_EQ(copy.statistics.classes.at("1"), 2);
  EXPECT_THAT(epoch(folder / "copy.manifest"), SizeIs(4));
  EXPECT_EQ(copy_records({set, folder / "copy.manifest"}, folder / "both", 1).decoder, copy.decoder);
  repair_records(set, folder / "repaired");
  EXPECT_EQ(Manifest::load(folder / "repaired.manifest").decoder, copy.decoder);
  write_rows(folder, "wide", 3);
  const auto refusal = [&](const std::string& other) {
    return error_of<InvalidArgument>([&] { copy_records({set, folder / other}, folder / "x", 1); });
  };
  EXPECT_THAT(refusal("wide.manifest"), HasSubstr("wide.manifest holds other records than"));
  EXPECT_THAT(refusal("wide-00000-of-00001.rec"), HasSubstr("has no manifest that says how to decode it"));
}

// The same with this checksum of its columns.
std::string write_table(const TemporaryFolder& folder, const std::string& name, std::optional<std::uint32_t> columns) {
  const std::string path = write_rows(folder, name, 2);
  Manifest manifest = Manifest::load(path);
  manifest.columns_crc32c = columns;
  manifest.save(path);
  return path;
}

TEST(CopyRecords, KeepsTheChecksumOfTheColumns) {
  TemporaryFolder folder;
  const std::string set = write_table(folder, "set", 7), alike = write_table(folder, "alike", 7),
                    other = write_table(folder, "other", 8), unknown = write_table(folder, "unknown", {});
  EXPECT_EQ(copy_records({set}, folder / "copy", 2).columns_crc32c, 7u);
  EXPECT_EQ(copy_records({set, alike}, folder / "both", 1).columns_crc32c, 7u);
  EXPECT_EQ(copy_records({unknown, set}, folder / "more", 1).columns_crc32c, std::nullopt);
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                copy_records({set, other}, folder / "x", 1);
              }),
              HasSubstr("other.manifest has other columns or categories than the sources before it"));
}

TEST(AppendRecords, ComparesTheColumnsOfDataSets) {
  TemporaryFolder folder;
  const std::string set = write_table(folder, "set", 7), alike = write_table(folder, "alike", 7),
                    other = write_table(folder, "other", 8);
  EXPECT_THAT(error_of<InvalidArgument>([&] { append_records(set, {other}); }),
              HasSubstr("other.manifest has other columns or categories than the sources before it"));
  const Manifest longer = append_records(set, {alike});
  EXPECT_EQ(longer.records(), 8);
  EXPECT_EQ(longer.columns_crc32c, 7u);
  EXPECT_THAT(verify(set).problems, IsEmpty());
  EXPECT_THAT(error_of<InvalidArgument>([&] { append_records(set, {alike}); }), HasSubstr("already"));
  // Nobody knows what these columns are.
  EXPECT_EQ(append_records(set, {folder / "other-00000-of-00001.rec"}).columns_crc32c, std::nullopt);
}

TEST(AppendRecords, WarnsWhereNotAllSourcesSayTheirColumns) {
  TemporaryFolder folder;
  const std::string set = write_table(folder, "set", 7), unknown = write_table(folder, "unknown", {});
  testing::internal::CaptureStderr();
  EXPECT_EQ(append_records(set, {unknown}).columns_crc32c, std::nullopt);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr(set + " keeps no checksum of its columns, because not all sources say theirs\n"));
}

TEST(AppendRecords, TriesTheDecoderOnEachRecord) {
  TemporaryFolder folder;
  const std::string set = write_rows(folder, "set", 2);
  write_foreign(folder, "more", {"1,7,8", "0,9,9"});
  const Manifest longer = append_records(set, {folder / "more.rec"});
  EXPECT_EQ(longer.records(), 6);
  EXPECT_TRUE(longer.class_labels);
  EXPECT_THAT(longer.statistics.classes, IsEmpty()) << "they are of the first four records alone";
  Manifest named = Manifest::load(set);
  named.labels = {"no", "yes"};
  named.save(set);
  write_foreign(folder, "third", {"1,7,8", "2,9,9"});
  EXPECT_THAT(error_of<InvalidArgument>([&] { append_records(set, {folder / "third.rec"}); }),
              HasSubstr("third.rec: record 1 is not of the kind of " + set + ": its label is 2 of 2 classes"));
  write_foreign(folder, "wide", {"1,7,8", "0,9,9,9"});
  EXPECT_THAT(error_of<InvalidArgument>([&] { append_records(set, {folder / "wide.rec"}); }),
              HasSubstr("wide.rec: record 1 is not of the kind of " + set));
  EXPECT_EQ(Manifest::load(set).records(), 6);
}

TEST(RepairRecords, SavesWhatIsSoundAndSaysWhatIsLost) {
  TemporaryFolder folder;
  const std::string set = write_data_set(folder, 20, 2);
  const std::vector<std::string> all = records_of(set);
  const std::string shard = folder / "set-00001-of-00002.rec";
  const RecordIndex index = read_index(index_path(shard));
  flip_bit(shard, index[3].offset + 8 + 30);  // payload
  flip_bit(shard, index[7].offset);           // magic
  std::filesystem::resize_file(shard, index[9].offset + 10);
  const RepairReport report = repair_records(set, folder / "saved", {.threads = 2});
  EXPECT_EQ(report.records, 17);
  ASSERT_THAT(report.lost, SizeIs(3));
  EXPECT_THAT(report.lost[0].text(), HasSubstr(str("record 3 at offset ", index[3].offset)));
  EXPECT_EQ(report.lost[1].record, 7);
  EXPECT_EQ(report.lost[1].skipped, index[8].offset - index[7].offset);
  EXPECT_EQ(report.lost[2].skipped, 10u);
  EXPECT_EQ(report.bytes, all[13].size() + report.lost[1].skipped + 10);
  EXPECT_THAT(verify(folder / "saved.manifest").problems, IsEmpty());
  std::vector<std::string> sound = all;
  for (const int lost : {19, 17, 13}) sound.erase(sound.begin() + lost);
  EXPECT_EQ(records_of(folder / "saved.manifest"), sound);
  EXPECT_EQ(RecordFile(folder / "saved-00001-of-00002.rec").key(3), 14);
}

// Every record whose bytes are untouched is saved, wherever the damage is.
TEST(RepairRecords, LosesOnlyWhatWasTouched) {
  std::mt19937_64 random(test_seed());
  TemporaryFolder folder;
  for (int round = 0; round < 20; ++round) {
    std::vector<std::string> records;
    for (int i = 0; i < 20; ++i) records.push_back(std::string(random() % 60, static_cast<char>('a' + i)));
    write_foreign(folder, "a", records, true);
    const std::string path = folder / "a.rec";
    const RecordIndex index = read_index(index_path(path));
    std::string bytes = read_all(path);
    const std::size_t begin = random() % bytes.size();
    const std::size_t end = std::min(bytes.size(), begin + 1 + random() % 100);
    for (std::size_t at = begin; at < end; ++at) bytes[at] = static_cast<char>(random());
    write_all(path, bytes);
    std::vector<std::string> expected;
    for (std::size_t i = 0; i < records.size(); ++i) {
      const std::uint64_t next = i + 1 < index.size() ? index[i + 1].offset : bytes.size();
      if (next <= begin || index[i].offset >= end) expected.push_back(records[i]);
    }
    if (expected.empty()) continue;
    const RepairReport report = repair_records(path, folder / "saved");
    const std::vector<std::string> saved = records_of(folder / "saved.manifest");
    EXPECT_EQ(report.records, static_cast<std::int64_t>(saved.size()));
    auto at = saved.begin();
    for (const std::string& record : expected) {
      at = std::find(at, saved.end(), record);
      ASSERT_NE(at, saved.end()) << "round " << round;
      ++at;
    }
  }
}

TEST(ExtractRecords, WritesFilesThatCanBePackedAgain) {
  TemporaryFolder folder;
  write_foreign(folder, "a",
                {image_record({16777215, 0.123456789f}, 0, plain(4, 4, 1, 7)), "no image",
                 image_record({3, 4}, 0, plain(4, 4, 3, 9), ImageEncoding::kJpeg)});
  const ExtractReport report = extract_records(folder / "a.rec", folder / "out");
  EXPECT_EQ(report.images, 2);
  EXPECT_EQ(report.others, 1);
  EXPECT_EQ(read_all(folder / "out/00000001.bin"), "no image");
  const ImageList list = read_image_list(report.list, folder / "out");
  ASSERT_THAT(list.entries, SizeIs(2));
  EXPECT_EQ(list.entries[1].path, folder / "out/00000002.jpg");
  EXPECT_THAT(list.entries[0].labels, ElementsAre(16777215, 0.123456789f));
  EXPECT_THAT(list.entries[1].labels, ElementsAre(3, 4));
  Image image;
  ImageCodec().decode(read_all(list.entries[0].path), image);
  EXPECT_EQ(image.pixels, plain(4, 4, 1, 7).pixels);
  EXPECT_THAT(error_of<InvalidArgument>([&] { extract_records(folder / "a.rec", folder / "out"); }),
              HasSubstr("is not empty"));
}

TEST(Statistics, CountWhatRecordsHold) {
  TemporaryFolder folder;
  std::vector<std::string> records = some_images(6);
  records.push_back(image_record({2}, 9, plain(8, 2, 1, 0), ImageEncoding::kJpeg));
  records.push_back("no image");
  write_foreign(folder, "a", records);
  std::atomic<std::uint64_t> told = 0;
  const RecordStatistics found = statistics(folder / "a.rec", {.progress = [&](std::uint64_t n) { told += n; }});
  EXPECT_EQ(told, std::filesystem::file_size(folder / "a.rec"));
  EXPECT_EQ(found.records, 8);
  EXPECT_EQ(found.shortest, 8u);
  EXPECT_THAT(found.encodings, ElementsAre(Pair("jpg", 1), Pair("none", 1), Pair("png", 6)));
  EXPECT_THAT(found.labels, ElementsAre(Pair(0, 2), Pair(1, 2), Pair(2, 3)));
  EXPECT_EQ(found.smallest, (ImageSize{4, 2, 1}));
  EXPECT_EQ(found.largest, (ImageSize{8, 5, 3}));
  EXPECT_TRUE(found.class_labels);
}

TEST(RecordTools, EndWhereProgressThrows) {
  TemporaryFolder folder;
  const std::string set = write_data_set(folder, 20, 4);
  const std::vector<std::string> before = folder.files();
  const RecordWork work{.threads = 2, .progress = [](std::uint64_t) { throw IoError("enough"); }};
  EXPECT_EQ(error_of<IoError>([&] { copy_records({set}, folder / "copy", 2, work); }), "enough");
  EXPECT_EQ(error_of<IoError>([&] { repair_records(set, folder / "copy", work); }), "enough");
  EXPECT_EQ(error_of<IoError>([&] { statistics(set, work); }), "enough");
  EXPECT_EQ(folder.files(), before);
}

}  // namespace
}  // namespace paceline::test
