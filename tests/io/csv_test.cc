#include <paceline/csv.h>
#include <paceline/error.h>

#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <utility>

#include "fixtures.h"
#include "row_store.h"

namespace paceline::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;

class Csv : public testing::Test {
 protected:
  std::string written(const std::string& text) {
    write_all(folder_ / "a.csv", text);
    return folder_ / "a.csv";
  }
  // All of a file, as one batch.
  Batch read(const std::string& text, CsvIteratorOptions options = {}) {
    options.batch = 1000;
    CsvIterator data(written(text), options);
    data.start(0);
    Batch batch;
    EXPECT_TRUE(data.next(batch));
    return batch;
  }
  template <class Wrong = Corrupt>
  std::string error(const std::string& text, const CsvIteratorOptions& options = {}) {
    return error_of<Wrong>([&] { read(text, options); });
  }

  TemporaryFolder folder_;
};

TEST_F(Csv, ReadsColumnsAndALabel) {
  const Batch batch = read("a,kind,b\n1,2,3.5\n-4e1,0,+6\n", {.label = "kind"});
  EXPECT_EQ(batch.data.shape(), (Shape{2, 2}));
  EXPECT_THAT(batch.data.to_vector<float>(), ElementsAre(1, 3.5, -40, 6));
  EXPECT_EQ(batch.label.shape(), (Shape{2}));
  EXPECT_THAT(batch.label.to_vector<std::int32_t>(), ElementsAre(2, 0));

  const Batch last = read("1;2;3\n4;5;6.5", {.label = "-1", .class_labels = false, .header = false, .delimiter = ';'});
  EXPECT_THAT(last.data.to_vector<float>(), ElementsAre(1, 2, 4, 5));
  EXPECT_THAT(last.label.to_vector<float>(), ElementsAre(3, 6.5));
  EXPECT_TRUE(read("a,b\n1,2\n").label.is_none());
}

