// im2rec, to_rec, rec, draw_digits and kvsim as a user starts them.

#include <gmock/gmock.h>
#include <paceline/idx_file.h>
#include <paceline/image.h>
#include <paceline/manifest.h>
#include <paceline/record_loader.h>
#include <paceline/record_tools.h>
#include <support/descriptor_limit.h>
#include <support/paths.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <zlib.h>

#include <algorithm>
#include <csignal>
#include <map>

#include "../io/fixtures.h"

namespace paceline::test {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

struct Result {
  int code = -1;
  std::string output;  // standard output and error together
};

Result run(const std::string& arguments) {
  Result result;
  FILE* pipe = popen((program_dir() + "/" + arguments + " 2>&1 < /dev/null").c_str(), "r");
  if (!pipe) return result;
  char block[4096];
  for (std::size_t got = 0; (got = fread(block, 1, sizeof block, pipe)) > 0;) result.output.append(block, got);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) result.code = WEXITSTATUS(status);
  return result;
}

Image plain(int height, int width, int channels, std::uint8_t value) {
  const std::size_t size = static_cast<std::size_t>(height * width * channels);
  return {height, width, channels, std::vector<std::uint8_t>(size, value)};
}

void write_image(const std::string& path, const Image& image, ImageEncoding encoding) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_all(path, ImageCodec().encode(image, encoding));
}

// cat/0.jpg .. cat/5.jpg, dog/0.png .. dog/4.png of 12 x 10 pixels.
void write_image_folder(const TemporaryFolder& folder) {
  for (int i = 0; i < 6; ++i) {
    write_image(folder / ("images/cat/" + std::to_string(i) + ".jpg"), plain(10, 12, 3, 40), ImageEncoding::kJpeg);
  }
  for (int i = 0; i < 5; ++i) {
    write_image(folder / ("images/dog/" + std::to_string(i) + ".png"), plain(10, 12, 3, 200), ImageEncoding::kPng);
  }
}

struct Record {
  std::vector<float> labels;
  std::uint64_t id;
  Image image;
};

std::vector<Record> records_of(const std::string& manifest_path) {
  const Manifest manifest = Manifest::load(manifest_path);
  std::vector<Record> records;
  ImageCodec codec;
  std::string bytes;
  for (const Shard& shard : manifest.shards) {
    RecordReader reader(manifest.path_of(shard));
    while (reader.next(bytes)) {
      const ImageRecord view(bytes);
      Record record{{}, view.id(), {}};
      for (int i = 0; i < view.label_count(); ++i) record.labels.push_back(view.label(i));
      codec.decode(view.image(), record.image);
      records.push_back(std::move(record));
    }
  }
  return records;
}

TEST(Im2rec, PacksAnImageFolder) {
  TemporaryFolder folder;
  write_image_folder(folder);
  const Result result = run("im2rec --shards 3 " + folder / "set" + " " + folder / "images");
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("set.manifest: 11 records in 3 shards"));
  const Manifest manifest = Manifest::load(folder / "set.manifest");
  EXPECT_THAT(manifest.labels, ElementsAre("cat", "dog"));
  EXPECT_TRUE(manifest.class_labels);
  EXPECT_EQ(manifest.image, (ImageSize{10, 12, 3}));
  EXPECT_EQ(manifest.shuffle_seed, 0u);
  EXPECT_THAT(verify(folder / "set.manifest").problems, IsEmpty());
  std::map<std::uint64_t, float> labels;
  for (const Record& record : records_of(folder / "set.manifest")) {
    labels[record.id] = record.labels.at(0);
    EXPECT_NEAR(record.image.pixels[0], record.labels[0] == 0 ? 40 : 200, 2);
  }
  ASSERT_THAT(labels, SizeIs(11));
  for (const auto& [id, label] : labels) EXPECT_EQ(label, id < 6 ? 0 : 1);
}

// Packs the folder `images` into the data set `set`.
Manifest packed_images(const TemporaryFolder& folder, const std::string& flags) {
  const Result result = run("im2rec " + flags + " " + folder / "set" + " " + folder / "images");
  EXPECT_EQ(result.code, 0) << result.output;
  return Manifest::load(folder / "set.manifest");
}

