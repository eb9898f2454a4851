#include <paceline/crc32c.h>
#include <paceline/detail/array_file.h>
#include <paceline/detail/atomic_file.h>
#include <paceline/detail/host_name.h>
#include <paceline/ndarray.h>

#include <gmock/gmock.h>

#include <fcntl.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <random>
#include <sstream>
#include <thread>

namespace {

// Temporary files have other inode numbers by their names than by their descriptors.
std::atomic<bool> unsteady = false;

}  // namespace

// In the place of the C library's, in this program.
extern "C" int stat(const char* path, struct stat* status) noexcept {
  const int result = fstatat(AT_FDCWD, path, status, 0);
  if (result == 0 && unsteady && std::strstr(path, ".tmp")) ++status->st_ino;
  return result;
}

namespace paceline {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class FilesTest : public ::testing::Test {
 protected:
  FilesTest() {
    std::string name = (std::filesystem::temp_directory_path() / "paceline_files_XXXXXX").string();
    folder_ = ::mkdtemp(name.data());
  }
  ~FilesTest() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "file") const { return folder_ + "/" + name; }
  std::size_t files() const {
    return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }

  std::vector<std::string> temporary_files() const {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      if (entry.path().filename().string().starts_with("file.tmp")) paths.push_back(entry.path().string());
    std::ranges::sort(paths);
    return paths;
  }

  std::string write(const std::string& bytes) const {
    std::filesystem::remove(path());  // some file systems write a truncated file through to the disk
    std::ofstream(path(), std::ios::binary) << bytes;
    return path();
  }
  static std::string read(const std::string& path) {
    std::ostringstream bytes;
    bytes << std::ifstream(path, std::ios::binary).rdbuf();
    return bytes.str();
  }

 private:
  std::string folder_;
};

std::string from_hex(const std::string& text) {
  std::string bytes;
  std::istringstream words(text);
  for (std::string word; words >> word;) bytes += static_cast<char>(std::stoi(word, nullptr, 16));
  return bytes;
}

// A list around one block: the magic number, the block, no names.
std::string list_of(const std::string& block) {
  const std::string zero(8, '\0');
  return from_hex("12 01 00 00 00 00 00 00") + zero + from_hex("01 00 00 00 00 00 00 00") + block + zero;
}

template <class Load>
std::string failure_of(const Load& load) {
  try {
    load();
  } catch (const Corrupt& error) {
    return std::string("Corrupt: ") + error.what();
  } catch (const NotAvailable& error) {
    return std::string("NotAvailable: ") + error.what();
  } catch (const IoError& error) {
    return std::string("IoError: ") + error.what();
  } catch (const InvalidArgument& error) {
    return std::string("InvalidArgument: ") + error.what();
  }
  return "nothing was thrown";
}

// What MXNet writes for {"arg:w": [[1, 2, 3], [4, 5, 6]]}.
const char* const kNamedList =
    "12 01 00 00 00 00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 c9 fa 93 f9 00 00 00 00 "
    "02 00 00 00 02 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 "
    "00 00 80 3f 00 00 00 40 00 00 40 40 00 00 80 40 00 00 a0 40 00 00 c0 40 01 00 00 00 00 00 00 00 "
    "05 00 00 00 00 00 00 00 61 72 67 3a 77";

TEST_F(FilesTest, ParamsAreMXNetsBytes) {
  const NDArray w = NDArray::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  save_params(path(), {{"arg:w", w}});
  EXPECT_EQ(read(path()), from_hex(kNamedList));
  const NamedArrays loaded = load_params(path());
  ASSERT_EQ(loaded.size(), 1u);
  EXPECT_EQ(loaded[0].first, "arg:w");
  EXPECT_EQ(loaded[0].second.describe(), "float32 (2, 3) on cpu");
  EXPECT_EQ(loaded[0].second.to_vector<float>(), w.to_vector<float>());

  save_params(path(), {{"", NDArray::full({}, 7)}});
  EXPECT_EQ(read(path()), list_of(from_hex("ca fa 93 f9 00 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 "
                                           "00 00 e0 40")));
  save_params(path(), {});
  EXPECT_EQ(read(path()), from_hex("12 01 00 00 00 00 00 00") + std::string(24, '\0'));
  EXPECT_TRUE(load_params(path()).empty());
}

