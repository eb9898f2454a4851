#include <paceline/manifest.h>

#include <gmock/gmock.h>
#include <paceline/crc32c.h>
#include <paceline/error.h>
#include <paceline/record_tools.h>

#include "fixtures.h"

namespace paceline::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

TEST(Manifest, DescribesWhatWasWritten) {
  TemporaryFolder folder;
  const std::string path = write_data_set(folder, 25, 2);
  EXPECT_EQ(path, folder / "set.manifest");
  EXPECT_THAT(folder.files(), ElementsAre("set-00000-of-00002.crc", "set-00000-of-00002.idx", "set-00000-of-00002.rec",
                                          "set-00001-of-00002.crc", "set-00001-of-00002.idx", "set-00001-of-00002.rec",
                                          "set.manifest"));
  const Manifest manifest = Manifest::load(path);
  EXPECT_EQ(manifest.records(), 25);
  ASSERT_EQ(manifest.shards.size(), 2u);
  EXPECT_EQ(manifest.shards[0].records, 12);
  EXPECT_EQ(manifest.shards[1].records, 13);
  EXPECT_EQ(manifest.shards[0].path, "set-00000-of-00002.rec");
  EXPECT_EQ(manifest.path_of(manifest.shards[0]), folder / "set-00000-of-00002.rec");
  EXPECT_EQ(manifest.shards[0].crc32c, crc32c(read_all(folder / "set-00000-of-00002.rec")));
  EXPECT_EQ(manifest.image, (ImageSize{2, 3, 1}));
  EXPECT_THAT(verify(path).problems, IsEmpty());
  EXPECT_EQ(verify(path).records, 25);
}

