#include <paceline/error.h>
#include <paceline/libsvm.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

namespace paceline {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string written(const std::string& text) {
  const std::string path =
      testing::TempDir() + "paceline_" + testing::UnitTest::GetInstance()->current_test_info()->name();
  std::ofstream(path) << text;
  return path;
}

TEST(Libsvm, ReadsLabelsAndFeatures) {
  const SparseExamples examples =
      load_libsvm(written("+1 1:0.5 3:-2e1 # a comment\n"
                          "\n"
                          "-1\r\n"
                          "  0.25\t4:1   2:+7"));
  EXPECT_EQ(examples.data.shape, (Shape{3, 4}));
  EXPECT_THAT(examples.label.to_vector<float>(), ElementsAre(1, -1, 0.25));
  EXPECT_THAT(examples.data.starts.to_vector<std::int64_t>(), ElementsAre(0, 2, 2, 4));
  EXPECT_THAT(examples.data.columns.to_vector<std::int64_t>(), ElementsAre(0, 2, 3, 1));
  EXPECT_THAT(examples.data.values.to_vector<float>(), ElementsAre(0.5, -20, 1, 7));
}

TEST(Libsvm, NumbersTooSmallForAFloatAreZero) {
  const SparseExamples examples = load_libsvm(written("1e-60 1:1e-50 2:-4.9e-324 3:1e-40"));
  EXPECT_THAT(examples.label.to_vector<float>(), ElementsAre(0));
  EXPECT_THAT(examples.data.values.to_vector<float>(), ElementsAre(0, 0, 1e-40f));
}

TEST(Libsvm, CountsFromZeroWhereAsked) {
  const std::string path = written("1 0:2\n");
  EXPECT_EQ(load_libsvm(path, {.features = 6, .from_zero = true}).data.shape, (Shape{1, 6}));
  EXPECT_THROW(load_libsvm(path), Corrupt);
}

TEST(Libsvm, NamesTheLineThatIsWrong) {
  const auto error = [](const std::string& text, const LibsvmOptions& options = {}) -> std::string {
    try {
      load_libsvm(written(text), options);
    } catch (const Corrupt& corrupt) {
      return corrupt.what();
    }
    return "";
  };
  EXPECT_THAT(error("1 1:1\nx 1:1\n"), HasSubstr(":2: 'x' is no label"));
  EXPECT_THAT(error("1 1:1 2\n"), HasSubstr(":1: '2' is no feature"));
  EXPECT_THAT(error("1 1:1 :2\n"), HasSubstr("':2' is no feature"));
  EXPECT_THAT(error("1 1:1 2:3x\n"), HasSubstr("'2:3x' is no feature"));
  for (const char* value : {"nan", "inf", "-infinity", "1e39", "-1e400"}) {
    EXPECT_THAT(error(str("1 1:", value)), HasSubstr("expected index:value with a finite value"));
    EXPECT_THAT(error(str(value, " 1:1")), HasSubstr("expected a finite number"));
  }
  EXPECT_THAT(error("1 1:1 0:2\n"), HasSubstr("index 0 is outside, expected 1 to any"));
  EXPECT_THAT(error("1 1:1 4:2\n", {.features = 3}), HasSubstr("index 4 is outside, expected 1 to 3"));
  EXPECT_THAT(error("\x1b[2J\xff 1:1\n"), HasSubstr(":1: '\\x1b[2J\\xff' is no label"));
  EXPECT_THAT(error(std::string(1000, 'a')), HasSubstr("'" + std::string(40, 'a') + "...' is no label"));
  EXPECT_THAT(error("\x1f\x8b\x08"), HasSubstr("is compressed by gzip, which is not read here; unpack it with gunzip"));
  EXPECT_THROW(load_libsvm("/nowhere/file"), IoError);
  EXPECT_THROW(load_libsvm("/dev/null"), IoError);
}

TEST(SparseIterator, DeliversEveryRowOnce) {
  std::string text;
  for (int i = 0; i < 10; ++i) {
    text += std::to_string(i);
    for (int k = 1; k <= i; ++k) text += " " + std::to_string(k) + ":" + std::to_string(10 * i + k);
    text += "\n";
  }
  SparseIterator data(load_libsvm(written(text)), {.batch = 4, .shuffle = 3});
  EXPECT_EQ(data.size(), 10);
  data.start(0);
  std::vector<std::int64_t> sizes;
  std::vector<float> labels;
  for (SparseBatch batch; data.next(batch);) {
    sizes.push_back(batch.examples);
    EXPECT_EQ(batch.data.shape, (Shape{batch.examples, 9}));
    const auto starts = batch.data.starts.to_vector<std::int64_t>(),
               columns = batch.data.columns.to_vector<std::int64_t>();
    const std::vector<float> values = batch.data.values.to_vector<float>(), own = batch.label.to_vector<float>();
    ASSERT_EQ(starts.size(), own.size() + 1);
    for (std::size_t row = 0; row < own.size(); ++row) {
      ASSERT_EQ(starts[row + 1] - starts[row], static_cast<std::int64_t>(own[row]));
      for (std::int64_t k = 0; k < static_cast<std::int64_t>(own[row]); ++k) {
        const auto at = static_cast<std::size_t>(starts[row] + k);
        EXPECT_EQ(columns[at], k);
        EXPECT_EQ(values[at], 10 * own[row] + static_cast<float>(k) + 1);
      }
    }
    labels.insert(labels.end(), own.begin(), own.end());
    data.commit(batch);
  }
  EXPECT_THAT(sizes, ElementsAre(4, 4, 2));
  EXPECT_FALSE(std::is_sorted(labels.begin(), labels.end()));
  EXPECT_THAT(labels, testing::UnorderedElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9));
  EXPECT_EQ(data.committed().text(), "0-10");
  EXPECT_FALSE(data.take_over());
}

}  // namespace
}  // namespace paceline