TEST_F(Csv, KnowsQuotesEmptyLinesAndEndsOfLines) {
  const std::string text =
      "\xef\xbb\xbf\"first, with\nan end\",\"a \"\"second\"\"\",kind\r\n"
      "\r\n"
      "1,\"2\",\"x, \"\"y\"\"\n\"\r\n"
      "\n"
      "\"3\",4,plain";
  CsvIterator data(written(text), {.label = "kind", .classes = {"plain", "x, \"y\"\n"}});
  EXPECT_THAT(data.columns(), ElementsAre("first, with\nan end", "a \"second\"", "kind"));
  EXPECT_EQ(data.size(), 2);
  data.start(0);
  Batch batch;
  ASSERT_TRUE(data.next(batch));
  EXPECT_THAT(batch.data.to_vector<float>(), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(batch.label.to_vector<std::int32_t>(), ElementsAre(1, 0));
  EXPECT_THAT(read("a\tb\n'1\t2\n", {.arrays = {{.name = "data", .columns = {"b"}}}, .delimiter = '\t', .quote = 0})
                  .data.to_vector<float>(),
              ElementsAre(2));
}

TEST_F(Csv, MakesArraysOfTypesShapesAndCategories) {
  const Batch batch = read(
      "id,size,p0,p1,p2,p3,left_out\n"
      "9007199254740993,small,0,1,2,255,?\n"
      "-2,NA,3,4.0,5,6,\"a,b\"\n",
      {.arrays = {
           {.name = "id", .columns = {"id"}, .dtype = DType::kInt64},
           {.name = "label",
            .columns = {"size"},
            .dtype = DType::kInt8,
            .categories = {"large", "small"},
            .missing = -1},
           {.name = "data", .columns = {"p0", "3", "p2", "-2"}, .dtype = DType::kUint8, .shape = Shape{1, 2, 2}}}});
  EXPECT_THAT(batch.array("id").to_vector<std::int64_t>(), ElementsAre(9007199254740993, -2));
  EXPECT_EQ(batch.array("id").shape(), (Shape{2, 1}));
  EXPECT_THAT(batch.label.to_vector<std::int8_t>(), ElementsAre(1, -1));
  EXPECT_EQ(batch.data.shape(), (Shape{2, 1, 2, 2}));
  EXPECT_THAT(batch.data.to_vector<std::uint8_t>(), ElementsAre(0, 1, 2, 255, 3, 4, 5, 6));
  const Batch filled = read("a,b\n,NaN\n1,2\n", {.missing = 0.5});
  EXPECT_THAT(filled.data.to_vector<float>(), ElementsAre(0.5, 0.5, 1, 2));
  const Batch precise = read("a\n0.1\n", {.arrays = {{.name = "data", .dtype = DType::kFloat64}}});
  EXPECT_THAT(precise.data.to_vector<double>(), ElementsAre(0.1));
}

TEST_F(Csv, ErrorsNameFileLineAndColumn) {
  EXPECT_THAT(error("a,b\n1,2\n\n\"3\",x\n"),
              AllOf(StartsWith(folder_ / "a.csv:4: "), EndsWith("column 1 ('b') is 'x', expected a finite number")));
  EXPECT_THAT(error("1,2\n3\n", {.header = false}), EndsWith("a.csv:2: it has 1 columns, expected 2"));
  EXPECT_THAT(error("a,b\n1,2,3\n"), EndsWith("a.csv:2: it has 3 columns, expected 2"));
  EXPECT_THAT(error("a,b\nx,2,3\n"), EndsWith("a.csv:2: it has 3 columns, expected 2"));
  EXPECT_THAT(error("a,b\n1,\n"), EndsWith("column 1 ('b') is '', expected a finite number; CsvArray::missing is a "
                                           "value for missing fields"));
  EXPECT_THAT(error("a\ninf\n"), HasSubstr("expected a finite number"));
  EXPECT_THAT(error("a\n\"1\"2\n"), HasSubstr("a.csv:2: column 0 ('a') holds '\"1\"2', where text follows the \""));
  EXPECT_THAT(error("a\n1\"2\"\n"), EndsWith("a \" stands inside of a field; quote the whole field and "
                                             "double it; where \" does not quote, set quote = 0"));
  EXPECT_THAT(error("1\"2\"\n", {.header = false}),
              AllOf(HasSubstr("its first row holds '1\"2\"'"), EndsWith("; where \" does not quote, set quote = 0")));
  EXPECT_THAT(error("a\n1\n\"2\n3\n"),
              HasSubstr("a.csv:3: the row that begins in this line has a quoted field that does not end; where \" does "
                        "not quote, set quote = 0"));
  EXPECT_THAT(error("a,y\n1,1.5\n", {.label = "y"}), HasSubstr("its label 1.5 is no class"));
  EXPECT_THAT(error("a\n256\n", {.arrays = {{.name = "data", .dtype = DType::kUint8}}}),
              EndsWith("is '256', expected a whole number from 0 to 255"));
  EXPECT_THAT(error("a\nblue\n", {.arrays = {{.name = "data", .categories = {"red", "green"}}}}),
              EndsWith("column 0 ('a') is 'blue', expected one of 'red' 'green'"));
  EXPECT_THAT(error("\x1f\x8b\x08"), HasSubstr("unpack it with gunzip"));
  EXPECT_THAT(error("\xff\xfe"
                    "1"),
              HasSubstr("UTF-16"));
  EXPECT_THROW(CsvIterator("/nowhere/a.csv"), IoError);
}

TEST_F(Csv, RefusesOptionsThatCannotWork) {
  const auto refused = [&](const CsvIteratorOptions& options) {
    return error<InvalidArgument>("a,b,a\n1,2,3\n", options);
  };
  EXPECT_THAT(refused({.label = "c"}),
              HasSubstr("there is no column 'c' for the array 'label'; there are 'a' 'b' 'a'"));
  EXPECT_THAT(refused({.label = "3"}), HasSubstr("wants column 3 of 3, expected -3 to 2"));
  EXPECT_THAT(refused({.label = "a"}), HasSubstr("two columns are called 'a'; name the one for 'label' by its number"));
  EXPECT_THAT(refused({.label = "b", .header = false}),
              HasSubstr("without a header, columns are named by their numbers"));
  EXPECT_THAT(refused({.missing = 1, .arrays = {{.name = "data"}}}), HasSubstr("leave out label, classes and missing"));
  EXPECT_THAT(refused({.arrays = {{.name = "data"}, {.name = "more"}}}), HasSubstr("both name no columns"));
  EXPECT_THAT(refused({.arrays = {{.name = "data", .columns = {"b", "1"}}}}), HasSubstr("or twice in one"));
  EXPECT_THAT(refused({.arrays = {{.name = "data", .dtype = DType::kUint8, .missing = -1}}}),
              HasSubstr("the array 'data' is uint8, which does not hold -1, its value for missing fields"));
  EXPECT_THAT(refused({.arrays = {{.name = "data", .dtype = DType::kInt32, .missing = 0.5}}}), HasSubstr("hold 0.5"));
  std::vector<std::string> words(257);
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = std::to_string(i);
  EXPECT_THAT(refused({.arrays = {{.name = "data", .dtype = DType::kUint8, .categories = words}}}),
              HasSubstr("does not hold 256, its last category"));
  EXPECT_THAT(refused({.arrays = {{.name = "x", .columns = {"b"}}, {.name = "x"}}}), HasSubstr("two arrays 'x'"));
  EXPECT_THAT(refused({.arrays = {{.name = "data", .shape = Shape{2}}}}), HasSubstr("3 columns, which do not fill"));
  EXPECT_THAT(refused({.arrays = {{.name = "data", .dtype = DType::kFloat16}}}), HasSubstr("is to be float16"));
  EXPECT_THAT(refused({.delimiter = '"'}), HasSubstr("delimiter"));
  EXPECT_THAT(error<InvalidArgument>("a,b\n\n"), HasSubstr("holds no rows behind its header"));
  EXPECT_THAT(error<InvalidArgument>(""), HasSubstr("holds no rows"));
  EXPECT_THAT(error_of<InvalidArgument>([&] { CsvIterator(written("a\n1\n"), {.batch = 0}); }),
              HasSubstr("batch size"));
}

TEST_F(Csv, LeavesOutWhatIsDamagedWhereAsked) {
  CsvIterator data(written("a\n1\nx\n3\n4\n\"5\"\"\"\n6\n"), {.batch = 3, .on_damage = OnDamage::kSkip});
  data.start(0);
  std::vector<float> seen;
  RangeSet positions;
  for (Batch batch; data.next(batch);) {
    const std::vector<float> values = batch.data.to_vector<float>();
    seen.insert(seen.end(), values.begin(), values.end());
    for (const Range& range : batch.positions) positions.add(range);
  }
  EXPECT_THAT(seen, ElementsAre(1, 3, 4, 6));
  EXPECT_EQ(positions.text(), "0-6");
  EXPECT_EQ(data.damaged(), 2);
  EXPECT_EQ(data.damage().at(0).record, 1);
  EXPECT_THAT(data.damage().at(0).reason, HasSubstr("column 0 ('a') is 'x'"));
}

TEST_F(Csv, AQuoteInsideOfAFieldDamagesItsRowAlone) {
  CsvIterator data(written("a,b\n5\" pipe,1\n2,3\n\"4\",5\n"), {.on_damage = OnDamage::kSkip});
  EXPECT_EQ(data.size(), 3);
  data.start(0);
  Batch batch;
  ASSERT_TRUE(data.next(batch));
  EXPECT_THAT(batch.data.to_vector<float>(), ElementsAre(2, 3, 4, 5));
  EXPECT_EQ(data.damaged(), 1);
}

// A row and whether the text ends in it, between quotes.
std::vector<std::pair<std::size_t, std::string>> rows_of(const std::string& text, bool& open) {
  std::vector<std::pair<std::size_t, std::string>> rows;
  std::string row;
  std::size_t begin = 0;
  enum { kBegin, kPlain, kQuoted, kClosed } state = kBegin;
  const auto end_row = [&](std::size_t at) {
    if (row.ends_with('\r')) row.pop_back();
    if (!row.empty()) rows.emplace_back(begin, row);
    row.clear();
    begin = at + 1;
    state = kBegin;
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (c == '\n' && state != kQuoted) {
      end_row(at);
      continue;
    }
    row += c;
    if (state == kQuoted)
      state = c == '"' ? kClosed : kQuoted;
    else if (c == '"' && state != kPlain)
      state = kQuoted;
    else
      state = c == ',' ? kBegin : kPlain;
  }
  open = state == kQuoted;
  end_row(text.size());
  return rows;
}

// Text of any characters, over several pieces of the index.
TEST_F(Csv, TheRowsAreTheSameInMemoryAndOnDisk) {
  std::mt19937_64 random(test_seed());
  const std::string words(700, 'w');
  const std::vector<std::string> pieces{"\"", "\"\"", ",", "\n", "\r\n", "\r", "a", "bc", words};
  std::string text;
  while (text.size() < (9u << 20)) text += pieces[random() % pieces.size()];
  bool open = false;
  auto rows = rows_of(text, open);
  if (open) {
    text += "\"\n";
    rows = rows_of(text, open);
  }
  const std::string path = written(text);
  std::vector<std::int64_t> numbers(rows.size());
  std::iota(numbers.begin(), numbers.end(), 0);
  std::shuffle(numbers.begin(), numbers.end(), random);
  for (const auto memory : {io::TextFile::Memory::kSmall, io::TextFile::Memory::kUnpacked}) {
    const io::RowFile file(path, {.quote = '"'}, false, 3, memory);
    ASSERT_EQ(file.rows(), static_cast<std::int64_t>(rows.size()));
    std::size_t wrong = 0;
    for (std::size_t first = 0; first < numbers.size(); first += 1000) {
      const std::span<const std::int64_t> some(&numbers[first], std::min<std::size_t>(1000, numbers.size() - first));
      file.read(some, [&](std::size_t place, std::uint64_t offset, std::string_view row) {
        const auto& [begin, expected] = rows[static_cast<std::size_t>(some[place])];
        wrong += begin != offset || expected != row;
      });
    }
    EXPECT_EQ(wrong, 0u);
    for (std::size_t i = 0; i < 10; ++i) {
      const std::size_t begin = rows[random() % rows.size()].first;
      const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(begin), '\n');
      EXPECT_EQ(file.place_text(begin), str(path, ":", line));
    }
  }
}