TEST(Im2rec, SaysTheEncodingThatAllImagesHave) {
  TemporaryFolder folder;
  write_image_folder(folder);
  const auto encoding = [&](const std::string& arguments) { return packed_images(folder, arguments).encoding; };
  EXPECT_EQ(encoding("--shards 2"), "mixed");
  EXPECT_EQ(encoding("--encoding jpeg"), "jpg");
  std::filesystem::remove_all(folder / "images/dog");
  for (const char* arguments : {"--shards 2", "--pass_through", "--resize 5"}) EXPECT_EQ(encoding(arguments), "jpg");
  EXPECT_THAT(run("rec list " + folder / "set.manifest").output, HasSubstr("encoding     jpg"));
}

TEST(Im2rec, WarnsOfAFolderWithoutClasses) {
  TemporaryFolder folder;
  write_image_folder(folder);
  const std::string warning = " has no folders of classes: every image gets label 0";
  EXPECT_THAT(run("im2rec " + folder / "set" + " " + folder / "images").output, Not(HasSubstr(warning)));
  const Result flat = run("im2rec " + folder / "flat" + " " + folder / "images/cat");
  EXPECT_EQ(flat.code, 0) << flat.output;
  const std::size_t first = flat.output.find(warning);
  EXPECT_THAT(flat.output, HasSubstr(folder / "images/cat" + warning));
  EXPECT_EQ(flat.output.find(warning, first + 1), std::string::npos) << "once";
}

TEST(Im2rec, GivesTheSameBytesForEveryNumberOfThreads) {
  TemporaryFolder folder;
  write_image_folder(folder);
  const std::string source = " " + folder / "images";
  for (const char* threads : {"1", "4"}) {
    const std::string flags = std::string("im2rec --shards 2 --seed 5 --resize 8 --threads ") + threads;
    EXPECT_EQ(run(str(flags, " ", folder / "t", threads, source)).code, 0);
  }
  for (const char* name :
       {"-00000-of-00002.rec", "-00001-of-00002.rec", "-00000-of-00002.crc", "-00001-of-00002.idx"}) {
    EXPECT_EQ(read_all(folder / "t1" + name), read_all(folder / "t4" + name)) << name;
    EXPECT_FALSE(read_all(folder / "t1" + name).empty());
  }
}

TEST(Im2rec, ResizesCropsAndConverts) {
  TemporaryFolder folder;
  write_image_folder(folder);
  const auto size = [&](const std::string& flags) { return packed_images(folder, flags).image; };
  EXPECT_EQ(size("--resize 5"), (ImageSize{5, 6, 3}));
  EXPECT_EQ(size("--center_crop --channels 1 --encoding png"), (ImageSize{10, 10, 1}));
  EXPECT_EQ(Manifest::load(folder / "set.manifest").encoding, "png");
  EXPECT_EQ(size("--pass_through"), (ImageSize{10, 12, 3}));
  EXPECT_THAT(records_of(folder / "set.manifest"), SizeIs(11));
}

TEST(Im2rec, PacksAListWithSeveralLabels) {
  TemporaryFolder folder;
  write_image_folder(folder);
  write_all(folder / "some.lst", "7\t0.5\t2\tcat/1.jpg\n9\t-1\t3\tdog/2.png\n");
  const Result result =
      run("im2rec --noshuffle --root " + folder / "images" + " " + folder / "set" + " " + folder / "some.lst");
  EXPECT_EQ(result.code, 0) << result.output;
  const std::vector<Record> records = records_of(folder / "set.manifest");
  ASSERT_THAT(records, SizeIs(2));
  EXPECT_EQ(records[0].id, 7u);
  EXPECT_THAT(records[0].labels, ElementsAre(0.5f, 2));
  EXPECT_THAT(records[1].labels, ElementsAre(-1, 3));
  EXPECT_EQ(read_all(folder / "set-00000-of-00001.idx").substr(0, 4), "7\t0\n");
  EXPECT_EQ(Manifest::load(folder / "set.manifest").label_width, 2);
}

