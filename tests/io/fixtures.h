// What the tests of this folder share.
#pragma once

#include <gtest/gtest.h>

#include <paceline/image.h>
#include <paceline/manifest.h>

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

namespace paceline::test {

// A folder that is gone after the test.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "paceline-io-XXXXXX").string();
    if (!mkdtemp(name.data())) ADD_FAILURE() << "cannot create " << name;
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::vector<std::string> files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(path_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_all(const std::string& path, const std::string& bytes) {
  std::filesystem::remove(path);  // truncating instead would wait for the disk
  std::ofstream(path, std::ios::binary) << bytes;
}

inline void flip_bit(const std::string& path, std::size_t byte, int bit = 3) {
  std::string bytes = read_all(path);
  bytes.at(byte) = static_cast<char>(bytes.at(byte) ^ (1 << bit));
  write_all(path, bytes);
}

// A seed that the test prints; PACELINE_TEST_SEED repeats a run.
inline std::uint64_t test_seed() {
  const char* given = std::getenv("PACELINE_TEST_SEED");
  const std::uint64_t seed = given ? std::strtoull(given, nullptr, 10) : std::random_device()();
  std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
  return seed;
}

// The message of the error that `call` throws; empty where it throws none.
template <class Expected, class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const Expected& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error of the expected kind";
  return "";
}

// `count` grey images of 3 x 2 pixels; image i has label i % 10, id i and the pixels of i in base 256.
inline std::string write_data_set(const TemporaryFolder& folder, int count, int shards,
                                  const std::string& name = "set") {
  DatasetWriter writer(folder / name, shards);
  ImageCodec codec;
  for (int i = 0; i < count; ++i) {
    Image image{2, 3, 1, {0, 0, 0, 0, 0, 0}};
    image.pixels[0] = static_cast<std::uint8_t>(i);
    image.pixels[1] = static_cast<std::uint8_t>(i >> 8);
    const float label = static_cast<float>(i % 10);
    const std::string bytes = codec.encode(image, ImageEncoding::kRaw);
    writer.write(((i + 1) * shards - 1) / count, i,
                 pack_image_record({&label, 1}, static_cast<std::uint64_t>(i), bytes));
  }
  Manifest manifest;
  manifest.encoding = "raw";
  manifest.image = {2, 3, 1};
  return writer.finish(manifest);
}

}  // namespace paceline::test