TEST_F(FilesTest, ReadsEveryVersionOfParams) {
  const char* const blocks[] = {
      "c8 fa 93 f9 01 00 00 00 02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 80 3f 00 00 00 40",
      "01 00 00 00 02 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 00 00 80 3f 00 00 00 40",
      ("c9 fa 93 f9 00 00 00 00 01 00 00 00 02 00 00 00 00 00 00 00 02 00 00 00 03 00 00 00 00 00 00 00 "
       "00 00 80 3f 00 00 00 40")};
  for (const char* block : blocks) {
    const NamedArrays loaded = load_params(write(list_of(from_hex(block))));
    ASSERT_EQ(loaded.size(), 1u);
    EXPECT_EQ(loaded[0].first, "");
    EXPECT_THAT(loaded[0].second.to_vector<float>(), ElementsAre(1, 2));
  }
  for (const char* none : {"00 00 00 00", "c8 fa 93 f9 00 00 00 00", "c9 fa 93 f9 00 00 00 00 00 00 00 00",
                           "ca fa 93 f9 00 00 00 00 ff ff ff ff"})
    EXPECT_TRUE(load_params(write(list_of(from_hex(none))))[0].second.is_none()) << none;
}

NamedArrays one_of_each() {
  NamedArrays arrays;
  int i = 0;
  for (const DType dtype : {DType::kFloat32, DType::kFloat64, DType::kFloat16, DType::kBfloat16, DType::kUint8,
                            DType::kInt8, DType::kInt32, DType::kInt64, DType::kBool}) {
    arrays.emplace_back("arg:" + name_of(dtype), NDArray::full({2, 3}, dtype == DType::kBool ? 1 : ++i, dtype));
    arrays.emplace_back("scalar." + name_of(dtype), NDArray::full({}, dtype == DType::kBool ? 0 : ++i, dtype));
    arrays.emplace_back("empty." + name_of(dtype), NDArray::zeros({3, 0, 2}, dtype));
  }
  arrays.emplace_back("view \"\\ \n\xc3\xa9", NDArray::from<float>({1, 2, 3, 4, 5, 6}, {2, 3}).permute({1, 0}));
  arrays.emplace_back("elsewhere", NDArray::full({5}, 3, DType::kFloat32, Device("sim:1")).narrow(0, 1, 3));
  return arrays;
}

void expect_same(const NamedArrays& loaded, const NamedArrays& expected) {
  ASSERT_EQ(loaded.size(), expected.size());
  for (const auto& [name, array] : expected) {
    const auto found = std::ranges::find(loaded, name, &std::pair<std::string, NDArray>::first);
    ASSERT_NE(found, loaded.end()) << name;
    EXPECT_EQ(found->second.dtype(), array.dtype());
    EXPECT_EQ(found->second.shape(), array.shape());
    EXPECT_EQ(found->second.to_vector<double>(), array.to_vector<double>()) << name;
  }
}

TEST_F(FilesTest, EveryTypeComesBack) {
  const NamedArrays arrays = one_of_each();
  save_params(path(), arrays);
  expect_same(load_params(path()), arrays);
  const std::vector<std::pair<std::string, std::string>> metadata{{"epoch", "3"}, {"format", "paceline"}};
  save_safetensors(path(), arrays, metadata);
  std::vector<std::pair<std::string, std::string>> loaded;
  expect_same(load_safetensors(path(), &loaded), arrays);
  EXPECT_EQ(loaded, metadata);
  EXPECT_EQ(files(), 1u);
}

TEST_F(FilesTest, AsManyAxesAsAnArrayMayHaveComeBack) {
  const NamedArrays arrays{{"deep", NDArray::from<float>({1, 2}, {1, 1, 1, 2, 1, 1, 1, 1})}};
  save_params(path(), arrays);
  expect_same(load_params(path()), arrays);
}