TEST(Im2rec, ListsBadImagesAndWritesNothing) {
  TemporaryFolder folder;
  write_image_folder(folder);
  write_all(folder / "images/cat/3.jpg", "this is no picture");
  write_all(folder / "images/dog/9.png", "");
  const std::string rest = folder / "set" + " " + folder / "images";
  const Result result = run("im2rec " + rest);
  EXPECT_EQ(result.code, 1);
  EXPECT_THAT(result.output, HasSubstr("bad image: " + folder / "images/cat/3.jpg" + ": the image is neither JPEG"));
  EXPECT_THAT(result.output, HasSubstr("2 of 12 images are bad"));
  EXPECT_THAT(folder.files(), ElementsAre("images", "set.bad.txt"));
  EXPECT_THAT(read_all(folder / "set.bad.txt"), HasSubstr("dog/9.png\tthe image is empty"));

  const Result skipped = run("im2rec --skip_bad --shards 2 " + rest);
  EXPECT_EQ(skipped.code, 0) << skipped.output;
  EXPECT_THAT(skipped.output, HasSubstr("10 records in 2 shards, 2 bad images left out"));
  EXPECT_THAT(records_of(folder / "set.manifest"), SizeIs(10));
}

TEST(Im2rec, SaysWhatIsWrongInOneSentence) {
  TemporaryFolder folder;
  std::filesystem::create_directories(folder / "empty");
  write_image_folder(folder);
  const auto fails = [&](const std::string& arguments, int code, const std::string& expected) {
    const Result result = run("im2rec " + arguments);
    EXPECT_EQ(result.code, code) << arguments;
    EXPECT_THAT(result.output, HasSubstr(expected)) << arguments;
  };
  const std::string set = folder / "set" + " ";
  const std::string one_line = "im2rec: unknown flag --shard (do you mean --shards?); im2rec --help says more\n";
  EXPECT_EQ(run("im2rec --shard 2 " + set + folder / "images").output, one_line);
  fails("--shards two " + set + folder / "images", 2, "--shards is 'two', expected int");
  fails("--shards", 2, "--shards needs a value: ");
  fails(set + folder / "images" + " too", 2, "unknown argument 'too'");
  fails("--noshards " + set + folder / "images", 2, "unknown flag --noshards");
  fails(set, 2, "needs a prefix and a source");
  fails(set + folder / "empty", 2, "holds no images");
  fails(set + folder / "absent", 1, "absent on host ");
  fails("--shards 12 " + set + folder / "images", 2, "11 images cannot fill 12 shards");
  fails("--encoding gif " + set + folder / "images", 2, "unknown image encoding 'gif'; known: raw png jpg auto");
  fails("--threads 100000 " + set + folder / "images", 2, "--threads is 0 to 1024, not 100000");
  fails("--quality 0 " + set + folder / "images", 2, "--quality is 1 to 100, not 0");
  fails("/dev/null/set " + folder / "images", 1, "/dev/null");
  write_idx(folder / "images.idx3", {{2, 1, 1}, {1, 2}});
  write_idx(folder / "labels.idx1", {{3}, {1, 2, 3}});
  fails(set + folder / "images.idx3", 2, "holds 2 images, but");
  fails("--labels " + folder / "images.idx3" + " " + set + folder / "images.idx3", 2,
        "has 3 dimensions, labels have 1");
  write_all(folder / "labels.idx1", "junk");
  fails(set + folder / "images.idx3", 1, "labels.idx1: it is no IDX file");
  EXPECT_THAT(folder.files(), ElementsAre("empty", "images", "images.idx3", "labels.idx1"));
}

TEST(Im2rec, SaysOfEachBadFileWhatIsWrong) {
  TemporaryFolder folder;
  write_image_folder(folder);
  std::filesystem::create_symlink("nowhere", folder / "images/cat/broken.jpg");
  std::filesystem::create_symlink("loop.jpg", folder / "images/cat/loop.jpg");
  const Result folders = run("im2rec " + folder / "set" + " " + folder / "images");
  EXPECT_EQ(folders.code, 1);
  EXPECT_THAT(folders.output, HasSubstr("cat/broken.jpg: it cannot be read: No such file or directory"));
  EXPECT_THAT(folders.output, HasSubstr("cat/loop.jpg: it cannot be read: Too many levels of symbolic links"));
  EXPECT_THAT(folders.output, HasSubstr("2 of 13 images are bad"));
  EXPECT_EQ(run("im2rec --skip_bad " + folder / "set" + " " + folder / "images").code, 0);
  EXPECT_EQ(Manifest::load(folder / "set.manifest").records(), 11);
  write_all(folder / "some.lst", "1\t0\timages/cat\n2\t0\timages/cat/0.jpg\n");
  EXPECT_THAT(run("im2rec " + folder / "set" + " " + folder / "some.lst").output,
              HasSubstr("images/cat: it cannot be read: Is a directory"));
}

