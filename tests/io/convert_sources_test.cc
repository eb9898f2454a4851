// What each source becomes, read back by a loader that only knows the manifest.

#include <paceline/convert_sources.h>

#include <paceline/idx_file.h>
#include <paceline/libsvm.h>
#include <paceline/record_tools.h>

#include <zlib.h>

#include <array>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <set>

#include "convert/source.h"
#include "convert_fixtures.h"

namespace paceline::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const ConvertOptions kInOrder{.shuffle = false};

Manifest convert_one(const TemporaryFolder& folder, const RecordSourceHandle& source,
                     const ConvertOptions& options = kInOrder) {
  return Manifest::load(convert(folder / "set", *source, options).sets[0].manifest);
}

class TableTest : public testing::TestWithParam<RowPayload> {
 protected:
  // With a header, quotes, words, and missing values.
  TableTest() {
    write_all(folder_ / "people.csv",
              "age, job ,city,income\n"
              "39,clerk,\"Bergen, Norway\",<=50K\n"
              "?,smith,Oslo,>50K\r\n"
              "\n"
              "27.5,\"a \"\"smith\"\"\",\"two\nlines\",>50K\n"
              "61,,Oslo,<=50K");
    options_.table = {.label = "income", .fill = "mean", .payload = GetParam()};
  }

  Loaded load() { return load_all(folder_ / "set.manifest"); }

  TemporaryFolder folder_;
  CsvSourceOptions options_;
};

TEST_P(TableTest, TypesAreFoundOut) {
  const Manifest manifest = convert_one(folder_, csv_source({folder_ / "people.csv"}, options_));
  EXPECT_THAT(manifest.labels, ElementsAre("<=50K", ">50K"));
  EXPECT_TRUE(manifest.class_labels);
  EXPECT_EQ(manifest.statistics.numbers.at("age").missing, 1);
  EXPECT_EQ(manifest.statistics.numbers.at("age").mean, 42.5);
  const TableSchema schema = TableSchema::load(folder_ / "set.schema.json");
  ASSERT_EQ(schema.columns.size(), 4u);
  EXPECT_EQ(schema.columns[0], (TableColumn{"age", ColumnType::kNumber, {}, 42.5}));
  EXPECT_EQ(schema.columns[1], (TableColumn{"job", ColumnType::kCategory, {"", "a \"smith\"", "clerk", "smith"}, {}}));
  EXPECT_THAT(schema.columns[2].categories, ElementsAre("Bergen, Norway", "Oslo", "two\nlines"));
  if (GetParam() == RowPayload::kArrays) {
    RecordLoader loader(folder_ / "set.manifest");
    loader.start(0);
    Batch batch;
    ASSERT_TRUE(loader.next(batch));
    EXPECT_THAT(batch.array("age").to_vector<float>(), ElementsAre(39, 42.5, 27.5, 61));
    EXPECT_THAT(batch.array("job").to_vector<std::int32_t>(), ElementsAre(2, 3, 1, 0));
    EXPECT_THAT(batch.label.to_vector<std::int32_t>(), ElementsAre(0, 1, 1, 0));
    return;
  }
  const Loaded loaded = load();
  EXPECT_THAT(loaded.data, ElementsAre(39, 2, 0, 42.5, 3, 1, 27.5, 1, 2, 61, 0, 1));
  EXPECT_THAT(loaded.label, ElementsAre(0, 1, 1, 0));
}

TEST_P(TableTest, ASchemaOfAnotherRunGivesTheSameNumbers) {
  convert_one(folder_, csv_source({folder_ / "people.csv"}, options_));
  std::filesystem::rename(folder_ / "set.schema.json", folder_ / "people.json");
  write_all(folder_ / "more.csv", "income,city,job,age\n>50K,Oslo,clerk,1\n>50K,Rome,clerk,1\n");
  options_.table.schema = TableSchema::load(folder_ / "people.json");
  EXPECT_THAT(error_of<InvalidArgument>([&] { csv_source({folder_ / "more.csv"}, options_); }),
              HasSubstr("TableOptions::fill does not apply beside a schema"));
  options_.table.fill = "";
  const RecordSourceHandle more = csv_source({folder_ / "more.csv"}, options_);
  EXPECT_THAT(error_of<Corrupt>([&] { convert(folder_ / "set", *more, kInOrder); }), HasSubstr("1 of 2 rows is bad"));
  EXPECT_THAT(read_all(folder_ / "set.bad.txt"),
              HasSubstr("more.csv:3\tits column 'city' is 'Rome', which is no category of the schema"));
  convert(folder_ / "set", *more, {.skip_bad = true});
  if (GetParam() != RowPayload::kArrays) {
    EXPECT_THAT(load().data, ElementsAre(1, 2, 1));
    EXPECT_THAT(load().label, ElementsAre(1));
  }
}

INSTANTIATE_TEST_SUITE_P(Payloads, TableTest,
                         testing::Values(RowPayload::kTensor, RowPayload::kRow, RowPayload::kArrays));

TEST(CsvSource, TheChecksumOfTheColumnsIsThatOfTheirCategories) {
  TemporaryFolder folder;
  write_all(folder / "train.csv", "job,note,kind\ncook,a,0\nnurse,b,1\n");
  write_all(folder / "test.csv", "job,note,kind\nnurse,c,0\nnurse,d,1\n");
  const auto checksum_of = [&](const char* file, const TableOptions& options) {
    return convert_one(folder, csv_source({folder / file}, {.table = options})).columns_crc32c;
  };
  const TableOptions options{.label = "kind", .skip = {"note"}};
  const auto train = checksum_of("train.csv", options);
  const TableSchema schema = TableSchema::load(folder / "set.schema.json");
  ASSERT_TRUE(train.has_value());
  EXPECT_NE(checksum_of("test.csv", options), train) << "the cook is missing, and the nurse has another number";
  EXPECT_EQ(checksum_of("test.csv", {.schema = schema}), train);
  write_all(folder / "test.csv", "job,note,kind\nnurse,c,0\ncook,d,1\n");
  EXPECT_EQ(checksum_of("test.csv", options), train) << "columns that are left out do not count";
}

