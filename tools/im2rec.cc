// Packs images into a data set: shards of records, their indexes and checksums, and a manifest.

#include <paceline/cores.h>
#include <paceline/error.h>
#include <paceline/idx_file.h>
#include <paceline/image.h>
#include <paceline/image_list.h>
#include <paceline/manifest.h>
#include <paceline/mutex.h>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <numeric>
#include <random>
#include <system_error>
#include <thread>

#include "flags.h"
#include "interrupt.h"
#include "progress.h"

DEFINE_string(labels, "", "IDX file of the labels; by default MNIST's name beside the images");
DEFINE_string(root, "", "folder that the paths of a list are relative to; by default the list's own");
DEFINE_int32(shards, 1, "number of record files");
DEFINE_int32(threads, 0, "threads that decode and encode; 0: all cores");
DEFINE_bool(shuffle, true, "pack in a random order, so that every shard is a fair sample");
DEFINE_uint64(seed, 0, "of the random order");
DEFINE_string(encoding, "auto",
              "png, jpg or raw; auto keeps a file's bytes where nothing is changed, else jpg, and makes IDX images "
              "png. raw is binary PNM, which loads fastest and which MXNet's iterators refuse");
DEFINE_int32(quality, 95, "of JPEG, 1 to 100");
DEFINE_int32(resize, 0, "make the shorter edge so many pixels; 0: leave the size");
DEFINE_bool(center_crop, false, "cut out the square in the middle, before resizing");
DEFINE_int32(channels, 0, "1 grey, 3 colour; 0: as stored");
DEFINE_bool(pass_through, false, "store the files' bytes without decoding them");
DEFINE_bool(skip_bad, false, "leave out images that cannot be read or decoded, instead of failing at the end");

namespace paceline {
namespace {

constexpr char kUsage[] =
    "im2rec [flags] PREFIX SOURCE\n\n"
    "Packs images into PREFIX.manifest, PREFIX-00000-of-0000N.rec, .idx and .crc. SOURCE is\n"
    "  a folder      .jpg, .jpeg and .png files; each sub-folder is a class\n"
    "  a .lst file   lines `id TAB label [TAB label ...] TAB path`, as MXNet's im2rec writes them\n"
    "  an IDX file   MNIST's images, plain or .gz; the labels from --labels\n"
    "Images that cannot be read are listed in PREFIX.bad.txt.";

constexpr std::size_t kMostPrinted = 20;

// Where images come from, one interface for files and IDX.
struct Input {
  ImageList list;
  IdxFile images;  // empty for files; else entry i is image i