TEST(Im2rec, LeavesNoShardsOfAnOlderSet) {
  TemporaryFolder folder;
  write_image_folder(folder);
  const std::string source = " " + folder / "set" + " " + folder / "images";
  write_all(folder / "set-00000-of-00009.rec", "not of the set");
  EXPECT_EQ(run("im2rec --shards 4" + source).code, 0);
  EXPECT_EQ(run("im2rec --shards 1" + source).code, 0);
  EXPECT_THAT(folder.files(), ElementsAre("images", "set-00000-of-00001.crc", "set-00000-of-00001.idx",
                                          "set-00000-of-00001.rec", "set-00000-of-00009.rec", "set.manifest"));
}

class InterruptedIm2rec : public testing::TestWithParam<int> {};

TEST_P(InterruptedIm2rec, TakesItsFilesAway) {
  TemporaryFolder folder;
  // The second image is a pipe that nobody writes: the program is in the middle when the signal comes.
  write_image(folder / "images/a/0.jpg", plain(4, 4, 1, 9), ImageEncoding::kJpeg);
  ASSERT_EQ(mkfifo((folder / "images/a/1.jpg").c_str(), 0600), 0);
  write_all(folder / "all.lst", "0\t0\timages/a/0.jpg\n1\t0\timages/a/1.jpg\n2\t0\timages/a/0.jpg\n");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string program = program_dir() + "/im2rec";
    execl(program.c_str(), "im2rec", "--noshuffle", (folder / "set").c_str(), (folder / "all.lst").c_str(), nullptr);
    _exit(127);
  }
  // Opening the pipe waits for the program to open it too. It stays open: the program waits for its bytes in vain.
  std::ofstream pipe(folder / "images/a/1.jpg");
  kill(child, GetParam());
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 1);
  EXPECT_THAT(folder.files(), ElementsAre("all.lst", "images"));
}

INSTANTIATE_TEST_SUITE_P(By, InterruptedIm2rec, testing::Values(SIGHUP, SIGINT, SIGTERM));

TEST(Im2rec, GoesOnWhereNobodyReadsItsProgress) {
  TemporaryFolder folder;
  write_image_folder(folder);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  close(ends[0]);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    const std::string program = program_dir() + "/im2rec";
    execl(program.c_str(), "im2rec", (folder / "set").c_str(), (folder / "images").c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  EXPECT_THAT(records_of(folder / "set.manifest"), SizeIs(11));
}

TEST(Im2rec, HelpIsAboutItsOwnFlags) {
  const Result result = run("im2rec --help");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.output, HasSubstr("im2rec [flags] PREFIX SOURCE"));
  EXPECT_THAT(result.output, HasSubstr("--skip_bad"));
  EXPECT_THAT(result.output, Not(HasSubstr("flagfile")));
}

TEST(Im2rec, PacksMnist) {
  const std::string data = data_dir("mnist");
  if (data.empty()) GTEST_SKIP() << "MNIST is not here";
  TemporaryFolder folder;
  const Result result = run("im2rec --shards 2 " + folder / "test" + " " + data + "/t10k-images-idx3-ubyte.gz");
  ASSERT_EQ(result.code, 0) << result.output;
  const Manifest manifest = Manifest::load(folder / "test.manifest");
  EXPECT_EQ(manifest.records(), 10000);
  EXPECT_EQ(manifest.encoding, "png");
  EXPECT_EQ(manifest.image, (ImageSize{28, 28, 1}));
  EXPECT_THAT(manifest.labels, SizeIs(10));
  const IdxFile labels = read_idx(data + "/t10k-labels-idx1-ubyte.gz");
  const IdxFile images = read_idx(data + "/t10k-images-idx3-ubyte.gz");
  for (const Record& record : records_of(folder / "test.manifest")) {
    EXPECT_EQ(record.labels[0], static_cast<float>(labels.values[record.id]));
    EXPECT_TRUE(std::equal(record.image.pixels.begin(), record.image.pixels.end(),
                           images.values.begin() + static_cast<std::ptrdiff_t>(784 * record.id)));
  }
}

