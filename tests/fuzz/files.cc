#include <unistd.h>

#include <cstdio>
#include <filesystem>

#include "fuzz.h"

namespace paceline::fuzz {
namespace {

// A folder of this process, in memory where the system has such a file system. It is removed at the end.
class Folder {
 public:
  Folder() {
    const std::filesystem::path memory = "/dev/shm";
    const auto parent = access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
    path_ = parent / ("paceline-fuzz-" + std::to_string(getpid()));
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace

std::string path_of(const std::string& name) {
  static const Folder folder;
  return folder.path(name);
}

std::string file_of(std::string_view content, const std::string& name) {
  const std::string path = path_of(name);
  std::FILE* const file = std::fopen(path.c_str(), "we");
  expect(file && std::fwrite(content.data(), 1, content.size(), file) == content.size() && std::fclose(file) == 0,
         "cannot write ", path);
  return path;
}

}  // namespace paceline::fuzz
