// Images in files, folders and MNIST's IDX.

#include <paceline/detail/descriptor.h>
#include <paceline/error.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "convert/packed_images.h"

namespace paceline {
namespace io {
namespace {

namespace fs = std::filesystem;

class ImageFiles final : public ImageBytes {
 public:
  explicit ImageFiles(std::vector<std::string> paths) : paths_(std::move(paths)) {}

  // Also of a pipe, where `wait` ends the wait for its writer.
  std::string read(std::int64_t entry, const std::function<void()>& wait) const override {
    const std::string& path = paths_[static_cast<std::size_t>(entry)];
    const auto fail = [] { throw IoError(str("it cannot be read: ", std::generic_category().message(errno))); };
    const detail::Descriptor file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    if (file.number() < 0) fail();
    struct stat status = {};
    if (fstat(file.number(), &status) != 0) fail();
    const bool regular = S_ISREG(status.st_mode);
    const auto size = static_cast<std::size_t>(regular ? status.st_size : 0);
    std::string bytes;
    for (;;) {
      constexpr std::size_t kBlock = 1 << 16;
      constexpr int kMilliseconds = 100;
      wait();
      pollfd ready = {file.number(), POLLIN, 0};
      if (!regular && poll(&ready, 1, kMilliseconds) <= 0) continue;
      // One byte more than a file has shows that it has no more.
      const std::size_t before = bytes.size(), block = before < size ? size - before + 1 : kBlock;
      bytes.resize(before + block);
      const ssize_t got = ::read(file.number(), bytes.data() + before, block);
      bytes.resize(before + static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
      if (got == 0 || (got > 0 && bytes.size() == size)) return bytes;
      if (got < 0 && errno != EINTR && errno != EAGAIN) fail();
    }
  }

 private:
  const std::vector<std::string> paths_;
};

class IdxImages final : public ImageBytes {
 public:
  explicit IdxImages(IdxFile images) : images_(std::move(images)) {}

  bool plain() const override { return true; }
  std::string read(std::int64_t, const std::function<void()>&) const override { return {}; }
  Image pixels(std::int64_t entry) const override {
    Image image;
    image.height = static_cast<int>(images_.shape[1]);
    image.width = static_cast<int>(images_.shape[2]);
    image.channels = 1;
    const std::size_t count = static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width);
    const auto begin = images_.values.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(entry) * count);
    image.pixels.assign(begin, begin + static_cast<std::ptrdiff_t>(count));
    return image;
  }

 private:
  const IdxFile images_;
};

RecordSourceHandle files_source(ImageList list, const std::string& root, const ImageSourceOptions& options) {
  std::vector<std::string> paths;
  std::vector<std::uint64_t> keys;
  for (const ImageListEntry& entry : list.entries) {
    paths.push_back(entry.path);
    // Images stay in their split when the folder moves. A list may name images elsewhere, too.
    const fs::path relative = fs::path(entry.path).lexically_relative(root);
    keys.push_back(stable_hash(relative.empty() ? entry.path : relative.string()));
  }
  std::string identity = str(stable_hash(identity_of(paths)), '\n');
  return packed_images(std::move(list), std::make_unique<ImageFiles>(std::move(paths)), options, std::move(identity),
                       std::move(keys));
}

// train-images-idx3-ubyte.gz -> train-labels-idx1-ubyte.gz
std::string labels_beside(const std::string& images) {
  std::string name = fs::path(images).filename().string();
  for (const auto& [from, to] : {std::pair{"images", "labels"}, std::pair{"idx3", "idx1"}}) {
    const std::size_t at = name.find(from);
    require(at != std::string::npos, "no --labels were given, and the name of ", images,
            " does not tell where they are");
    name.replace(at, std::strlen(from), to);
  }
  return (fs::path(images).parent_path() / name).string();
}

RecordSourceHandle idx_source(const std::string& source, const ImageSourceOptions& options) {
  IdxFile images = read_idx(source);
  const std::string labels_path = options.labels.empty() ? labels_beside(source) : options.labels;
  const IdxFile labels = read_idx(labels_path);
  require(images.shape.size() == 3, source, " has ", images.shape.size(), " dimensions, images have 3");
  require(labels.shape.size() == 1, labels_path, " has ", labels.shape.size(), " dimensions, labels have 1");
  require(labels.shape[0] == images.shape[0], source, " holds ", images.shape[0], " images, but ", labels_path, " ",
          labels.shape[0], " labels");
  require(labels.shape[0] > 0 && images.shape[1] > 0 && images.shape[2] > 0, source, " holds no images");
  ImageList list;
  std::vector<std::uint64_t> keys;
  const std::size_t pixels = images.values.size() / labels.values.size();
  for (std::size_t i = 0; i < labels.values.size(); ++i) {
    list.entries.push_back(
        {static_cast<std::int64_t>(i), {static_cast<float>(labels.values[i])}, str("image ", i, " of ", source)});
    keys.push_back(stable_hash({reinterpret_cast<const char*>(images.values.data()) + i * pixels, pixels}));
  }
  const int classes = *std::max_element(labels.values.begin(), labels.values.end()) + 1;
  for (int i = 0; i < classes; ++i) list.classes.push_back(std::to_string(i));
  return packed_images(std::move(list), std::make_unique<IdxImages>(std::move(images)), options,
                       identity_of({source, labels_path}), std::move(keys));
}

}  // namespace
}  // namespace io

RecordSourceHandle image_source(const std::string& source, const ImageSourceOptions& options) {
  const std::filesystem::path path(source);
  if (std::filesystem::is_directory(path)) return io::files_source(list_image_folder(source), source, options);
  if (path.extension() != ".lst") return io::idx_source(source, options);
  const std::string root = options.root.empty() ? path.parent_path().string() : options.root;
  return io::files_source(read_image_list(source, root), root, options);
}

}  // namespace paceline