TEST(Manifest, SavesAndLoadsEveryField) {
  TemporaryFolder folder;
  Manifest manifest;
  manifest.encoding = "jpg";
  manifest.label_width = 3;
  manifest.class_labels = false;
  manifest.labels = {"cat", "d\xc3\xb6g \"2\""};
  manifest.image = {4, 5, 3};
  manifest.decoder = {"tensor", {{"labels", 0}, {"class_labels", 1}}, {{"data", {3, 2}, DType::kUint8}}};
  manifest.columns_crc32c = 0xe3069283;
  manifest.statistics.numbers["d\xc3\xb6g"] = {7, 1, 0.1, 1e-300, -2.5, 1e30};
  manifest.statistics.classes["cat"] = 7;
  manifest.statistics.lengths = {7, 0, 3, 0, 3, 3};
  manifest.shuffle_seed = ~std::uint64_t{0};
  manifest.shards = {{"sub/a.rec", 7, 6'000'000'000, 0xe3069283, 1, 2}};
  manifest.save(folder / "a.manifest");
  Manifest loaded = Manifest::load(folder / "a.manifest");
  EXPECT_EQ(loaded.folder + "/", folder / "");
  loaded.folder.clear();
  EXPECT_EQ(loaded, manifest);
}

TEST(Manifest, RefusesADecoderThatCannotBe) {
  TemporaryFolder folder;
  Manifest manifest;
  manifest.payload = "bytes";
  manifest.decoder = {"text", {{"window", 7}}, {}};
  manifest.shards = {{"a.rec", 7, 60, 1, 2, 3}};
  const auto refusal = [&](const std::string& from, const std::string& to) {
    manifest.save(folder / "a.manifest");
    std::string text = read_all(folder / "a.manifest");
    text.erase(text.find("\"checksum\""), text.find('\n', text.find("\"checksum\"")) - text.find("\"checksum\""));
    text.replace(text.find(from), from.size(), to);
    write_all(folder / "a.manifest", text);
    return error_of<Corrupt>([&] { Manifest::load(folder / "a.manifest"); });
  };
  EXPECT_THAT(refusal("\"window\": 7", "\"window\": 9007199254740993"), HasSubstr("its decoder has window = 900"));
  EXPECT_THAT(refusal("\"window\": 7", "\"window\": 1.5"), HasSubstr("its 'window' is 1.5, expected a whole number"));
  EXPECT_THAT(refusal("\"arrays\": []", R"("arrays": [{"name": "x", "dtype": "int7", "shape": []}])"),
              HasSubstr("int7"));
  EXPECT_THAT(refusal("\"arrays\": []", R"("arrays": [{"name": "x", "dtype": "int8", "shape": [65536, 65536]}])"),
              HasSubstr("its array 'x' has a shape that no array has"));
}

TEST(Manifest, NoticesFlippedBitsAndMissingBytes) {
  TemporaryFolder folder;
  const std::string path = write_data_set(folder, 5, 1);
  const std::string original = read_all(path);
  const Manifest manifest = Manifest::load(path);
  for (std::size_t byte = 0; byte < original.size(); ++byte) {
    std::string bytes = original;
    bytes[byte] = static_cast<char>(bytes[byte] ^ (1 << byte % 8));
    write_all(path, bytes);
    try {
      // A flip may turn one blank into another, which changes nothing.
      EXPECT_EQ(Manifest::load(path), manifest) << "byte " << byte;
    } catch (const Corrupt& error) {
      EXPECT_THAT(error.what(), HasSubstr(path));
    }
  }
  for (std::size_t size = 0; size + 1 < original.size(); size += 13) {
    write_all(path, original.substr(0, size));
    EXPECT_THROW(Manifest::load(path), Corrupt) << size;
  }
}

TEST(Manifest, SaysWhatIsWrong) {
  TemporaryFolder folder;
  const std::string path = folder / "a.manifest";
  const auto load = [&] { Manifest::load(path); };
  EXPECT_THAT(error_of<IoError>(load), HasSubstr("No such file"));
  write_all(path, "[]");
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("no paceline-manifest"));
  write_all(path, std::string("\x1b[1m\0 no manifest", 17));
  EXPECT_THAT(error_of<Corrupt>(load), AllOf(HasSubstr("a.manifest cannot be read as a manifest: from byte 1 on"),
                                             HasSubstr("which im2rec writes as PREFIX.manifest")));
  EXPECT_THAT(error_of<Corrupt>(load), AllOf(Not(HasSubstr("json")), Not(HasSubstr("\x1b"))));
  write_all(path, R"({"format": "paceline-manifest"})");
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("a.manifest cannot be used: key 'version' not found; a manifest is"));
  write_all(path, "\x1f\x8b\x08");
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("is packed by gzip and no manifest"));
  const std::string records = folder / "a.rec";
  write_all(records, std::string("\x0a\x23\xd7\xce\0\0\0\0", 8));
  EXPECT_THAT(
      error_of<Corrupt>([&] { Manifest::load(records); }),
      HasSubstr("a.rec is a record file and no manifest; `rec index " + records + "` writes the manifest " + path));
  write_all(path, R"({"format": "paceline-manifest", "version": 9})");
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("its version is 9, this program knows version 1"));
  const std::string text = read_all(write_data_set(folder, 5, 1, "a"));
  write_all(path, std::string(text).replace(text.find("\"records\": 5"), 12, "\"records\": 6"));
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("checksum is wrong; if it was edited by hand, remove"));
  const auto edited = [&](const std::string& from, const std::string& to) {
    std::string other = text;
    other.replace(other.find("\"checksum\": "), 24, "");
    other.replace(other.find(from), from.size(), to);
    write_all(path, other);
    return error_of<Corrupt>(load);
  };
  EXPECT_THAT(edited("\"channels\": 1", "\"channels\": 5"), HasSubstr("3 x 2 pixels and 5 channels"));
  EXPECT_THAT(edited("\"height\": 2", "\"height\": -2"), HasSubstr("3 x -2 pixels"));
  EXPECT_THAT(edited("\"records\": 5", "\"records\": 9223372036854775807"), HasSubstr("9223372036854775807 records"));
  EXPECT_THAT(edited("\"height\": 2", "\"height\": 4294967298"),
              HasSubstr("its 'height' is 4294967298, expected a whole number from -2147483648 to 2147483647"));
  EXPECT_THAT(edited("\"version\": 1", "\"version\": 1.5"), HasSubstr("its 'version' is 1.5, expected a whole number"));
  EXPECT_THAT(edited("\"label_width\": 1", "\"label_width\": 1e300"), HasSubstr("its 'label_width' is 1e+300"));
  EXPECT_THAT(edited("\"shuffle_seed\": null", "\"shuffle_seed\": -1"), HasSubstr("whole number from 0 to"));
  EXPECT_THAT(edited("\"version\": 1", "\"version\": true"), HasSubstr("its 'version' is a boolean, expected"));
  constexpr std::size_t kDeep = 1000000;
  write_all(path, "{\"deep\": " + std::string(kDeep, '[') + std::string(kDeep, ']') + "}");
  EXPECT_THAT(error_of<Corrupt>(load), HasSubstr("nested too deeply"));
}