TEST_F(Csv, ALongRowIsReadAlone) {
  std::string text;
  for (int i = 0; i < 100; ++i) text += std::string(3000, 'w') + "\n";
  const io::RowFile file(written(text), {}, false, 1, io::TextFile::Memory::kUnpacked);
  EXPECT_EQ(file.read(std::vector<std::int64_t>{57}, [](auto...) {}), 3001u);
}

TEST_F(Csv, TheLineOfARowIsFoundWithoutTheTextFarBefore) {
  constexpr std::size_t kLine = 101;
  std::string text;
  for (int i = 0; i < 20000; ++i) text += std::string(kLine - 1, 'w') + "\n";
  const std::string path = written(text);
  const io::RowFile file(path, {}, false, 1, io::TextFile::Memory::kUnpacked);
  std::fstream(path, std::ios::in | std::ios::out | std::ios::binary) << std::string(1 << 20, '\n');
  EXPECT_EQ(file.place_text(15007 * kLine), str(path, ":15008"));
}

TEST_F(Csv, ALineThatIsTooLongForARowIsRefused) {
  const std::string path = written("a\n" + std::string(6u << 20, 'w') + "\nb\n");
  const auto open = [&](std::uint64_t longest) {
    return io::RowFile(path, {.longest = longest}, false, 1, io::TextFile::Memory::kUnpacked).rows();
  };
  EXPECT_EQ(open(8u << 20), 3);
  EXPECT_THAT(error_of<Corrupt>([&] { open(1u << 20); }),
              EndsWith("a.csv: the line that begins at byte 2 has more than 1048576 bytes, expected fewer"));
}