TEST_F(FilesTest, SafetensorsAreTheLibrarysBytes) {
  // The file without checksums, as the library writes it, and with them, from another implementation of CRC-32C; the
  // library reads both.
  const NDArray attention = NDArray::from<float>({0, 1, 2, 3, 4, 5}, {1, 1, 2, 3});
  const std::string data = from_hex("00 00 00 00 00 00 80 3f 00 00 00 40 00 00 40 40 00 00 80 40 00 00 a0 40");
  const std::string entry = R"("attn0":{"dtype":"F32","shape":[1,1,2,3],"data_offsets":[0,24]}})";
  save_safetensors(path(), {{"attn0", attention}});
  EXPECT_EQ(read(path()), from_hex("80 00 00 00 00 00 00 00") +
                              R"({"__metadata__":{"crc32c":"8973ca30","crc32c:attn0":"78743a5d"},)" + entry + data);
  std::vector<std::pair<std::string, std::string>> metadata{{"left", "over"}};
  expect_same(load_safetensors(path(), &metadata), {{"attn0", attention}});
  EXPECT_TRUE(metadata.empty());
  expect_same(load_safetensors(write(from_hex("48 00 00 00 00 00 00 00") + "{" + entry + "       " + data)),
              {{"attn0", attention}});
  save_safetensors(path(), {});
  EXPECT_EQ(read(path()), from_hex("28 00 00 00 00 00 00 00") + R"({"__metadata__":{"crc32c":"a1164111"}}  )");
  EXPECT_TRUE(load_safetensors(path()).empty());

  save_safetensors(path(), {{"b", NDArray::zeros({1}, DType::kFloat32)},
                            {"flag", NDArray::zeros({1}, DType::kBool)},
                            {"a", NDArray::zeros({1}, DType::kFloat32)},
                            {"step", NDArray::zeros({1}, DType::kInt64)}});
  std::string order;
  for (const auto& [name, array] : load_safetensors(path())) order += name + " ";
  EXPECT_EQ(order, "step a b flag ");
}

// As MXNet 1.9.1 writes them: row_sparse of rows 0 and 3 of four, csr of two rows.
const char* const kRowSparse =
    "c9 fa 93 f9 01 00 00 00 02 00 00 00 02 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 02 00 00 00 04 00 00 00 "
    "00 00 00 00 02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 06 00 00 00 01 00 00 00 02 00 00 00 "
    "00 00 00 00 00 00 80 3f 00 00 00 40 00 00 40 40 00 00 80 40 00 00 00 00 00 00 00 00 03 00 00 00 00 00 00 00";
const char* const kCsr =
    "c9 fa 93 f9 02 00 00 00 01 00 00 00 03 00 00 00 00 00 00 00 02 00 00 00 02 00 00 00 00 00 00 00 03 00 00 00 "
    "00 00 00 00 01 00 00 00 00 00 00 00 00 00 00 00 06 00 00 00 01 00 00 00 03 00 00 00 00 00 00 00 06 00 00 00 "
    "01 00 00 00 03 00 00 00 00 00 00 00 00 00 80 3f 00 00 00 40 00 00 40 40 00 00 00 00 00 00 00 00 02 00 00 00 "
    "00 00 00 00 03 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 02 00 00 00 00 00 00 00 01 00 00 00 00 00 00 00";

TEST_F(FilesTest, SparseArraysBecomeDense) {
  const NamedArrays rows = load_params(write(list_of(from_hex(kRowSparse))));
  EXPECT_EQ(rows.at(0).second.describe(), "float32 (4, 2) on cpu");
  EXPECT_EQ(rows[0].second.to_vector<float>(), (std::vector<float>{1, 2, 0, 0, 0, 0, 3, 4}));
  const NamedArrays csr = load_params(write(list_of(from_hex(kCsr))));
  EXPECT_EQ(csr.at(0).second.describe(), "float32 (2, 3) on cpu");
  EXPECT_EQ(csr[0].second.to_vector<float>(), (std::vector<float>{1, 0, 2, 0, 3, 0}));
}

// Whatever stands in them, sparse arrays load or fail with a typed error.
TEST_F(FilesTest, DamagedSparseArraysAreNamed) {
  for (const char* const block : {kRowSparse, kCsr}) {
    const std::string good = list_of(from_hex(block));
    for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
      std::string bytes = good;
      bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
      try {
        load_params(write(bytes));
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), testing::AnyOf(StartsWith(path() + ", offset "), StartsWith("no memory is left")))
            << bit;
      }
    }
  }
  std::string bytes = list_of(from_hex(kRowSparse));
  bytes[24 + 100] = 4;  // the second row's number
  EXPECT_THAT(failure_of([&] { load_params(write(bytes)); }),
              HasSubstr("places of a sparse array do not fit its shape"));
}