TEST(DatasetWriter, LeavesNothingBehindUnlessFinished) {
  TemporaryFolder folder;
  {
    DatasetWriter writer(folder / "new/set", 2);
    writer.write(0, 0, "record");
    EXPECT_FALSE(std::filesystem::is_empty(folder / "new"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder / "new"));
  DatasetWriter writer(folder / "new/set", 2);
  writer.write(0, 0, "record");
  for (const int shard : {-1, 2})
    EXPECT_THAT(error_of<InvalidArgument>([&] { writer.write(shard, 1, "record"); }),
                HasSubstr("there is no shard " + std::to_string(shard)));
  EXPECT_THAT(error_of<InvalidArgument>([&] { writer.finish({}); }),
              HasSubstr("set-00001-of-00002.rec would be empty"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { DatasetWriter(folder / "x", 0); }), HasSubstr("1 to 10000 shards"));
  EXPECT_THAT(error_of<IoError>([&] { DatasetWriter("/proc/nowhere/set", 1); }), HasSubstr("/proc/nowhere"));
}

TEST(DatasetWriter, RefusesOtherHostsBeforeItMakesAFolder) {
  TemporaryFolder folder;
  const std::string source = write_data_set(folder, 3, 1);
  for (const char* prefix : {"s3://bucket/set", "gs://bucket/set"}) {
    EXPECT_THAT(error_of<InvalidArgument>([&] { DatasetWriter(prefix, 1); }), HasSubstr(prefix));
    EXPECT_THAT(error_of<InvalidArgument>([&] { extract_records(source, prefix); }), HasSubstr(prefix));
    EXPECT_FALSE(std::filesystem::exists(std::string(prefix).substr(0, 3))) << prefix;
  }
}

TEST(Manifest, RefusesNamesThatWouldChange) {
  TemporaryFolder folder;
  Manifest manifest;
  manifest.labels = {"d\xc3\xb6g", "\xc3("};
  EXPECT_THAT(error_of<InvalidArgument>([&] { manifest.save(folder / "a.manifest"); }),
              HasSubstr("the class name '\\xc3(' is not UTF-8"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { DatasetWriter(folder / "\xff", 1); }), HasSubstr("\\xff' is not UTF-8"));
  for (const char* wrong : {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    manifest.labels = {wrong};
    EXPECT_THAT(error_of<InvalidArgument>([&] { manifest.save(folder / "a.manifest"); }), HasSubstr("is not UTF-8"));
  }
  manifest.labels = {"\xe2\x82\xac \xf0\x9f\x90\x88"};
  manifest.save(folder / "a.manifest");
}

TEST(DatasetWriter, ReplacesAnOlderDataSet) {
  TemporaryFolder folder;
  write_data_set(folder, 25, 2);
  const std::string path = write_data_set(folder, 7, 2);
  EXPECT_EQ(Manifest::load(path).records(), 7);
  EXPECT_THAT(verify(path).problems, IsEmpty());
}

TEST(DatasetWriter, KeepsAnOlderDataSetWhereItsManifestCannotBeWritten) {
  TemporaryFolder folder;
  const std::string path = write_data_set(folder, 25, 2);
  const std::vector<std::string> before = folder.files();
  for (const int shards : {1, 2}) {
    DatasetWriter writer(folder / "set", shards);
    for (int shard = 0; shard < shards; ++shard) writer.write(shard, 0, "record");
    Manifest manifest;
    manifest.labels = {"\xff"};
    EXPECT_THAT(error_of<InvalidArgument>([&] { writer.finish(manifest); }), HasSubstr("is not UTF-8"));
  }
  EXPECT_EQ(folder.files(), before);
  EXPECT_EQ(Manifest::load(path).records(), 25);
  EXPECT_THAT(verify(path).problems, IsEmpty());
}

TEST(Verify, NamesEveryDamagedRecord) {
  TemporaryFolder folder;
  const std::string path = write_data_set(folder, 20, 2);
  const std::string shard = folder / "set-00001-of-00002.rec";
  const RecordIndex index = read_index(index_path(shard));
  flip_bit(shard, index[3].offset + 8 + 30);  // payload
  flip_bit(shard, index[7].offset);           // magic
  const VerifyReport report = verify(path);
  ASSERT_EQ(report.problems.size(), 2u);
  EXPECT_THAT(report.problems[0], HasSubstr(str(shard, ": record 3 at offset ", index[3].offset)));
  EXPECT_THAT(report.problems[1], HasSubstr(str(shard, ": record 7 at offset ", index[7].offset)));
  EXPECT_EQ(verify(folder / "set-00000-of-00002.rec").problems.size(), 0u);
}

TEST(Verify, CountsRecordsWithoutChecksums) {
  TemporaryFolder folder;
  const std::string path = write_data_set(folder, 20, 2), shard = folder / "set-00001-of-00002.rec";
  EXPECT_EQ(verify(path).unchecked, 0);
  EXPECT_EQ(verify(shard).unchecked, 0);
  std::filesystem::remove(checksum_path(shard));
  flip_bit(shard, read_index(index_path(shard))[3].offset + 8 + 30);  // payload
  EXPECT_EQ(verify(shard).unchecked, 10);
  EXPECT_THAT(verify(shard).problems, IsEmpty());
  EXPECT_EQ(verify(path).unchecked, 0) << "the manifest has a checksum of the file";
  EXPECT_THAT(verify(path).problems, testing::Contains(HasSubstr("the CRC32C of the file differs")));
}

TEST(Verify, ComparesFilesWithTheManifest) {
  TemporaryFolder folder;
  const std::string path = write_data_set(folder, 20, 2);
  std::filesystem::remove(folder / "set-00000-of-00002.rec");
  std::filesystem::remove(folder / "set-00001-of-00002.crc");
  const VerifyReport report = verify(path);
  ASSERT_EQ(report.problems.size(), 2u);
  EXPECT_THAT(report.problems[0], HasSubstr("No such file"));
  EXPECT_THAT(report.problems[1], HasSubstr("set-00001-of-00002.crc is missing"));

  write_data_set(folder, 20, 2);
  write_data_set(folder, 20, 1, "other");
  std::filesystem::copy_file(folder / "other-00000-of-00001.rec", folder / "set-00000-of-00002.rec",
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_THAT(verify(path).problems, testing::Contains(HasSubstr("bytes, the manifest says")));
}

}  // namespace
}  // namespace paceline::test