  bool is_idx() const { return !images.shape.empty(); }
};

// What became of one image.
struct Packed {
  std::string record;
  ImageSize size;
  std::string problem;
  bool ready = false;
};

// A descriptor that is closed again.
class Descriptor {
 public:
  explicit Descriptor(int value) : value_(value) {}
  ~Descriptor() {
    if (value_ >= 0) close(value_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int value() const { return value_; }

 private:
  int value_;
};

// Also of a pipe, where a signal ends the wait for its writer.
std::string read_bytes(const std::string& path) {
  const auto fail = [] { throw IoError(str("it cannot be read: ", std::generic_category().message(errno))); };
  const Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (file.value() < 0) fail();
  std::string bytes;
  for (;;) {
    constexpr std::size_t kBlock = 1 << 16;
    constexpr int kMilliseconds = 100;
    tools::stop_if_interrupted();
    pollfd ready = {file.value(), POLLIN, 0};
    if (poll(&ready, 1, kMilliseconds) <= 0) continue;
    const std::size_t before = bytes.size();
    bytes.resize(before + kBlock);
    const ssize_t got = read(file.value(), bytes.data() + before, kBlock);
    bytes.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
    if (got == 0) return bytes;
    if (got < 0 && errno != EINTR && errno != EAGAIN) fail();
  }
}

Image transform(Image image) {
  if (FLAGS_center_crop) {
    const int edge = std::min(image.height, image.width);
    image = crop(image, (image.height - edge) / 2, (image.width - edge) / 2, edge, edge);
  }
  if (FLAGS_resize > 0) {
    const int edge = std::min(image.height, image.width);
    const auto scaled = [&](int size) {
      constexpr std::int64_t kMost = std::numeric_limits<int>::max();
      return static_cast<int>(std::min(std::int64_t{size} * FLAGS_resize / edge, kMost));
    };
    if (edge != FLAGS_resize) image = resize(image, scaled(image.height), scaled(image.width));
  }
  return image;
}

class Packer {
 public:
  explicit Packer(const Input& input) : input_(input) {
    if (FLAGS_encoding != "auto")
      encoding_ = parse_image_encoding(FLAGS_encoding);
    else if (input.is_idx())
      encoding_ = ImageEncoding::kPng;
    else
      keep_ = true;
  }

  void pack(std::size_t i, Packed& packed) {
    const ImageListEntry& entry = input_.list.entries[i];
    try {
      packed.record =
          pack_image_record(entry.labels, static_cast<std::uint64_t>(entry.id), image_bytes(i, packed.size));
    } catch (const std::exception& error) {
      packed.problem = error.what();
    }
  }

  // The encoding in the manifest.
  static std::string encoding_name(const Input& input) {
    if (FLAGS_pass_through) return "mixed";
    if (FLAGS_encoding != "auto") return FLAGS_encoding == "jpeg" ? "jpg" : FLAGS_encoding;
    return input.is_idx() ? "png" : "mixed";
  }

 private:
  std::string image_bytes(std::size_t i, ImageSize& size) {
    Image image;
    std::string bytes;
    if (input_.is_idx()) {
      image.height = static_cast<int>(input_.images.shape[1]);
      image.width = static_cast<int>(input_.images.shape[2]);
      image.channels = 1;
      const std::size_t count = static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width);
      const auto begin = input_.images.values.begin() + static_cast<std::ptrdiff_t>(i * count);
      image.pixels.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
    } else {
      bytes = read_bytes(input_.list.entries[i].path);
      if (FLAGS_pass_through) {
        if (bytes.empty()) throw Corrupt("the file is empty");
        size = size_in_header(bytes);
        return bytes;
      }
      codec_.decode(bytes, image);
    }
    const ImageSize before{image.height, image.width, image.channels};
    image = transform(std::move(image));
    if (FLAGS_channels != 0 && FLAGS_channels != image.channels) {
      const std::string raw = codec_.encode(image, ImageEncoding::kRaw);
      codec_.decode(raw, image, FLAGS_channels);
    }
    size = {image.height, image.width, image.channels};
    return keep_ && size == before ? bytes : codec_.encode(image, encoding_, FLAGS_quality);
  }

  // Zeros where it cannot be told.
  ImageSize size_in_header(const std::string& bytes) {
    try {
      const ImageHeader header = codec_.header(bytes);
      return {header.height, header.width, header.channels};
    } catch (const Corrupt&) {
      return {};
    }
  }

  const Input& input_;
  ImageEncoding encoding_ = ImageEncoding::kJpeg;
  bool keep_ = false;
  ImageCodec codec_;
};

// Threads that pack ahead of the one that writes; results come back in order, a bounded number of them at a time.
class ParallelPacker {
 public:
  ParallelPacker(const Input& input, const std::vector<std::size_t>& order, int threads)
      : input_(input), order_(order), bound_(static_cast<std::size_t>(threads) * 32) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }

  ~ParallelPacker() {
    {
      Lock lock(mutex_);
      next_ = order_.size();
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // The next one in order; called order.size() times.
  std::shared_ptr<Packed> next() {
    Lock lock(mutex_);
    changed_.wait(mutex_,
                  [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return !window_.empty() && window_.front()->ready; });
    std::shared_ptr<Packed> packed = std::move(window_.front());
    window_.pop_front();
    changed_.notify_all();
    return packed;
  }

 private:
  void work() {
    Packer packer(input_);
    for (;;) {
      auto packed = std::make_shared<Packed>();
      std::size_t mine = 0;
      {
        Lock lock(mutex_);
        changed_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS {
          return next_ >= order_.size() || window_.size() < bound_;
        });
        if (next_ >= order_.size()) return;
        mine = order_[next_++];
        window_.push_back(packed);
      }
      packer.pack(mine, *packed);
      {
        Lock lock(mutex_);
        packed->ready = true;
      }
      changed_.notify_all();
    }
  }

  const Input& input_;
  const std::vector<std::size_t>& order_;
  const std::size_t bound_;
  Mutex mutex_;
  CondVar changed_;
  std::size_t next_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::deque<std::shared_ptr<Packed>> window_ PACELINE_GUARDED_BY(mutex_);
  std::vector<std::thread> threads_;
};

// train-images-idx3-ubyte.gz -> train-labels-idx1-ubyte.gz
std::string labels_beside(const std::string& images) {
  std::string name = std::filesystem::path(images).filename().string();
  for (const auto& [from, to] : {std::pair{"images", "labels"}, std::pair{"idx3", "idx1"}}) {
    const std::size_t at = name.find(from);
    require(at != std::string::npos, "no --labels were given, and the name of ", images,
            " does not tell where they are");
    name.replace(at, std::strlen(from), to);
  }
  return (std::filesystem::path(images).parent_path() / name).string();
}

Input read_idx_input(const std::string& source) {
  Input input;
  input.images = read_idx(source);
  const std::string labels_path = FLAGS_labels.empty() ? labels_beside(source) : FLAGS_labels;
  const IdxFile labels = read_idx(labels_path);
  require(input.images.shape.size() == 3, source, " has ", input.images.shape.size(), " dimensions, images have 3");
  require(labels.shape.size() == 1, labels_path, " has ", labels.shape.size(), " dimensions, labels have 1");
  require(labels.shape[0] == input.images.shape[0], source, " holds ", input.images.shape[0], " images, but ",
          labels_path, " ", labels.shape[0], " labels");
  require(labels.shape[0] > 0 && input.images.shape[1] > 0 && input.images.shape[2] > 0, source, " holds no images");
  for (std::size_t i = 0; i < labels.values.size(); ++i) {
    input.list.entries.push_back(
        {static_cast<std::int64_t>(i), {static_cast<float>(labels.values[i])}, str("image ", i, " of ", source)});
  }
  const int classes = *std::max_element(labels.values.begin(), labels.values.end()) + 1;
  for (int i = 0; i < classes; ++i) input.list.classes.push_back(std::to_string(i));
  return input;
}

Input read_input(const std::string& source) {
  const std::filesystem::path path(source);
  if (std::filesystem::is_directory(path)) return {list_image_folder(source), {}};
  if (path.extension() != ".lst") return read_idx_input(source);
  return {read_image_list(source, FLAGS_root.empty() ? path.parent_path().string() : FLAGS_root), {}};
}

std::vector<std::size_t> packing_order(std::size_t count) {
  std::vector<std::size_t> order(count);
  std::iota(order.begin(), order.end(), std::size_t{0});
  if (!FLAGS_shuffle) return order;
  // Written out, because the standard does not fix what std::shuffle does.
  std::mt19937_64 random(FLAGS_seed);
  for (std::size_t i = count; i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  return order;
}

Manifest describe(const Input& input) {
  Manifest manifest;
  manifest.encoding = Packer::encoding_name(input);
  manifest.labels = input.list.classes;
  const auto [fewest, most] = std::minmax_element(
      input.list.entries.begin(), input.list.entries.end(),
      [](const ImageListEntry& a, const ImageListEntry& b) { return a.labels.size() < b.labels.size(); });
  manifest.label_width = static_cast<int>(most->labels.size());
  manifest.variable_labels = fewest->labels.size() != most->labels.size();
  manifest.class_labels =
      std::all_of(input.list.entries.begin(), input.list.entries.end(), [](const ImageListEntry& e) {
        return e.labels.size() == 1 && e.labels[0] >= 0 && e.labels[0] == std::floor(e.labels[0]);
      });
  if (FLAGS_shuffle) manifest.shuffle_seed = FLAGS_seed;
  return manifest;
}

// Keeps what all images have in common, 0 where they differ.
void merge_size(ImageSize& common, const ImageSize& size, bool first) {
  if (first) {
    common = size;
    return;
  }
  if (common.height != size.height) common.height = 0;
  if (common.width != size.width) common.width = 0;
  if (common.channels != size.channels) common.channels = 0;
}

class BadImages {
 public:
  explicit BadImages(std::string report) : report_(std::move(report)) {}

  void add(const std::string& path, const std::string& problem) {
    if (lines_.size() < kMostPrinted) std::fprintf(stderr, "bad image: %s: %s\n", path.c_str(), problem.c_str());
    if (lines_.size() == kMostPrinted)
      std::fprintf(stderr, "further bad images are listed in %s only\n", report_.c_str());
    lines_.push_back(path + "\t" + problem);
  }

  std::size_t count() const { return lines_.size(); }

  void write_report() const {
    std::filesystem::remove(report_);
    if (lines_.empty()) return;
    std::ofstream file(report_);
    for (const std::string& line : lines_) file << line << '\n';
    if (!file.flush()) throw IoError(str("cannot write ", report_));
  }

 private:
  std::string report_;
  std::vector<std::string> lines_;
};

int run(const std::string& prefix, const std::string& source) {
  const int threads = tools::threads_wanted(FLAGS_threads);
  require(FLAGS_resize >= 0, "--resize cannot be ", FLAGS_resize);
  require(FLAGS_quality >= 1 && FLAGS_quality <= 100, "--quality is 1 to 100, not ", FLAGS_quality);
  require(FLAGS_channels == 0 || FLAGS_channels == 1 || FLAGS_channels == 3, "--channels is 0, 1 or 3, not ",
          FLAGS_channels);
  require(FLAGS_encoding == "auto" || !FLAGS_pass_through, "--pass_through and --encoding exclude each other");
  if (FLAGS_encoding != "auto") parse_image_encoding(FLAGS_encoding);

  const Input input = read_input(source);
  const std::size_t count = input.list.entries.size();
  require(FLAGS_shards >= 1 && static_cast<std::size_t>(FLAGS_shards) <= count, count, " images cannot fill ",
          FLAGS_shards, " shards");
  require(!FLAGS_pass_through || !input.is_idx(), "--pass_through is for image files");
  const std::vector<std::size_t> order = packing_order(count);
  const std::size_t shards = static_cast<std::size_t>(FLAGS_shards);

  Manifest manifest = describe(input);
  DatasetWriter writer(prefix, FLAGS_shards);
  BadImages bad(prefix + ".bad.txt");
  {
    ParallelPacker packer(input, order, threads);
    tools::Progress progress(static_cast<double>(count), "images");
    bool first = true;
    for (std::size_t i = 0; i < count; ++i) {
      const std::shared_ptr<Packed> packed = packer.next();
      tools::stop_if_interrupted();
      const ImageListEntry& entry = input.list.entries[order[i]];
      if (packed->problem.empty()) {
        merge_size(manifest.image, packed->size, first);
        first = false;
        // Shard s holds the images from count * s / shards on.
        writer.write(static_cast<int>(((i + 1) * shards - 1) / count), entry.id, packed->record);
      } else {
        bad.add(entry.path, packed->problem);
      }
      progress.add(1);
    }
  }
  bad.write_report();
  if (bad.count() > 0 && !FLAGS_skip_bad) {
    throw Corrupt(str(bad.count(), " of ", count, " images are bad (listed in ", prefix,
                      ".bad.txt); nothing was written; --skip_bad leaves them out"));
  }
  const std::string path = writer.finish(std::move(manifest));
  std::printf("%s: %zu records in %d shard%s", path.c_str(), count - bad.count(), FLAGS_shards,
              FLAGS_shards == 1 ? "" : "s");
  if (bad.count() > 0) std::printf(", %zu bad images left out", bad.count());
  std::printf("\n");
  return 0;
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  paceline::tools::parse_flags(paceline::kUsage, __FILE__, &argc, &argv, 2);
  paceline::tools::notice_signals();
  std::signal(SIGPIPE, SIG_IGN);  // nobody reads the progress
  return paceline::tools::run_main("im2rec", [&] {
    paceline::require(argc == 3, "needs a prefix and a source; see im2rec --help");
    return paceline::run(argv[1], argv[2]);
  });
}