TEST_F(FilesTest, BlocksOfAFileHaveOneVersion) {
  save_params(path(), {{"a", NDArray::full({2}, 1)}, {"b", NDArray::full({}, 7)}});
  const std::string bytes = read(path());
  EXPECT_EQ(bytes.substr(24, 4), from_hex("ca fa 93 f9"));
  EXPECT_EQ(bytes.find(from_hex("c9 fa 93 f9")), std::string::npos);
  EXPECT_EQ(load_params(path()).at(0).second.to_vector<float>(), (std::vector<float>{1, 1}));
}

TEST_F(FilesTest, DamageIsNamedWithFileAndOffset) {
  const std::string good = from_hex(kNamedList);
  const auto message = [&](const std::string& bytes) { return failure_of([&] { load_params(write(bytes)); }); };
  const auto with = [&](std::size_t at, std::uint8_t byte) {
    std::string bytes = good;
    bytes[at] = static_cast<char>(byte);
    return bytes;
  };
  for (std::size_t length = 0; length < good.size(); ++length)
    EXPECT_THAT(message(good.substr(0, length)), StartsWith("Corrupt: " + path() + ", offset ")) << length;
  EXPECT_THAT(message(good + "x"), HasSubstr("offset 109: 1 bytes follow"));
  EXPECT_THAT(message(with(0, 0x13)), HasSubstr("not a list of MXNet arrays"));
  EXPECT_THAT(message(with(24, 0xcb)), HasSubstr("no array begins with"));
  EXPECT_THAT(message(with(32, 40)), HasSubstr("an array of 40 dimensions"));
  EXPECT_THAT(message(with(43, 0x7f)), HasSubstr("larger than what is left"));
  EXPECT_THAT(message(with(43, 0xff)), HasSubstr("a dimension of"));
  EXPECT_THAT(message(with(60, 13)), HasSubstr("unknown element type 13"));
  EXPECT_THAT(message(with(60, 9)), StartsWith("NotAvailable"));
  EXPECT_THAT(message(with(52, 9)), HasSubstr("unknown kind of device 9"));
  EXPECT_THAT(message(with(28, 3)), HasSubstr("unknown kind of storage 3"));
  EXPECT_THAT(message(with(88, 2)), HasSubstr("2 names for 1 arrays"));
  EXPECT_THAT(message(with(103, 1)), HasSubstr("longer than what is left"));
  EXPECT_THAT(message(with(23, 0x7f)), HasSubstr("do not fit into the file"));
  EXPECT_THAT(message("PK\3\4 and so on"), HasSubstr("NumPy"));
  EXPECT_THAT(failure_of([&] { load_params(path("missing")); }), StartsWith("IoError: cannot open " + path("missing")));
  EXPECT_THAT(failure_of([&] { load_params("/"); }), StartsWith("IoError"));
}

std::string safetensors(const std::string& header, std::size_t data_bytes) {
  const std::uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), 8) + header + std::string(data_bytes, '\0');
}