TEST(Im2rec, PacksCifarAndTheLoaderReadsIt) {
  const std::string archive = data_dir("cifar10") + "/cifar10-jpg.tar.xz";
  if (!std::filesystem::exists(archive)) GTEST_SKIP() << "CIFAR-10 is not here";
  TemporaryFolder folder;
  const std::string unpack = "tar -C " + folder / "" + " -xf " + archive + " --wildcards 'test/*/00*' 2>&1";
  if (std::system(unpack.c_str()) != 0) GTEST_SKIP() << "the archive cannot be unpacked here";
  const Result result = run("im2rec --shards 2 " + folder / "cifar" + " " + folder / "test");
  ASSERT_EQ(result.code, 0) << result.output;
  RecordLoader loader(folder / "cifar.manifest", {.batch = 50, .shuffle = 1});
  EXPECT_THAT(loader.labels(), SizeIs(10));
  std::int64_t examples = 0;
  for (const Batch& batch : EpochRange(loader, 0, {})) {
    EXPECT_EQ(batch.data.shape(), (Shape{batch.examples, 3, 32, 32}));
    examples += batch.examples;
  }
  EXPECT_EQ(examples, loader.size());
  EXPECT_GE(examples, 100);
}

// What gzip packed.
std::string unpacked(const std::string& path) {
  const gzFile file = gzopen(path.c_str(), "rb");
  std::string bytes;
  char block[1 << 16];
  for (int got = 0; (got = gzread(file, block, sizeof block)) > 0;) bytes.append(block, static_cast<std::size_t>(got));
  gzclose(file);
  return bytes;
}

TEST(ToRec, ConvertsA9aAndTheLoaderReadsIt) {
  const std::string data = data_dir("a9a");
  if (data.empty()) GTEST_SKIP() << "a9a is not here";
  TemporaryFolder folder;
  const Result result = run("to_rec --shards 4 " + folder / "a9a" + " " + data + "/train.libsvm.gz");
  ASSERT_EQ(result.code, 0) << result.output;
  RecordLoader loader(folder / "a9a.manifest", {.batch = 1000, .shuffle = 1});
  EXPECT_EQ(loader.size(), 32560);
  EXPECT_THAT(loader.manifest().statistics.classes, ElementsAre(std::pair{"0", 24719}, std::pair{"1", 7841}));
  const std::string text = unpacked(data + "/train.libsvm.gz");
  double values = 0;
  std::int64_t positive = 0;
  for (const Batch& batch : EpochRange(loader, 0, {})) {
    for (const float value : batch.data.to_vector<float>()) values += static_cast<double>(value);
    for (const std::int32_t label : batch.label.to_vector<std::int32_t>()) positive += label;
  }
  // Every value of a9a is 1.
  EXPECT_EQ(values, static_cast<double>(std::count(text.begin(), text.end(), ':')));
  EXPECT_EQ(positive, 7841);
}

TEST(ToRec, ConvertsShakespeareToTheWindowsOfHisText) {
  const std::string data = data_dir("text");
  if (data.empty()) GTEST_SKIP() << "Tiny Shakespeare is not here";
  TemporaryFolder folder;
  const std::string flags = "to_rec --format text --window 256 --shuffle=false --shards 3 ";
  const Result result = run(flags + folder / "plays" + " " + data + "/tinyshakespeare.txt.gz");
  ASSERT_EQ(result.code, 0) << result.output;
  const std::string text = unpacked(data + "/tinyshakespeare.txt.gz");
  std::string read;
  RecordLoader loader(folder / "plays.manifest", {.batch = 100});
  for (const Batch& batch : EpochRange(loader, 0, {}))
    for (const std::int32_t byte : batch.data.to_vector<std::int32_t>()) read += static_cast<char>(byte);
  // All but the last byte, which is a label only; then what fills up the last window.
  EXPECT_EQ(read.substr(0, text.size() - 1), text.substr(0, text.size() - 1));
  EXPECT_LT(read.size() - text.size(), 256u);
}

