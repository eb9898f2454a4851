// Gives every file of corpus/NAME to the fuzzer NAME, once. The files are inputs of every kind, and those that have
// shown a defect.

#include <gtest/gtest.h>
#include <paceline/log.h>
#include <support/paths.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>

#include "fuzzers.h"

namespace paceline::fuzz {
namespace {

namespace fs = std::filesystem;

fs::path corpus() { return fs::path(test::source_dir()) / "tests/fuzz/corpus"; }

class Corpus : public testing::TestWithParam<Fuzzer> {
 protected:
  // Refusals are logged, and there are many.
  void SetUp() override { FLAGS_minloglevel = google::GLOG_FATAL; }
  void TearDown() override { FLAGS_minloglevel = google::GLOG_INFO; }
};

TEST_P(Corpus, is_refused_or_read_as_it_was_meant) {
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(corpus() / GetParam().name)) files.insert(entry.path());
  EXPECT_FALSE(files.empty());
  for (const fs::path& path : files) {
    std::ifstream file(path, std::ios::binary);
    const std::string input{std::istreambuf_iterator<char>(file), {}};
    std::cout << path.lexically_relative(corpus()).string() << std::endl;  // the last line before a crash
    EXPECT_NO_THROW(GetParam().run(input)) << path;
  }
}

INSTANTIATE_TEST_SUITE_P(Fuzz, Corpus, testing::ValuesIn(fuzzers()),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

TEST(Corpora, belong_to_fuzzers) {
  std::set<std::string> known;
  for (const Fuzzer& fuzzer : fuzzers()) known.insert(fuzzer.name);
  for (const auto& entry : fs::directory_iterator(corpus())) EXPECT_TRUE(known.count(entry.path().filename())) << entry;
}

}  // namespace
}  // namespace paceline::fuzz