TEST_F(FilesTest, SafetensorsKeepTheRules) {
  const auto message = [&](const std::string& header, std::size_t bytes) {
    return failure_of([&] { load_safetensors(write(safetensors(header, bytes))); });
  };
  const std::string a = R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]})";
  EXPECT_EQ(message("{" + a + "}", 8), "nothing was thrown");
  EXPECT_EQ(message("{" + a + R"(,"b":{"dtype":"U8","shape":[],"data_offsets":[8,9]}})", 9), "nothing was thrown");
  EXPECT_THAT(message("{" + a + "}", 9), HasSubstr("describes 8 bytes of data, the file has 9"));
  EXPECT_THAT(message("{" + a + "}", 7), StartsWith("Corrupt: " + path()));
  EXPECT_THAT(message("{" + a + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[9,10]}})", 10),
              HasSubstr("'b' does not begin where"));
  EXPECT_THAT(message("{" + a + R"(,"b":{"dtype":"U8","shape":[1],"data_offsets":[7,8]}})", 8),
              HasSubstr("'b' does not begin where"));
  EXPECT_THAT(message("{" + a + "," + a + "}", 8), HasSubstr("the key \"a\" twice"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8),
              HasSubstr("do not fit its shape"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}})", 8), HasSubstr("no count"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[1e3],"data_offsets":[0,8]}})", 8), HasSubstr("no count"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})", 0),
              HasSubstr("do not fit its shape"));
  EXPECT_THAT(message(R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", 8), HasSubstr("unknown dtype"));
  EXPECT_THAT(message(R"({"a":{"dtype":"U16","shape":[4],"data_offsets":[0,8]}})", 8), StartsWith("NotAvailable"));
  EXPECT_THAT(message(R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1),
              StartsWith("NotAvailable"));
  EXPECT_THAT(message(R"({"a":{"shape":[2],"data_offsets":[0,8]}})", 8), HasSubstr("entry for 'a'"));
  EXPECT_THAT(message(R"({"__metadata__":{"k":1}})", 0), HasSubstr("metadata 'k' is not a text"));
  EXPECT_THAT(message("[]", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(message("", 0), HasSubstr("does not begin with '{'"));
  EXPECT_THAT(message("{\"a\":", 0), HasSubstr("not JSON"));
  EXPECT_THAT(message("{\"a\":" + std::string(100000, '['), 0), HasSubstr("nested too deeply"));
  EXPECT_THAT(message(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2), HasSubstr("nothing"));
  std::string bad_bool = safetensors(R"({"a":{"dtype":"BOOL","shape":[2],"data_offsets":[0,2]}})", 2);
  bad_bool.back() = 2;
  EXPECT_THAT(failure_of([&] { load_safetensors(write(bad_bool)); }), HasSubstr("a bool of value 2"));
  EXPECT_THAT(failure_of([&] { load_safetensors(write(std::string(8, '\xff') + "{}")); }), HasSubstr("a header of"));
}

// A damaged header, also where only its first bytes are known.
TEST_F(FilesTest, TheMetadataOfADamagedHeaderThrowWhatLoadingThrows) {
  const std::string name(300 << 10, 'n');
  save_safetensors(path(), {{name, NDArray::zeros({2})}}, {{"epoch", "3"}});
  const std::string good = read(path());
  const auto expect_same = [&](const std::string& bytes) {
    write(bytes);
    const std::string expected = failure_of([&] { load_safetensors(path()); });
    for (const std::size_t known : {detail::kFormatBytes, std::size_t{256} << 10}) {
      for (const bool with_size : {true, false}) {
        auto start = detail::read_start(path(), known).value();
        if (!with_size) start.size.reset();
        EXPECT_EQ(failure_of([&] { detail::safetensors_metadata(path(), start); }), expected) << known;
      }
    }
    return expected;
  };
  EXPECT_EQ(expect_same(good), "nothing was thrown");
  const auto with = [&](std::size_t at, char byte) {
    std::string bytes = good;
    bytes[at] = byte;
    return bytes;
  };
  EXPECT_THAT(expect_same(with(8, 'x')), HasSubstr("the header does not begin with '{'"));
  EXPECT_THAT(expect_same(with(9, 'x')), HasSubstr("the header is not JSON"));
  EXPECT_THAT(expect_same(with(8 + (280 << 10), 'x')), HasSubstr("the header is damaged"));
  EXPECT_THAT(expect_same(with(7, '\1')), HasSubstr("are allowed"));
  EXPECT_THAT(expect_same(with(3, '\1')), HasSubstr("longer than what is left"));
  EXPECT_THAT(expect_same(good.substr(0, 290 << 10)), HasSubstr("longer than what is left"));
  EXPECT_THAT(expect_same("12345"), HasSubstr("the file ends here"));
  EXPECT_THAT(expect_same(""), HasSubstr("the file ends here"));
}

// Every bit of a small file, each flipped alone: none of them loads.
TEST_F(FilesTest, NoFlippedBitOfSafetensorsLoads) {
  save_safetensors(path(), {{"a", NDArray::from<float>({1, 2, 3}, {3})}, {"b", NDArray::full({2}, 1, DType::kBool)}},
                   {{"epoch", "3"}});
  const std::string good = read(path());
  for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bytes = good;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << bit % 8));
    EXPECT_NE(failure_of([&] { load_safetensors(write(bytes)); }), "nothing was thrown") << bit;
  }
  std::string damaged = good;
  damaged[good.size() - 4] = static_cast<char>(damaged[good.size() - 4] ^ 1);
  EXPECT_THAT(failure_of([&] { load_safetensors(write(damaged)); }), HasSubstr("the data of 'a' are damaged"));
  damaged = good;
  damaged[good.find("epoch")] = 'a';
  EXPECT_THAT(failure_of([&] { load_safetensors(write(damaged)); }),
              HasSubstr("the header is damaged, or another program changed it"));
}