TEST(CsvSource, OneHotColumnsAndNumbersAsLabel) {
  TemporaryFolder folder;
  write_all(folder / "a.tsv", "1\tx\t0.5\n2\ty\t-1\n");
  CsvSourceOptions options{.delimiter = '\t', .table = {.label = "2", .one_hot = {"1"}}};
  const Manifest manifest = convert_one(folder, csv_source({folder / "a.tsv"}, options));
  EXPECT_FALSE(manifest.class_labels);
  const Loaded loaded = load_all(folder / "set.manifest");
  EXPECT_THAT(loaded.data, ElementsAre(1, 1, 0, 2, 0, 1));
  EXPECT_THAT(loaded.label, ElementsAre(0.5, -1));
}

// A damaged number, a missing value or a category: only the user knows.
TEST(CsvSource, AWordAmongNumbersIsRefused) {
  TemporaryFolder folder;
  write_all(folder / "a.csv", "x,y,z\n0.5,1,a\ninf,0,b\n1e39,1,c\n\"1,5\",one,d\nNULL,1,e\n");
  const auto refusal = [&](const TableOptions& table) {
    return error_of<InvalidArgument>([&] { csv_source({folder / "a.csv"}, {.table = table}); });
  };
  EXPECT_THAT(refusal({}), HasSubstr("these columns hold words among numbers: 'x' ('inf'), 'y' ('one'); add a word"));
  EXPECT_THAT(refusal({.label = "y", .skip = {"x"}}), HasSubstr("among numbers: 'y' ('one')"));
  csv_source({folder / "a.csv"}, {.table = {.label = "y", .label_kind = LabelKind::kClass, .categories = {"x"}}});
  write_all(folder / "a.csv", "x,y\n0.5,1\nNULL,0\n2.5,1\n");
  convert_one(folder, csv_source({folder / "a.csv"}, {.table = {.label = "y", .fill = "mean"}}));
  EXPECT_THAT(load_all(folder / "set.manifest").data, ElementsAre(0.5, 1.5, 2.5));
  for (const char* const fill : {"inf", "nan", "1e300"})
    EXPECT_THAT(refusal({.fill = fill}), HasSubstr("'mean' or a finite number"));
}

TEST(CsvSource, ADoubtfulHeaderIsRefused) {
  TemporaryFolder folder;
  const auto refusal = [&](const std::string& text) {
    write_all(folder / "a.csv", text);
    return error_of<InvalidArgument>([&] { csv_source({folder / "a.csv"}); });
  };
  EXPECT_THAT(refusal("a,a,y\n1,2,0\n"), HasSubstr("may be a header: 'a' stands above the number 1; say --header"));
  EXPECT_THAT(refusal("id,2019,2020\n1,2,0\n"), HasSubstr("'id' stands above the number 1"));
  EXPECT_THAT(refusal("0,1,2\n5.1,3.5,0\n"), HasSubstr("it counts the columns from 0"));
  EXPECT_THAT(refusal(",0,1\n7,3.5,0\n"), HasSubstr("it counts the columns from 0"));
  write_all(folder / "a.csv", "0,1,2\n5.1,3.5,0\n");
  EXPECT_EQ(csv_source({folder / "a.csv"}, {.header = CsvHeader::kYes})->size(), 1);
  EXPECT_EQ(csv_source({folder / "a.csv"}, {.header = CsvHeader::kNo})->size(), 2);
  write_all(folder / "a.csv", "1,x\n5\" pipe,3\n2,y\n");  // the second row is bad, and nothing else
  EXPECT_EQ(csv_source({folder / "a.csv"}, {.table = {.categories = {"0"}}})->size(), 3);
  // As in UCI's files, where the first row is data.
  write_all(folder / "a.csv", "39,State-gov,?\n50,Private,7\n");
  EXPECT_EQ(csv_source({folder / "a.csv"})->size(), 2);
}

TEST(CsvSource, AByteOrderMarkIsNoText) {
  TemporaryFolder folder;
  const std::string mark = "\xef\xbb\xbf";
  write_all(folder / "a.csv", mark + "1.5,2\n3,4\n");
  convert_one(folder, csv_source({folder / "a.csv"}));
  EXPECT_THAT(load_all(folder / "set.manifest").data, ElementsAre(1.5, 2, 3, 4));
  write_all(folder / "a.csv", mark + "\"a\nb\",c\n3,4\n");
  EXPECT_EQ(csv_source({folder / "a.csv"})->size(), 1);
  write_all(folder / "a.svm", mark + "1 1:2\n0 1:3\n");
  EXPECT_EQ(convert_one(folder, libsvm_source({folder / "a.svm"})).records(), 2);
}

TEST(CsvSource, AColumnWithoutANameIsNoLabel) {
  TemporaryFolder folder;
  write_all(folder / "a.csv", "a,,b\n0.5,10,7\n1.5,20,8\n");
  const Manifest manifest = convert_one(folder, csv_source({folder / "a.csv"}));
  EXPECT_FALSE(manifest.class_labels);
  const Loaded loaded = load_all(folder / "set.manifest");
  EXPECT_THAT(loaded.data, ElementsAre(0.5, 10, 7, 1.5, 20, 8));
  EXPECT_THAT(loaded.label, IsEmpty());
  EXPECT_THAT(
      error_of<InvalidArgument>([&] { csv_source({folder / "a.csv"}, {.table = {.payload = RowPayload::kArrays}}); }),
      HasSubstr("a column has no name"));
}

