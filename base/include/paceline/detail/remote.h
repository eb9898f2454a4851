#pragma once
// Files on web servers (http://, https://) and in object stores (s3://), as the readers and writers of files use them.
// A failure that may pass is tried again, with growing pauses. A failed request throws IoError with the URL. An s3://
// URL that names no object throws InvalidArgument. NotAvailable is thrown where libcurl is missing. Neither credentials
// nor the query of a URL appear in a message. Thread-safe.

#include <paceline/remote_path.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace paceline::detail {

// Does `path` exist? It may be a URL of a file, or a file or folder of this host.
bool exists(const std::string& path);

// The URL of `name`, which may hold slashes, in a folder. In http:// and https://, the name is percent-encoded.
std::string join_url(const std::string& folder, std::string_view name);

// Called again and again while a function below waits: at least about once a second. What it throws ends the function.
using Tick = std::function<void()>;
// While a TickScope lives, functions that its thread calls without a tick use the tick of the scope.
class TickScope {
 public:
  explicit TickScope(Tick tick);
  ~TickScope();
  TickScope(const TickScope&) = delete;
  TickScope& operator=(const TickScope&) = delete;

 private:
  Tick before_;
};

// Writes the file at `url` into an open file, from offset 0 on, and returns its bytes. Throws IoError also where it has
// more than `most` bytes.
std::uint64_t download(const std::string& url, int file, std::uint64_t most, const Tick& tick = {});
// The same into a new file without a name, whose descriptor is returned.
int download_unnamed(const std::string& url);

// The first bytes of a local or remote file, and its size where that is known. read_start() returns none where the file
// does not exist.
struct FileStart {
  std::string bytes;
  std::optional<std::uint64_t> size;
};
std::optional<FileStart> read_start(const std::string& path, std::size_t count);

// Writes the first `bytes` of an open file to `url`, which is one of s3://. Others see the old file or the new one.
void upload(int file, std::uint64_t bytes, const std::string& url);

// Where copies of files of other hosts are kept, as the environment says.
struct CacheSettings {
  std::string folder;                       // PACELINE_CACHE; "" where it is not set
  std::uint64_t most_bytes = 0;             // PACELINE_CACHE_SIZE; 0 where it is not set
  static CacheSettings from_environment();  // throws InvalidArgument
};

// Creates a file without a name, for uploads and downloads. It vanishes with its descriptor, even after a kill. It is
// in the folder PACELINE_CACHE, or in that for temporary files.
int unnamed_file();

}  // namespace paceline::detail