TEST_F(Csv, ASmallFileIsReadOnce) {
  CsvIterator data(written("a\n1\n2\n3\n"), {.batch = 2, .shuffle = 1});
  std::filesystem::resize_file(folder_ / "a.csv", 0);
  data.start(0);
  std::vector<float> seen;
  for (Batch batch; data.next(batch);)
    for (const float value : batch.data.to_vector<float>()) seen.push_back(value);
  EXPECT_THAT(seen, testing::UnorderedElementsAre(1, 2, 3));
}

// A file of random rows of quoted and plain fields, over several pieces of the index, against what made it.
TEST_F(Csv, FindsEveryRowOfALargeFile) {
  std::mt19937_64 random(test_seed());
  const auto upto = [&](std::uint64_t most) { return random() % (most + 1); };
  std::string text = "number,words,twice\n";
  std::int64_t rows = 0;
  std::vector<std::int64_t> lines;
  std::int64_t line = 2;
  const bool quotes = upto(3) > 0;
  while (text.size() < (9u << 20)) {
    for (std::uint64_t empty = upto(9) == 0 ? upto(3) : 0; empty > 0; --empty) {
      text += upto(1) ? "\n" : "\r\n";
      ++line;
    }
    lines.push_back(line);
    text += std::to_string(rows) + ",";
    // Some are longer than what is read at a time.
    const std::uint64_t length = upto(20000) == 0 ? 3 << 20 : upto(60);
    if (quotes && upto(2) == 0) {
      text += '"';
      for (std::uint64_t i = 0; i < length; ++i) {
        const std::uint64_t kind = upto(12);
        text += kind == 0 ? "\n" : kind == 1 ? "\"\"" : kind == 2 ? "," : kind == 3 ? "\r\n" : "w";
        line += kind == 0 || kind == 3;
      }
      text += '"';
    } else {
      text += std::string(length, 'w');
    }
    text += "," + std::to_string(2 * rows) + (upto(1) ? "\n" : "\r\n");
    ++rows;
    ++line;
  }
  const std::string path = written(text);
  const std::vector<CsvArray> arrays{{.name = "data", .columns = {"0", "2"}, .dtype = DType::kInt64}};
  for (const bool shuffled : {false, true}) {
    CsvIteratorOptions options{
        .batch = static_cast<std::int64_t>(1 + upto(300)), .arrays = arrays, .decode_threads = 3};
    if (shuffled) options.shuffle = random();
    CsvIterator data(path, options);
    ASSERT_EQ(data.size(), rows);
    data.start(0);
    std::vector<int> seen(static_cast<std::size_t>(rows));
    std::int64_t expected = 0, in_order = 0;
    for (Batch batch; data.next(batch);) {
      const auto values = batch.data.to_vector<std::int64_t>();
      for (std::size_t i = 0; i < values.size(); i += 2) {
        ASSERT_EQ(values[i + 1], 2 * values[i]);
        ++seen.at(static_cast<std::size_t>(values[i]));
        in_order += values[i] == expected++;
      }
    }
    EXPECT_THAT(seen, testing::Each(1));
    EXPECT_EQ(in_order == rows, !shuffled);
  }
  // A wrong row anywhere is named by its line.
  const auto bad = static_cast<std::size_t>(upto(static_cast<std::uint64_t>(rows) - 1));
  std::string& wrong = text;
  const std::string field = "\n" + std::to_string(bad) + ",";
  wrong.insert(wrong.find(field) + 1, "x");
  CsvIterator data(written(wrong), {.batch = 1000, .arrays = arrays});
  data.start(0);
  EXPECT_THAT(error_of<Corrupt>([&] {
                for (Batch batch; data.next(batch);) {
                }
              }),
              HasSubstr(str("a.csv:", lines[bad], ": column 0 ('number') is 'x", bad, "'")));
}