TEST(Rec, IndexNamesClasses) {
  TemporaryFolder folder;
  write_data_set(folder, 20, 1);
  std::filesystem::remove(folder / "set.manifest");
  std::string names;
  for (int i = 0; i < 10; ++i) names += str("class", i, "\n");
  write_all(folder / "names", names);
  const std::string rest = folder / "names" + " " + folder / "set-00000-of-00001.rec";
  const std::string set = folder / "set-00000-of-00001.manifest";
  EXPECT_EQ(run("rec index --classes " + rest).code, 0);
  EXPECT_EQ(Manifest::load(set).labels.at(9), "class9");
  std::filesystem::remove(set);
  write_all(folder / "names", "one\n\nthree\n");
  const Result refused = run("rec index --classes " + rest);
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.output, HasSubstr("names has an empty line, where the name of class 1 should be"));
}

TEST(Rec, VerifiesAndNamesDamage) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 30, 2);
  const Result sound = run("rec verify " + manifest);
  EXPECT_EQ(sound.code, 0);
  EXPECT_THAT(sound.output, HasSubstr("30 records in 2 files, 0 problems"));
  const std::string shard = folder / "set-00001-of-00002.rec";
  const std::uint64_t offset = read_index(index_path(shard))[4].offset;
  flip_bit(shard, offset + 35);
  const Result damaged = run("rec verify " + manifest);
  EXPECT_EQ(damaged.code, 1);
  EXPECT_THAT(damaged.output, HasSubstr(shard + ": record 4 at offset " + std::to_string(offset) + " is damaged"));
  std::filesystem::remove(checksum_path(shard));
  const Result unchecked = run("rec verify " + shard);
  EXPECT_EQ(unchecked.code, 0);
  EXPECT_THAT(unchecked.output, HasSubstr("15 records without checksums: their contents were not checked"));
}

TEST(Rec, ListsManifestsAndRecords) {
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 30, 2);
  EXPECT_THAT(run("rec list " + manifest).output, HasSubstr("records      30"));
  const Result result = run("rec list --limit 2 " + folder / "set-00000-of-00002.rec");
  EXPECT_EQ(result.code, 0);
  EXPECT_THAT(result.output, HasSubstr("label 1  id 1  image 3 x 2 x 1"));
  EXPECT_THAT(result.output, Not(HasSubstr("id 2 ")));
  EXPECT_THAT(result.output, HasSubstr("15 records"));
  EXPECT_EQ(run("rec").code, 2);
  EXPECT_THAT(
      run("rec sort x").output,
      HasSubstr("unknown command 'sort'; known: append extract index lines list merge repair split stats verify"));
  EXPECT_THAT(run("rec repair x").output, HasSubstr("`repair` takes 2 arguments"));
  EXPECT_EQ(run("rec list " + folder / "absent.rec").code, 1);
  EXPECT_THAT(run("rec list --limit -1 " + folder / "set-00000-of-00002.rec").output,
              HasSubstr("--limit cannot be -1"));
}