TEST_F(FilesTest, RefusesWhatAFileCannotHold) {
  const NDArray x = NDArray::zeros({1});
  write("old");
  EXPECT_THROW(save_params(path(), {{"a", NDArray()}}), InvalidArgument);
  EXPECT_THROW(save_params(path(), {{std::string("a\0b", 3), x}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path(), {{"a", NDArray()}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path(), {{"a", x}, {"a", x}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path(), {{"__metadata__", x}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path(), {{"\xff\xfe", x}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path(), {{"a", x}}, {{"k", "1"}, {"k", "2"}}), InvalidArgument);
  EXPECT_THROW(save_safetensors(path(), {{"a", x}}, {{"crc32c:a", "00000000"}}), InvalidArgument);
  EXPECT_EQ(read(path()), "old");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FilesTest, AFullDiskLeavesTheOldFile) {
  const NamedArrays small{{"a", NDArray::full({4}, 1)}};
  const NamedArrays large{{"a", NDArray::zeros({100000})}};
  save_params(path(), small);
  const std::string before = read(path());
  struct rlimit old {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old), 0);
  struct rlimit tight = old;
  tight.rlim_cur = 65536;
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &tight), 0);
  const std::string params = failure_of([&] { save_params(path(), large); });
  const std::string tensors = failure_of([&] { save_safetensors(path(), large); });
  ::setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_THAT(params, StartsWith("IoError: cannot write " + path()));
  EXPECT_THAT(tensors, StartsWith("IoError: cannot write " + path()));
  EXPECT_EQ(read(path()), before);
  EXPECT_EQ(files(), 1u);
  EXPECT_THAT(failure_of([&] { save_params(path("no/such/folder"), small); }), StartsWith("IoError: cannot create"));
  EXPECT_THAT(failure_of([&] { save_params("/dev/full", small); }), HasSubstr("not a regular file"));
}

TEST_F(FilesTest, AFailureBeforeTheEndLeavesTheOldFile) {
  write("old");
  {
    detail::AtomicFile file(path());
    file.write("new", 3);
    EXPECT_EQ(files(), 2u);
  }
  EXPECT_EQ(read(path()), "old");
  EXPECT_EQ(files(), 1u);
  std::filesystem::permissions(path(), std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  detail::AtomicFile file(path());
  file.write("new", 3);
  file.commit();
  EXPECT_EQ(read(path()), "new");
  EXPECT_EQ(std::filesystem::status(path()).permissions(),
            std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
}

// Begins to write a file twice, in a process that is killed then. Returns whether it was.
bool killed_while_it_writes(const std::string& path) {
  const pid_t child = ::fork();
  if (child == 0) {
    detail::AtomicFile file(path), another(path);
    file.write("half", 4);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFSIGNALED(status);
}

TEST_F(FilesTest, WhatAKilledProcessLeftGoesWithTheNextFile) {
  write("old");
  for (const char* const next : {"new", "newer"}) {
    ASSERT_TRUE(killed_while_it_writes(path()));
    EXPECT_EQ(files(), 3u);
    detail::AtomicFile::write_text(path(), next);
    EXPECT_EQ(read(path()), next);
    EXPECT_EQ(files(), 1u);
  }
}

// Numbers that are missing, or in use, do not hide the left files behind them.
TEST_F(FilesTest, WhatWasLeftBehindAGapGoesToo) {
  write("old");
  const detail::AtomicFile first(path());
  const std::string name = temporary_files().at(0);
  const std::string names = name.substr(0, name.size() - 1);  // without the number
  ASSERT_EQ(name, names + "0");
  auto second = std::make_unique<detail::AtomicFile>(path());
  EXPECT_EQ(temporary_files().back(), names + "1");
  for (const char* left : {"3", "7", "15"}) std::ofstream(names + left) << "half";
  std::ofstream(path("file.tmp123_0")) << "of an older version";
  detail::AtomicFile::write_text(path(), "new");
  EXPECT_THAT(temporary_files(), ::testing::UnorderedElementsAre(names + "0", names + "1", path("file.tmp123_0")));
  second.reset();
  std::ofstream(names + "2") << "half";
  detail::AtomicFile::write_text(path(), "newer");
  EXPECT_THAT(temporary_files(), ::testing::UnorderedElementsAre(names + "0", path("file.tmp123_0")));
}

// Two hosts may have one name, and not see each other's locks.
TEST_F(FilesTest, AFileThatAnotherProcessTookIsNotRenamed) {
  write("old");
  std::string temporary;
  {
    detail::AtomicFile file(path());
    file.write("new", 3);
    temporary = temporary_files().at(0);
    std::filesystem::rename(temporary, path("kept"));  // else the new file could have its number
    std::ofstream(temporary) << "half";
    EXPECT_EQ(failure_of([&] { file.commit(); }),
              "IoError: cannot rename " + temporary + " to replace " + path() +
                  ": another process took the temporary file; let one process at a time write this path");
  }
  EXPECT_EQ(read(path()), "old");
  EXPECT_EQ(read(temporary), "half");
  detail::AtomicFile file(path());
  std::filesystem::remove(temporary_files().at(0));
  EXPECT_THAT(failure_of([&] { file.commit(); }), HasSubstr("another process took"));
  EXPECT_EQ(read(path()), "old");
}

TEST_F(FilesTest, TemporaryNamesTellBootsOfHostsApart) {
  std::string boot;  // empty where the system does not tell it
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  char expected[16];
  std::snprintf(expected, sizeof expected, ".tmp%08x_", crc32c(detail::host_name() + '\n' + boot));
  const detail::AtomicFile file(path());
  EXPECT_THAT(temporary_files(), ElementsAre(HasSubstr(expected)));
}

TEST_F(FilesTest, AFileSystemWithoutSteadyInodeNumbersIsRefused) {
  write("old");
  unsteady = true;
  const std::string failure = failure_of([&] { detail::AtomicFile::write_text(path(), "new"); });
  unsteady = false;
  EXPECT_THAT(failure, StartsWith("IoError: cannot create " + path() + ".tmp"));
  EXPECT_THAT(failure, HasSubstr("10 new files lost their name at once"));
  EXPECT_EQ(read(path()), "old");
  detail::AtomicFile::write_text(path(), "new");
  EXPECT_EQ(files(), 1u);
}

// While it exists, the calling thread obeys the modes of files, even as root.
class WithoutOverride {
 public:
  WithoutOverride() {
    ::syscall(SYS_capget, &header_, before_.data());
    auto now = before_;
    now[0].effective &= ~(1u << CAP_DAC_OVERRIDE | 1u << CAP_DAC_READ_SEARCH);
    ::syscall(SYS_capset, &header_, now.data());
  }
  ~WithoutOverride() { ::syscall(SYS_capset, &header_, before_.data()); }

 private:
  __user_cap_header_struct header_{_LINUX_CAPABILITY_VERSION_3, 0};
  std::array<__user_cap_data_struct, 2> before_{};
};

TEST_F(FilesTest, WhatWasLeftOfAProtectedFileGoesToo) {
  const auto mode_of = [](const std::string& path) {
    return static_cast<unsigned>(std::filesystem::status(path).permissions());
  };
  write("old");
  std::filesystem::permissions(path(), std::filesystem::perms(0444));
  const WithoutOverride obeys;
  const mode_t before = ::umask(0777);
  const bool killed = killed_while_it_writes(path()) && killed_while_it_writes(path("another"));
  const std::size_t left = files();
  const unsigned mode_of_left = mode_of(temporary_files().at(0));
  const std::string failure = failure_of([&] {
    detail::AtomicFile::write_text(path(), "new");
    detail::AtomicFile::write_text(path("another"), "new");
  });
  ::umask(before);
  EXPECT_TRUE(killed);
  EXPECT_EQ(left, 5u);
  EXPECT_EQ(mode_of_left, 0600u);
  EXPECT_EQ(failure, "nothing was thrown");
  EXPECT_EQ(read(path()), "new");
  EXPECT_EQ(mode_of(path()), 0444u);
  EXPECT_EQ(mode_of(path("another")), 0u);
  EXPECT_EQ(files(), 2u);
}

TEST_F(FilesTest, AFileThatIsBeingWrittenIsNotTakenForALeftOne) {
  detail::AtomicFile first(path()), second(path());
  first.write("first", 5);
  second.write("second", 6);
  detail::AtomicFile::write_text(path(), "third");
  EXPECT_EQ(files(), 3u);
  second.commit();
  EXPECT_EQ(read(path()), "second");
  first.commit();
  EXPECT_EQ(read(path()), "first");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FilesTest, ManyMayWriteAFileAtTheSameTime) {
  constexpr int kThreads = 4, kTimes = 50;
  std::vector<std::string> failures(kThreads);
  std::vector<std::thread> threads;
  for (std::string& failure : failures)
    threads.emplace_back([&] {
      failure = failure_of([&] {
        for (int i = 0; i < kTimes; ++i) detail::AtomicFile::write_text(path(), "whole");
      });
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(failures, ::testing::Each("nothing was thrown"));
  EXPECT_EQ(read(path()), "whole");
  EXPECT_EQ(files(), 1u);
}

TEST_F(FilesTest, ANewFileHasThePermissionsOfTheOldOneWhateverTheUmask) {
  write("old");
  constexpr auto kShared = static_cast<std::filesystem::perms>(0664);
  std::filesystem::permissions(path(), kShared);
  const mode_t before = ::umask(022);
  detail::AtomicFile::write_text(path(), "new");
  ::umask(before);
  EXPECT_EQ(read(path()), "new");
  EXPECT_EQ(std::filesystem::status(path()).permissions(), kShared);
}

// A daemon may have closed its standard input: the next file is number 0.
TEST_F(FilesTest, AFileMayHaveTheNumberOfTheStandardInput) {
  write("old");
  const int input = ::dup(STDIN_FILENO);
  ::close(STDIN_FILENO);
  errno = EEXIST;  // from whatever was done before
  const std::string failure = failure_of([&] { detail::AtomicFile::write_text(path(), "new"); });
  const bool closed = ::fcntl(STDIN_FILENO, F_GETFD) == -1;
  if (input >= 0) ::dup2(input, STDIN_FILENO), ::close(input);
  EXPECT_EQ(failure, "nothing was thrown");
  EXPECT_TRUE(closed) << "a file or folder was left open";
  EXPECT_EQ(read(path()), "new");
  EXPECT_EQ(files(), 1u);
}

// The same file as other programs write it: what is damaged there can load.
void write_without_checksums(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  std::string bytes = text.str();
  std::uint64_t length = 0;
  std::memcpy(&length, bytes.data(), sizeof length);
  const std::size_t begin = bytes.find(R"("crc32c":)"), end = bytes.find(R"("epoch")");
  bytes.erase(begin, end - begin);
  length -= end - begin;
  std::memcpy(bytes.data(), &length, sizeof length);
  std::ofstream(path, std::ios::binary) << bytes;
}

// Whatever the bytes, loading ends in arrays or in one of our errors.
TEST_F(FilesTest, SurvivesRandomDamage) {
  constexpr std::uint64_t kSeed = 20240607;
  RecordProperty("seed", std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  const NamedArrays arrays = one_of_each();
  save_params(path("params"), arrays);
  save_safetensors(path("tensors"), arrays, {{"epoch", "3"}});
  write_without_checksums(path("tensors"));
  int loaded = 0;
  int refused = 0;
  std::int64_t sum = 0;
  for (const char* kind : {"params", "tensors"}) {
    const std::string good = read(path(kind));
    for (int i = 0; i < 3000; ++i) {
      std::string bytes = good;
      for (std::uint64_t edits = 1 + random() % 4; edits > 0; --edits) {
        // Mostly near the front, where the headers are.
        const std::size_t at = random() % (random() % 2 ? bytes.size() : std::min<std::size_t>(bytes.size(), 200));
        switch (random() % 5) {
          case 0: bytes[at] = static_cast<char>(bytes[at] ^ (1 << random() % 8)); break;
          case 1: bytes[at] = static_cast<char>(random()); break;
          case 2: bytes.resize(at + 1); break;
          case 3: bytes.erase(at, random() % 16); break;
          default: bytes.insert(at, std::string(random() % 16, static_cast<char>(random()))); break;
        }
        if (bytes.empty()) bytes = "{";
      }
      write(bytes);
      try {
        const NamedArrays result = *kind == 'p' ? load_params(path()) : load_safetensors(path());
        for (const auto& [name, array] : result) {
          if (array.is_none()) continue;
          const auto* bytes_of_array = static_cast<const unsigned char*>(array.data());
          sum += std::accumulate(bytes_of_array, bytes_of_array + array.bytes(), 0);
        }
        ++loaded;
      } catch (const Corrupt&) {
        ++refused;
      } catch (const NotAvailable&) {
        ++refused;
      }
    }
  }
  EXPECT_GT(loaded, 10);
  EXPECT_GT(sum, 0);
  EXPECT_GT(refused, 3000);
}

}  // namespace
}  // namespace paceline