TEST(CsvSource, AHeaderMayBeLong) {
  TemporaryFolder folder;
  constexpr int kColumns = 1200;  // of 1 KiB each
  std::string header, row;
  for (int i = 0; i < kColumns; ++i) {
    header += str(i > 0 ? "," : "", std::string(1024, 'x'), i);
    row += str(i > 0 ? "," : "", i);
  }
  write_all(folder / "a.csv", header + "\r\n" + row + "\n" + row + "\n");
  EXPECT_EQ(convert_one(folder, csv_source({folder / "a.csv"}, {})).records(), 2);
  const Loaded loaded = load_all(folder / "set.manifest");
  ASSERT_EQ(loaded.data.size(), 2u * kColumns);
  EXPECT_EQ(loaded.data.back(), kColumns - 1);
}

TEST(CsvSource, PartsWithoutRowsAreLeftOut) {
  TemporaryFolder folder;
  write_all(folder / "a.csv", "");
  write_all(folder / "b.csv", "x,y\n1,2\n");
  write_all(folder / "c.csv", "");
  EXPECT_EQ(csv_source({folder / "a.csv", folder / "b.csv", folder / "c.csv"})->size(), 1);
  EXPECT_THAT(error_of<InvalidArgument>([&] { csv_source({folder / "a.csv"}); }), HasSubstr("a.csv holds no rows"));
}

TEST(CsvSource, LabelsThatAreNumbersAreNumberedBySize) {
  TemporaryFolder folder;
  write_all(folder / "a.csv", "1,10\n2,-1\n3,2\n");
  const Manifest manifest = convert_one(folder, csv_source({folder / "a.csv"}, {.table = {.label = "1"}}));
  EXPECT_THAT(manifest.labels, ElementsAre("-1", "2", "10"));
  EXPECT_THAT(load_all(folder / "set.manifest").label, ElementsAre(2, 0, 1));
  const TableOptions number{.label = "1", .label_kind = LabelKind::kNumber};
  EXPECT_FALSE(convert_one(folder, csv_source({folder / "a.csv"}, {.table = number})).class_labels);
  EXPECT_THAT(load_all(folder / "set.manifest").label, ElementsAre(10, -1, 2));
}

TEST(CsvSource, WithoutALabelItIsATensorAlone) {
  TemporaryFolder folder;
  write_all(folder / "a.csv", "1,10\n2,20\n");
  write_all(folder / "b.csv", "3,30\n");
  convert_one(folder, csv_source({folder / "a.csv", folder / "b.csv"}));
  const Loaded loaded = load_all(folder / "set.manifest");
  EXPECT_THAT(loaded.data, ElementsAre(1, 10, 2, 20, 3, 30));
  EXPECT_THAT(loaded.label, IsEmpty());
}

TEST(CsvSource, SaysWhatIsWrong) {
  TemporaryFolder folder;
  write_all(folder / "a.csv", "x,y\n1,2\n");
  write_all(folder / "other.csv", "x,z\n1,2\n");
  write_all(folder / "open.csv", "x,y\n1,\"2\n");
  const auto refusal = [&](const TableOptions& table, const std::string& file = "a.csv") {
    return error_of<InvalidArgument>([&] { csv_source({folder / file}, {.table = table}); });
  };
  EXPECT_THAT(refusal({.label = "w"}), HasSubstr("the table has no column 'w'; it has 'x', 'y'"));
  EXPECT_THAT(refusal({.label = "x", .skip = {"x"}}), HasSubstr("the label 'x' cannot be left out"));
  EXPECT_THAT(refusal({.fill = "median"}), HasSubstr("by 'mean' or a finite number, not by 'median'"));
  EXPECT_THAT(refusal({.skip = {"x", "y"}}), HasSubstr("no column is left beside the label"));
  EXPECT_THAT(refusal({.split_key = "w"}), HasSubstr("no column 'w', which is to decide the split"));
  EXPECT_THAT(refusal({.schema = TableSchema{{{"x"}}, ""}}), HasSubstr("the schema does not name the column 'y'"));
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                csv_source({folder / "a.csv", folder / "other.csv"});
              }),
              HasSubstr("the header of " + folder / "other.csv" + " is not that of"));
  EXPECT_THAT(error_of<Corrupt>([&] { csv_source({folder / "open.csv"}); }),
              EndsWith("open.csv:2: the row that begins in this line has a quoted field that does not end"));
  EXPECT_THAT(error_of<IoError>([&] { csv_source({folder / "absent.csv"}); }), HasSubstr("absent.csv on host"));
  write_all(folder / "head.csv", "x,\"y\"z\n1,2\n");
  EXPECT_THAT(error_of<Corrupt>([&] { csv_source({folder / "head.csv"}); }),
              EndsWith("head.csv holds '\"y\"z', where text follows the \" that ends the field"));
  write_all(folder / "inner.csv", "x,5\" disk\n1,2\n");
  EXPECT_THAT(error_of<Corrupt>([&] { csv_source({folder / "inner.csv"}); }),
              EndsWith("inner.csv holds '5\" disk', where a \" stands inside of a field; quote the whole field and "
                       "double it"));
  write_all(folder / "bad.json", R"({"columns": [{"name": "x", "type": "float"}]})");
  EXPECT_THAT(error_of<Corrupt>([&] { TableSchema::load(folder / "bad.json"); }),
              HasSubstr("bad.json cannot be used: a column has the type 'float', known are number, category"));
}