TEST(Rec, MakesDataSetsOfRecordFiles) {
  TemporaryFolder folder;
  write_data_set(folder, 30, 2);
  const std::string first = folder / "set-00000-of-00002.rec", second = folder / "set-00001-of-00002.rec";
  // As they come from MXNet: without checksums and manifest, one without an index.
  for (const char* ours :
       {"set.manifest", "set-00000-of-00002.crc", "set-00001-of-00002.crc", "set-00001-of-00002.idx"})
    std::filesystem::remove(folder / ours);
  const auto expect = [&](const std::string& arguments, int code, const std::string& words) {
    const Result result = run("rec " + arguments);
    EXPECT_EQ(result.code, code) << result.output;
    EXPECT_THAT(result.output, HasSubstr(words)) << arguments;
  };
  expect("list " + folder / "set.manifest", 1, "No such file");
  expect("index " + first + " " + second, 2, "several files need --manifest");
  expect("index " + first, 0, "set-00000-of-00002.manifest: 15 records in 1 files");
  expect("append " + folder / "set-00000-of-00002.manifest " + second, 0, "30 records in 2 files");
  expect("index --manifest " + folder / "all.manifest " + first + " " + second, 0,
         "labels       1 for each record, class");
  expect("index --manifest " + folder / "all.manifest " + first, 2, "all.manifest exists; remove it first");
  expect("verify " + folder / "all.manifest " + first, 0, "15 records in 1 files, 0 problems");
  expect("stats --limit 2 " + folder / "all.manifest", 0, "label 1      3\nand further labels");
  expect("split " + folder / "five " + folder / "all.manifest", 2, "`split` needs --shards");
  expect("split --shards 5 " + folder / "five " + folder / "all.manifest", 0, "five.manifest: 30 records in 5 files");
  expect("merge " + folder / "one " + folder / "five.manifest " + first, 0, "one.manifest: 45 records in 1 files");
  expect("extract " + folder / "out " + first, 0, "15 images, listed in " + folder / "out/extracted.lst");
  const std::uint64_t offset = read_index(index_path(second))[4].offset;
  flip_bit(second, offset);
  expect("stats " + second, 1, "`rec repair PREFIX " + second + "` copies the records that can be read");
  expect("repair " + folder / "saved " + second, 0, str("lost: ", second, ": record 4 at offset ", offset));
  expect("verify " + folder / "saved.manifest", 0, "14 records in 1 files, 0 problems");
}

TEST(Rec, OpensAsManyFilesAsTheSystemAllows) {
  TemporaryFolder folder;
  const std::string set = write_data_set(folder, 200, 1);
  const auto split = [&] {
    const DescriptorLimit few(100);
    return run("rec split --shards 200 " + folder / "many " + set);
  }();
  EXPECT_EQ(split.code, 0) << split.output;
  EXPECT_THAT(Manifest::load(folder / "many.manifest").shards, SizeIs(200));
}

TEST(Rec, PacksLinesOfText) {
  TemporaryFolder folder;
  write_all(folder / "a.csv", "1,0.5\r\n0,2\n\n1,3");
  write_all(folder / "b.csv", "0,4\n");
  const Result result = run("rec lines --shards 2 " + folder / "set" + " " + folder / "a.csv" + " " + folder / "b.csv");
  EXPECT_EQ(result.code, 0) << result.output;
  EXPECT_THAT(result.output, HasSubstr("set.manifest: 4 records in 2 files"));
  RecordLoader loader(folder / "set.manifest", {.decoder = decoders::csv_row({.columns = 1})});
  loader.start(0);
  Batch batch;
  ASSERT_TRUE(loader.next(batch));
  EXPECT_THAT(batch.data.to_vector<float>(), ElementsAre(0.5f, 3, 2, 4));
  EXPECT_THAT(batch.label.to_vector<std::int32_t>(), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(run("rec lines --shards 5 " + folder / "x" + " " + folder / "a.csv").output,
              HasSubstr("3 lines cannot fill 5 shards"));
  const Result missing = run("rec lines " + folder / "x" + " " + folder / "missing");
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.output, HasSubstr("missing: No such file"));
  EXPECT_EQ(run("rec lines " + folder / "x" + " " + folder / "").code, 1);
  EXPECT_THAT(folder.files(), SizeIs(9));
}

TEST(Rec, FailsWhereItsOutputIsLost) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  TemporaryFolder folder;
  const std::string manifest = write_data_set(folder, 30, 2);
  EXPECT_EQ(run("rec list " + manifest + " >/dev/full").code, 1);
  EXPECT_EQ(run("rec verify " + manifest + " >/dev/full").code, 1);
  EXPECT_EQ(run("rec --help >/dev/full").code, 1);
}

