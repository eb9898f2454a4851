#include <paceline/detail/memory_limit.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

namespace paceline::detail {
namespace {

// The least limit of the group at `path` and of the groups around it. In a container, the path may be one that is seen
// from outside, and only the root exists.
std::size_t least_limit(const std::string& mounted, std::string path, const char* file, std::size_t least) {
  while (true) {
    std::size_t limit = 0;
    if (std::ifstream(mounted + path + "/" + file) >> limit) least = std::min(least, limit);
    if (path.empty()) return least;
    path.erase(path.rfind('/'));
  }
}

}  // namespace

std::size_t memory_of_process(const std::string& membership, const std::string& mounted) {
  std::size_t bytes =
      static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::ifstream groups(membership);
  // A line is "number:controllers:/path"; version 2 has the number 0 and no controllers.
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos || line.compare(second + 1, 1, "/") != 0) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",";
    const std::string path = line.substr(second + 1);
    if (controllers == ",,")
      bytes = least_limit(mounted, path, "memory.max", bytes);
    else if (controllers.find(",memory,") != std::string::npos)
      bytes = least_limit(mounted + "/memory", path, "memory.limit_in_bytes", bytes);
  }
  return bytes;
}

}  // namespace paceline::detail