TEST_F(Csv, NumbersAreTheNearestOnes) {
  std::mt19937_64 random(test_seed());
  std::string text = "single,double\n";
  std::vector<float> singles;
  std::vector<double> doubles;
  for (int i = 0; i < 20000; ++i) {
    char row[120];
    const int digits = static_cast<int>(random() % 20), exponent = static_cast<int>(random() % 40) - 20;
    const double value = std::ldexp(static_cast<double>(random() % 2 ? random() : random() % 100000), exponent) *
                         (random() % 2 ? 1 : -1);
    const char* const format = random() % 2 ? "%.*e,%.*e\n" : "%.*f,%.*f\n";
    std::snprintf(row, sizeof row, format, digits, value, digits, value);
    text += row;
    singles.push_back(std::strtof(row, nullptr));
    doubles.push_back(std::strtod(row, nullptr));
  }
  CsvIterator data(written(text), {.batch = 20000,
                                   .arrays = {{.name = "data", .columns = {"single"}},
                                              {.name = "label", .columns = {"double"}, .dtype = DType::kFloat64}}});
  data.start(0);
  Batch batch;
  ASSERT_TRUE(data.next(batch));
  EXPECT_EQ(batch.data.to_vector<float>(), singles);
  EXPECT_EQ(batch.label.to_vector<double>(), doubles);
}

}  // namespace
}  // namespace paceline::test