TEST(CsvSource, TextBehindAQuoteIsBadAndTabsKnowNoQuotes) {
  TemporaryFolder folder;
  write_all(folder / "a.csv", "x,y\n\"1\"5,0\n2,1\n");
  const CsvSourceOptions options{.table = {.label = "y"}};
  const ConvertReport report = convert(folder / "set", *csv_source({folder / "a.csv"}, options), {.skip_bad = true});
  EXPECT_EQ(report.bad, 1);
  EXPECT_THAT(load_all(folder / "set.manifest").data, ElementsAre(2));

  write_all(folder / "a.tsv", "size\tof\n\"b\t1\n\"c\t2\n");
  const Manifest manifest =
      convert_one(folder, csv_source({folder / "a.tsv"}, {.delimiter = '\t', .table = {.label = "size"}}));
  EXPECT_THAT(manifest.labels, ElementsAre("\"b", "\"c"));
}

TEST(JsonLinesSource, FieldsAreColumns) {
  TemporaryFolder folder;
  write_all(folder / "a.jsonl", R"({"size": 2, "pixels": [1, 2.5], "of": {"kind": "b"}, "big": true, "y": 1})"
                                "\n"
                                R"({"pixels": [3, 4], "size": 7, "of": {"kind": "a"}, "big": false, "y": 0})"
                                "\n[1]\n{\"size\": \n{\"size\": 1e999}\n{\"size\": 1, \"size\": 2}\n"
                                R"({"of.kind": "a", "of": {"kind": "b"}})");
  const RecordSourceHandle source = json_lines_source({folder / "a.jsonl"}, {.label = "y"});
  const Manifest manifest = convert_one(folder, source, {.shuffle = false, .skip_bad = true});
  // In the order big, of.kind, pixels.0, pixels.1, size.
  EXPECT_THAT(load_all(folder / "set.manifest").data, ElementsAre(1, 1, 1, 2.5, 2, 0, 0, 3, 4, 7));
  EXPECT_THAT(load_all(folder / "set.manifest").label, ElementsAre(1, 0));
  EXPECT_THAT(read_all(folder / "set.bad.txt"),
              AllOf(HasSubstr("a.jsonl:3\tit is a JSON array, expected an object"), HasSubstr("a.jsonl:4\tfrom byte "),
                    HasSubstr("a.jsonl:5\tit holds a number that is too large"),
                    HasSubstr("a.jsonl:6\ttwo fields of an object have the same name"),
                    HasSubstr("a.jsonl:7\ttwo fields are called 'of.kind'")));
}

TEST(JsonLinesSource, NamesThatDifferByAZeroAreTwoColumns) {
  TemporaryFolder folder;
  write_all(folder / "a.jsonl", R"({"x.10": 1, "x.2": 2, "x.02": 3})");
  convert_one(folder, json_lines_source({folder / "a.jsonl"}));
  EXPECT_THAT(load_all(folder / "set.manifest").data, ElementsAre(3, 2, 1));
}

TEST(TextSource, WindowsHoldTheWholeText) {
  TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i * i % 26);
  write_all(folder / "a.txt", text);
  const Manifest manifest = convert_one(folder, text_source({folder / "a.txt"}, {.window = 64}));
  EXPECT_EQ(manifest.records(), 16);  // 15 whole windows, and 39 bytes
  const Loaded loaded = load_all(folder / "set.manifest");
  ASSERT_EQ(loaded.data.size(), 16u * 64);
  for (std::size_t i = 0; i < 999; ++i) {
    EXPECT_EQ(loaded.data[i], static_cast<float>(text[i]));
    EXPECT_EQ(loaded.label[i], static_cast<float>(text[i + 1]));
  }
  EXPECT_EQ(loaded.label[999], -1);
  EXPECT_EQ(manifest.statistics.lengths.largest, 65);
  EXPECT_EQ(convert_one(folder, text_source({folder / "a.txt"}, {.window = 64, .stride = 10})).records(), 100);
  const std::vector<std::uint64_t> keys = text_source({folder / "a.txt"}, {.window = 64})->keys();
  EXPECT_EQ(std::set<std::uint64_t>(keys.begin(), keys.end()).size(), 16u) << "each window has a place of its own";
}

TEST(TextSource, LinesAndFieldsOfJson) {
  TemporaryFolder folder;
  write_all(folder / "a.txt", "first line\r\n\nsecond\n");
  write_all(folder / "a.jsonl", "{\"text\": \"first line\"}\n{\"text\": \"second\"}\n{\"text\": 3}\n");
  convert_one(folder, text_source({folder / "a.txt"}, {.window = 10, .lines = true}));
  const Loaded lines = load_all(folder / "set.manifest");
  convert_one(folder, text_source({folder / "a.jsonl"}, {.window = 10, .field = "text"}),
              {.shuffle = false, .skip_bad = true});
  const Loaded field = load_all(folder / "set.manifest");
  ASSERT_EQ(lines.examples, 2);
  EXPECT_EQ(std::string(lines.data.begin(), lines.data.begin() + 9), "first lin");
  EXPECT_EQ(std::string(lines.data.begin() + 10, lines.data.begin() + 15), "secon");
  EXPECT_EQ(field.data, lines.data);
  EXPECT_EQ(field.label, lines.label);
  EXPECT_THAT(read_all(folder / "set.bad.txt"), HasSubstr("a.jsonl:3\tit has no text 'text'"));
}

TEST(TextSource, ReadsWhatGzipPacked) {
  TemporaryFolder folder;
  const gzFile file = gzopen((folder / "a.txt.gz").c_str(), "wb");
  gzputs(file, "abcdefgh");
  gzclose(file);
  convert_one(folder, text_source({folder / "a.txt.gz"}, {.window = 4}));
  EXPECT_THAT(load_all(folder / "set.manifest").data, ElementsAre('a', 'b', 'c', 'd', 'e', 'f', 'g', 0));
  std::string cut = read_all(folder / "a.txt.gz");
  cut.resize(cut.size() - 6);
  write_all(folder / "a.txt.gz", cut);
  EXPECT_THAT(error_of<Corrupt>([&] { text_source({folder / "a.txt.gz"}); }), HasSubstr("cannot be unpacked by gzip"));
}