TEST(DrawDigits, DrawsTheSameForTheSameSeed) {
  TemporaryFolder folder;
  for (const char* variant : {"a --threads 1", "b --threads 3", "c --seed 2"}) {
    const Result result = run("draw_digits --train 500 --test 50 --out " + folder / variant);
    EXPECT_EQ(result.code, 0) << result.output;
  }
  const IdxFile images = read_idx(folder / "a/train-images-idx3-ubyte.gz");
  const IdxFile labels = read_idx(folder / "a/train-labels-idx1-ubyte.gz");
  EXPECT_THAT(images.shape, ElementsAre(500, 28, 28));
  EXPECT_THAT(labels.shape, ElementsAre(500));
  EXPECT_THAT(read_idx(folder / "a/t10k-images-idx3-ubyte.gz").shape, ElementsAre(50, 28, 28));
  EXPECT_EQ(images.values, read_idx(folder / "b/train-images-idx3-ubyte.gz").values);
  EXPECT_NE(images.values, read_idx(folder / "c/train-images-idx3-ubyte.gz").values);
  std::map<int, int> times;
  for (const std::uint8_t label : labels.values) ++times[label];
  ASSERT_THAT(times, SizeIs(10));
  for (const auto& [digit, count] : times) EXPECT_GT(count, 20);
  // Every image has ink, and none is full of it.
  for (std::size_t i = 0; i < 500; ++i) {
    const auto begin = images.values.begin() + static_cast<std::ptrdiff_t>(784 * i);
    const auto inked = std::count_if(begin, begin + 784, [](std::uint8_t p) { return p > 100; });
    EXPECT_GT(inked, 15);
    EXPECT_LT(inked, 350);
  }
  EXPECT_EQ(run("draw_digits").code, 2);
  for (const char* elsewhere : {"s3://bucket/digits", "gs://bucket/digits"}) {
    const Result refused = run(std::string("draw_digits --train 1 --test 1 --out ") + elsewhere);
    EXPECT_EQ(refused.code, 2);
    EXPECT_THAT(refused.output, HasSubstr(elsewhere));
  }
  const Result many = run("draw_digits --threads 100000 --out " + folder / "d");
  EXPECT_EQ(many.code, 2);
  EXPECT_THAT(many.output, HasSubstr("--threads is 0 to 1024, not 100000"));
}

TEST(Kvsim, APlotThatCannotBeWrittenTakesNothingAway) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP() << "no /dev/full";
  TemporaryFolder folder;
  const std::string path = folder / "plot.png";
  const std::string simulate = "kvsim --workers 1,2 --iterations 2 --plot " + path;
  EXPECT_EQ(run(simulate).code, 0);
  Image image;
  ImageCodec().decode(read_all(path), image);
  EXPECT_GT(image.width, image.height);
  std::filesystem::remove(path);
  std::filesystem::create_symlink("/dev/full", path);  // libpng would remove it
  const Result failed = run(simulate);
  EXPECT_EQ(failed.code, 1);
  EXPECT_THAT(failed.output, HasSubstr("cannot write the plot '" + path + "': No space left"));
  EXPECT_THAT(failed.output, HasSubstr("\"runs\""));
  EXPECT_TRUE(std::filesystem::is_symlink(path));
}

TEST(Kvsim, TakesItsCostsFromKvbench) {
  TemporaryFolder folder;
  const std::string file = folder / "measured";
  const auto simulate = [](const std::string& flags) {
    const Result ended = run("kvsim --workers 1 --iterations 10 --bytes 1e6 --compute constant:seconds=1e-3 " + flags);
    EXPECT_EQ(ended.code, 0) << ended.output;
    return ended.output;
  };
  std::ofstream(file) << "what kvbench says before\n"
                      << R"({"push_gbps": 2.0, "pull_gbps": 4.0, "both_gbps": 1, "rtt_us_p50": 60.0})"
                      << "\n";
  const std::string measured = simulate("--kvbench " + file);
  EXPECT_EQ(measured, simulate("--latency_us 30 --server_push ns_per_byte=0.5 --server_pull ns_per_byte=0.25"));
  EXPECT_NE(measured, simulate(""));
  // What is given goes before what was measured.
  EXPECT_EQ(simulate("--server_push ns_per_byte=3 --kvbench " + file),
            simulate("--latency_us 30 --server_push ns_per_byte=3 --server_pull ns_per_byte=0.25"));
  std::ofstream(file) << "no JSON\n";
  const Result refused = run("kvsim --kvbench " + file);
  EXPECT_EQ(refused.code, 1);
  EXPECT_THAT(refused.output, HasSubstr("is not what kvbench prints"));
}

}  // namespace
}  // namespace paceline::test