TEST(LibsvmSource, GivesWhatLoadLibsvmReads) {
  TemporaryFolder folder;
  write_all(folder / "a.libsvm", "# two classes\n-1 3:0.5 1:2\n+1 4:1 # the last feature\n\n-1\n+1 x:1\n");
  const Manifest manifest =
      convert_one(folder, libsvm_source({folder / "a.libsvm"}), {.shuffle = false, .skip_bad = true});
  EXPECT_THAT(manifest.labels, ElementsAre("-1", "1"));
  EXPECT_THAT(manifest.statistics.classes, ElementsAre(std::pair{"-1", 2}, std::pair{"1", 1}));
  EXPECT_EQ(manifest.statistics.lengths.largest, 2);
  const Loaded loaded = load_all(folder / "set.manifest");
  EXPECT_THAT(loaded.data, ElementsAre(2, 0, 0.5, 0, 0, 0, 0, 1, 0, 0, 0, 0));
  EXPECT_THAT(loaded.label, ElementsAre(0, 1, 0));
  EXPECT_THAT(read_all(folder / "set.bad.txt"), HasSubstr("a.libsvm:6\t'x:1' is no feature"));
  convert_one(folder, libsvm_source({folder / "a.libsvm"}, {.features = 5, .label = LabelKind::kNumber}),
              {.shuffle = false, .skip_bad = true});
  EXPECT_THAT(load_all(folder / "set.manifest").label, ElementsAre(-1, 1, -1));
}

// An array as numpy.save() writes it.
std::string npy(const std::string& descr, const std::string& shape, const std::string& values) {
  std::string header = "{'descr': '" + descr + "', 'fortran_order': False, 'shape': " + shape + ", }";
  header.resize((10 + header.size() + 64) / 64 * 64 - 10 - 1, ' ');
  header += '\n';
  const std::string length = {static_cast<char>(header.size()), static_cast<char>(header.size() >> 8)};
  return std::string("\x93NUMPY\x01\x00", 8) + length + header + values;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// A zip archive; what is `deflated` is compressed.
std::string zip(const std::vector<std::pair<std::string, std::string>>& files, bool deflated) {
  std::string archive, directory;
  const auto put = [](std::string& to, auto value) { to.append(reinterpret_cast<const char*>(&value), sizeof value); };
  for (const auto& [name, bytes] : files) {
    std::string packed = bytes;
    if (deflated) {
      z_stream stream = {};
      deflateInit2(&stream, 9, Z_DEFLATED, -MAX_WBITS, 9, Z_DEFAULT_STRATEGY);
      packed.resize(deflateBound(&stream, bytes.size()));
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(bytes.data()));
      stream.avail_in = static_cast<uInt>(bytes.size());
      stream.next_out = reinterpret_cast<Bytef*>(packed.data());
      stream.avail_out = static_cast<uInt>(packed.size());
      EXPECT_EQ(deflate(&stream, Z_FINISH), Z_STREAM_END);
      packed.resize(stream.total_out);
      deflateEnd(&stream);
    }
    std::string common;
    for (const int field : {20, 0, deflated ? 8 : 0, 0, 0}) put(common, static_cast<std::uint16_t>(field));
    put(common, static_cast<std::uint32_t>(
                    crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), static_cast<uInt>(bytes.size()))));
    put(common, static_cast<std::uint32_t>(packed.size()));
    put(common, static_cast<std::uint32_t>(bytes.size()));
    put(common, static_cast<std::uint16_t>(name.size()));
    put(common, std::uint16_t{0});
    directory += std::string("PK\x01\x02\x14\0", 6) + common + std::string(10, '\0');
    put(directory, static_cast<std::uint32_t>(archive.size()));
    directory += name;
    archive += "PK\x03\x04" + common + name + packed;
  }
  std::string end("PK\x05\x06\0\0\0\0", 8);
  put(end, static_cast<std::uint16_t>(files.size()));
  put(end, static_cast<std::uint16_t>(files.size()));
  put(end, static_cast<std::uint32_t>(directory.size()));
  put(end, static_cast<std::uint32_t>(archive.size()));
  return archive + directory + end + std::string(2, '\0');
}

TEST(NumpySource, ArraysAndLabelsAreTensors) {
  TemporaryFolder folder;
  write_all(folder / "x.npy", npy("|u1", "(3, 2)", "abcdef"));
  write_all(folder / "labels.npy", npy("<i8", "(3,)", bytes_of<std::int64_t>({2, 0, 1})));
  const Manifest manifest = convert_one(folder, numpy_source({folder / "x.npy", folder / "labels.npy"}));
  EXPECT_EQ(manifest.decoder.text(), "tensor(data: uint8 (2,), class_labels=1, labels=1)");
  EXPECT_THAT(manifest.labels, ElementsAre("0", "1", "2"));
  EXPECT_DOUBLE_EQ(manifest.statistics.numbers.at("data").mean, ('a' + 'f') / 2.0);
  const Loaded loaded = load_all(folder / "set.manifest");
  EXPECT_THAT(loaded.data, ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
  EXPECT_THAT(loaded.label, ElementsAre(2, 0, 1));
  EXPECT_EQ(convert_one(folder, numpy_source({folder / "x.npy"})).decoder.text(),
            "tensor(data: uint8 (2,), class_labels=0, labels=0)");
  EXPECT_EQ(load_all(folder / "set.manifest").data, loaded.data);
}

TEST(NumpySource, LabelsKeepTheirDigits) {
  TemporaryFolder folder;
  write_all(folder / "x.npy", npy("|u1", "(2, 1)", "ab"));
  write_all(folder / "label.npy", npy("<f8", "(2,)", bytes_of<double>({0.1, 1e300})));
  const Manifest manifest = convert_one(folder, numpy_source({folder / "x.npy", folder / "label.npy"}));
  EXPECT_EQ(manifest.decoder.text(), "tensors(data: uint8 (1,), label: float64 ())");
  RecordLoader loader(folder / "set.manifest");
  loader.start(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_THAT(batch.label.to_vector<double>(), ElementsAre(0.1, 1e300));
  write_all(folder / "label.npy", npy("<i4", "(2,)", bytes_of<std::int32_t>({16777217, 5})));
  convert_one(folder, numpy_source({folder / "x.npy", folder / "label.npy"}));
  RecordLoader whole(folder / "set.manifest");
  whole.start(0);
  ASSERT_TRUE(whole.next(batch));
  EXPECT_THAT(batch.label.to_vector<std::int32_t>(), ElementsAre(16777217, 5));
}

TEST(NumpySource, SeveralArraysAreNamed) {
  TemporaryFolder folder;
  const std::vector<std::pair<std::string, std::string>> arrays = {
      {"image.npy", npy("<f4", "(2, 1, 2)", bytes_of<float>({1, 2, 3, 4}))},
      {"mask.npy", npy("|b1", "(2, 2)", std::string("\1\0\0\1", 4))},
      {"y.npy", npy("<i4", "(2,)", bytes_of<std::int32_t>({7, 8}))}};
  for (const bool deflated : {false, true}) {
    write_all(folder / "a.npz", zip(arrays, deflated));
    convert_one(folder, numpy_source({folder / "a.npz"}, {.data = "image", .label = "y"}));
    RecordLoader loader(folder / "set.manifest");
    loader.start(0);
    Batch batch;
    ASSERT_TRUE(loader.next(batch));
    EXPECT_EQ(batch.data.describe(), "float32 (2, 1, 2) on cpu");
    EXPECT_THAT(batch.data.to_vector<float>(), ElementsAre(1, 2, 3, 4));
    EXPECT_THAT(batch.array("mask").to_vector<bool>(), ElementsAre(true, false, false, true));
    EXPECT_THAT(batch.label.to_vector<std::int32_t>(), ElementsAre(7, 8));
  }
  flip_bit(folder / "a.npz", 60);
  EXPECT_THAT(error_of<Corrupt>([&] { numpy_source({folder / "a.npz"}); }), HasSubstr("is damaged"));
}

TEST(NumpySource, SaysWhatIsWrong) {
  TemporaryFolder folder;
  const auto refusal = [&](const std::string& bytes) {
    write_all(folder / "a.npy", bytes);
    return error_of<Corrupt>([&] { numpy_source({folder / "a.npy"}); });
  };
  EXPECT_THAT(refusal(npy("<u2", "(2,)", "abcd")), HasSubstr("its elements are '<u2', expected float16"));
  EXPECT_THAT(refusal(npy("|u1", "(5,)", "abcd")), HasSubstr("it is truncated"));
  EXPECT_THAT(refusal(npy("<f8", "(1, 2305843009213693953)", "12345678")), HasSubstr("too many for a record"));
  EXPECT_THAT(refusal(npy("|u1", "(1, 0)", "")), HasSubstr("has no elements, or too many"));
  EXPECT_THAT(refusal(npy("|u1", "()", "a")), HasSubstr("it is a single number"));
  EXPECT_THAT(refusal("abcdefghijklmn"), HasSubstr("is no array in NumPy's format"));
  EXPECT_THAT(refusal("\x93NUM"), HasSubstr("is truncated"));
  write_all(folder / "a.npy", npy("|u1", "(2,)", "ab"));
  write_all(folder / "b.npy", npy("|u1", "(3,)", "abc"));
  EXPECT_THAT(error_of<InvalidArgument>([&] {
                numpy_source({folder / "a.npy", folder / "b.npy"});
              }),
              HasSubstr("the array 'b' has 3 examples, 'a' has 2"));
  write_all(folder / "a.npz", zip({{"\xff.npy", npy("|u1", "(2,)", "ab")}}, false));
  EXPECT_THAT(error_of<InvalidArgument>([&] { numpy_source({folder / "a.npz"}); }),
              HasSubstr("the name '\\xff' of an array in " + folder / "a.npz" + " is not UTF-8"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { numpy_source({folder / "a.npy"}, {.data = "z"}); }),
              HasSubstr("there is no array 'z'; there are 'a'"));
}

// A member of a tar file.
std::string tar_member(const std::string& name, const std::string& bytes, char type = '0',
                       const std::string& target = "") {
  std::string head(512, '\0');
  head.replace(0, name.size(), name);
  char size[13];
  std::snprintf(size, sizeof size, "%011zo", bytes.size());
  head.replace(124, 11, size);
  head[156] = type;
  head.replace(157, target.size(), target);
  head.replace(257, 8, std::string("ustar\00000", 8));
  head.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : head) sum += static_cast<unsigned char>(c);
  std::snprintf(size, sizeof size, "%06o", sum);
  head.replace(148, 8, std::string(size) + '\0' + ' ');
  return head + bytes + std::string((512 - bytes.size() % 512) % 512, '\0');
}

TEST(ImageSource, ImagesOutsideOfTheFolderHaveKeysOfTheirOwn) {
  TemporaryFolder folder;
  std::string list;
  for (int i = 0; i < 8; ++i) {
    const std::string path = folder / str(i, ".png");
    write_all(path, ImageCodec().encode({1, 2, 1, {static_cast<std::uint8_t>(i), 9}}, ImageEncoding::kPng));
    list += str(i, "\t0\t", path, "\n");
  }
  write_all(folder / "a.lst", list);
  const std::vector<std::uint64_t> keys = image_source(folder / "a.lst", {.root = "images"})->keys();
  EXPECT_EQ(std::set<std::uint64_t>(keys.begin(), keys.end()).size(), 8u);
}

TEST(WebdatasetSource, SamplesAreImagesWithLabels) {
  TemporaryFolder folder;
  const auto image = [](std::uint8_t value) { return ImageCodec().encode({1, 2, 1, {value, 9}}, ImageEncoding::kPng); };
  const std::string long_name = std::string(120, 'n') + ".png";
  write_all(folder / "a.tar",
            tar_member("d/1.png", image(10)) + tar_member("d/1.cls", "3") + tar_member("d/2.cls", "1\n") +
                tar_member("d/2.json", "{}") + tar_member("d/2.png", image(20)) +
                tar_member("././@LongLink", long_name, 'L') + tar_member("short", image(30)) +
                tar_member("pax", str(3 + 6 + 124 + 1, " path=", std::string(120, 'n'), ".cls\n"), 'x') +
                tar_member("short", "0") + std::string(1024, '\0'));
  const Manifest manifest = convert_one(folder, webdataset_source({folder / "a.tar"}));
  EXPECT_EQ(manifest.image, (ImageSize{1, 2, 1}));
  RecordLoader loader(folder / "set.manifest", {.image = {.dtype = DType::kUint8}});
  loader.start(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_THAT(batch.data.to_vector<std::uint8_t>(), ElementsAre(10, 9, 20, 9, 30, 9));
  EXPECT_THAT(batch.label.to_vector<std::int32_t>(), ElementsAre(3, 1, 0));
  write_all(folder / "b.tar", tar_member("1.png", image(10)));
  const std::string with_bad = tar_member("1.png", image(10)) + tar_member("README.txt", "x") +
                               tar_member("2.png", image(20)) + tar_member("2.cls", "7");
  write_all(folder / "b.tar", with_bad);
  EXPECT_THAT(error_of<Corrupt>([&] { convert(folder / "bad", *webdataset_source({folder / "b.tar"})); }),
              HasSubstr("2 of 3 images are bad"));
  EXPECT_THAT(read_all(folder / "bad.bad.txt"),
              AllOf(HasSubstr("b.tar/1.png\tthe sample has an image and no .cls with its label"),
                    HasSubstr("b.tar/README\tthe sample holds no .jpg, .jpeg or .png")));
  convert(folder / "set", *webdataset_source({folder / "b.tar"}), {.skip_bad = true});
  EXPECT_THAT(load_all(folder / "set.manifest").label, ElementsAre(7));
  write_all(folder / "b.tar", tar_member("1.png", image(10)) + tar_member("2.png", image(20)) +
                                  tar_member("2.cls", "0") + tar_member("1.cls", "1"));
  convert_one(folder, webdataset_source({folder / "b.tar"}));
  EXPECT_THAT(load_all(folder / "set.manifest").label, ElementsAre(1, 0));
  write_all(folder / "b.tar", tar_member("1.cls", "0") + tar_member("1.png", image(10)) + tar_member("1.CLS", "1"));
  EXPECT_THAT(error_of<Corrupt>([&] { webdataset_source({folder / "b.tar"}); }),
              HasSubstr("holds the member 1.CLS twice"));
  // tar stores a file with two names once, and the second name as a link.
  const std::string linked = tar_member("1.png", image(10)) + tar_member("1.cls", "3") +
                             tar_member("2.png", "", '1', "1.png") + tar_member("2.cls", "", '1', "1.cls");
  write_all(folder / "b.tar", linked);
  convert_one(folder, webdataset_source({folder / "b.tar"}));
  EXPECT_THAT(load_all(folder / "set.manifest").label, ElementsAre(3, 3));
  write_all(folder / "b.tar", tar_member("1.cls", "3") + tar_member("1.png", "", '2', "elsewhere.png"));
  EXPECT_THAT(error_of<Corrupt>([&] { webdataset_source({folder / "b.tar"}); }),
              HasSubstr("holds the link 1.png to elsewhere.png"));
  write_all(folder / "b.tar", std::string(600, 'x'));
  EXPECT_THAT(error_of<Corrupt>([&] { webdataset_source({folder / "b.tar"}); }), HasSubstr("is no tar file"));
}

TEST(ImageSource, CountsPixels) {
  TemporaryFolder folder;
  write_idx(folder / "images-idx3", {{2, 1, 2}, {0, 255, 51, 102}});
  write_idx(folder / "labels-idx1", {{2}, {1, 0}});
  const Manifest manifest = convert_one(folder, image_source(folder / "images-idx3"));
  const NumberStatistics& grey = manifest.statistics.numbers.at("grey");
  EXPECT_EQ(grey.count, 4);
  EXPECT_DOUBLE_EQ(grey.mean, 0.4);
  EXPECT_NEAR(grey.deviation, std::sqrt((0.16 + 0.36 + 0.04 + 0) / 4), 1e-12);
  EXPECT_THAT(manifest.statistics.classes, ElementsAre(std::pair{"0", 1}, std::pair{"1", 1}));
}

// Images of every remainder, and one whose squares need more than 32 bits.
TEST(ImageSource, CountsPixelsOfEveryColour) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "images/a");
  std::mt19937_64 random(test_seed());
  struct Expected {
    std::int64_t count = 0;
    double sum = 0, squares = 0, smallest = 1, largest = 0;
  };
  std::map<std::string, Expected> expected;
  for (int i = 0; i < 60; ++i) {
    const int channels = i % 3 ? 3 : 1, width = i == 1 ? 1500 : 1 + i * 7 % 64, height = i == 1 ? 1100 : 1 + i % 5;
    Image image{height, width, channels, {}};
    for (int k = 0; k < height * width * channels; ++k) {
      const std::uint64_t level = i == 1 ? 255 : 20 + random() % 230;
      image.pixels.push_back(static_cast<std::uint8_t>(level));
      Expected& all = expected[channels == 1 ? "grey" : std::array{"red", "green", "blue"}.at(k % 3)];
      const double number = static_cast<double>(level) / 255;
      ++all.count;
      all.sum += number;
      all.squares += number * number;
      all.smallest = std::min(all.smallest, number);
      all.largest = std::max(all.largest, number);
    }
    write_all(folder / str("images/a/", i, ".png"), ImageCodec().encode(image, ImageEncoding::kPng));
  }
  const Manifest manifest = convert_one(folder, image_source(folder / "images"));
  ASSERT_EQ(manifest.statistics.numbers.size(), expected.size());
  for (const auto& [name, all] : expected) {
    const NumberStatistics& found = manifest.statistics.numbers.at(name);
    const auto count = static_cast<double>(all.count);
    EXPECT_EQ(found.count, all.count) << name;
    EXPECT_NEAR(found.mean, all.sum / count, 1e-9) << name;
    EXPECT_NEAR(found.deviation, std::sqrt(all.squares / count - std::pow(all.sum / count, 2)), 1e-6) << name;
    EXPECT_DOUBLE_EQ(found.smallest, all.smallest) << name;
    EXPECT_DOUBLE_EQ(found.largest, all.largest) << name;
  }
}

TEST(RecordSource, DividesWhatIsThere) {
  TemporaryFolder folder;
  write_data_set(folder, 40, 3, "old");
  convert(folder / "set", *record_source({folder / "old.manifest"}), {.shards = 2, .splits = {{"a", 1}, {"b", 1}}});
  std::vector<std::int64_t> keys = keys_of(folder / "set-a.manifest");
  for (const std::int64_t key : keys_of(folder / "set-b.manifest")) keys.push_back(key);
  std::sort(keys.begin(), keys.end());
  ASSERT_EQ(keys.size(), 40u);
  for (std::size_t i = 0; i < keys.size(); ++i) EXPECT_EQ(keys[i], static_cast<std::int64_t>(i));
  const Manifest manifest = Manifest::load(folder / "set-a.manifest");
  EXPECT_EQ(manifest.image, (ImageSize{2, 3, 1}));
  EXPECT_THAT(verify(folder / "set-a.manifest").problems, IsEmpty());
  const RecordFile file(manifest.path_of(manifest.shards[0]));
  std::string record;
  file.read(0, record);
  EXPECT_EQ(ImageRecord(record).id(), static_cast<std::uint64_t>(file.key(0)));
}

// Flipped bytes, with an index and without one: all records but the damaged ones are converted when that is asked for.
TEST(RecordSource, LeavesOutWhatIsDamaged) {
  for (const bool indexed : {true, false}) {
    SCOPED_TRACE(indexed);
    TemporaryFolder folder;
    write_data_set(folder, 40, 1, "old");
    const std::string path = folder / Manifest::load(folder / "old.manifest").shards[0].path;
    const RecordIndex index = read_index(index_path(path));
    std::string bytes = read_all(path);
    bytes[index[7].offset] ^= 1;        // of the magic number
    bytes[index[20].offset + 20] ^= 1;  // of the record, which only a checksum tells
    write_all(path, bytes);
    if (!indexed)
      for (const std::string& beside : {index_path(path), checksum_path(path)}) std::filesystem::remove(beside);
    const std::string source = indexed ? folder / "old.manifest" : path;
    std::vector<std::string> bad;
    ConvertOptions options{.shards = 2, .threads = 2};
    options.on_bad = [&bad](const std::string& place, const std::string& problem) {
      bad.push_back(place + ": " + problem);
    };
    EXPECT_THAT(error_of<Corrupt>([&] { convert(folder / "set", *record_source({source}), options); }),
                HasSubstr(indexed ? "2 of 40 records are bad" : "1 of 40 records is bad"));
    EXPECT_FALSE(std::filesystem::exists(folder / "set.manifest"));
    bad.clear();
    options.skip_bad = true;
    const ConvertReport report = convert(folder / "set", *record_source({source}), options);
    EXPECT_EQ(report.bad, indexed ? 2 : 1);
    EXPECT_EQ(report.sets.at(0).records, indexed ? 38 : 39);
    EXPECT_THAT(bad, Contains(path + ": record 7: wrong magic number"));
    EXPECT_THAT(verify(folder / "set.manifest").problems, IsEmpty());
    EXPECT_THAT(keys_of(folder / "set.manifest"), Not(Contains(7)));
  }
}

TEST(RecordSource, KeepsTheDecoderThatAManifestNames) {
  TemporaryFolder folder;
  write_all(folder / "a.csv", "1,2,0\n3,4,1\n");
  const Manifest before = convert_one(folder, csv_source({folder / "a.csv"}, {.table = {.label = "2"}}));
  convert(folder / "again", *record_source({folder / "set.manifest"}), kInOrder);
  const Manifest after = Manifest::load(folder / "again.manifest");
  EXPECT_EQ(after.decoder, before.decoder);
  EXPECT_EQ(after.labels, before.labels);
  EXPECT_TRUE(after.columns_crc32c);
  EXPECT_EQ(after.columns_crc32c, before.columns_crc32c);
  EXPECT_EQ(load_all(folder / "again.manifest").data, load_all(folder / "set.manifest").data);
}

}  // namespace
}  // namespace paceline::test
