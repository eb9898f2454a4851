#include <paceline/detail/descriptor.h>
#include <paceline/detail/remote.h>

#include <charconv>
#include <filesystem>
#include <fstream>
#include <limits>

#include "attempts.h"
#include "file_bytes.h"
#include "s3.h"
#include "url.h"

namespace paceline {
namespace {

using namespace remote;

constexpr std::uint64_t kProgress = std::uint64_t{1} << 20;  // bytes that make a failed attempt worth it

bool is_s3(const std::string& url) { return url.starts_with("s3://"); }

// `range`: "bytes=5-", or "" for the whole file.
HttpRequest get(const std::string& url, const std::string& range) {
  HttpRequest request;
  if (is_s3(url))
    request = s3_request("GET", url);
  else
    request.url = url;
  if (!range.empty()) request.headers.push_back("Range: " + range);
  return request;
}

// What "bytes 5-9/20" says.
struct ContentRange {
  std::uint64_t begin = 0;
  std::optional<std::uint64_t> size;  // of the file
};

std::optional<std::uint64_t> number_of(std::string_view text) {
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

std::optional<ContentRange> content_range(const HttpResponse& response) {
  const std::string text = response.header("content-range");
  constexpr std::string_view kUnit = "bytes ";
  const std::size_t dash = text.find('-'), slash = text.find('/');
  if (!text.starts_with(kUnit) || dash == std::string::npos || slash == std::string::npos || slash < dash) return {};
  const auto begin = number_of(std::string_view(text).substr(kUnit.size(), dash - kUnit.size()));
  if (!begin) return {};
  return ContentRange{*begin, number_of(std::string_view(text).substr(slash + 1))};
}

// Receives a file, in several attempts where one breaks off. The next one goes on from there if the server can tell
// that the file is still the same.
class Download {
 public:
  Download(const std::string& url, int file, std::uint64_t most, const Tick& tick)
      : url_(url), file_(file), most_(most), attempts_("read", url, tick) {}

  std::uint64_t run() {
    for (;;) {
      const HttpResponse response = attempts_.perform([&] { return request(); }, kRangeRefused);
      if (response.status == kRangeRefused) {
        if (got_ == 0) attempts_.refuse("it answers 416 to a request for the whole file");
        begin_anew();
        attempts_.failed("the file has become shorter meanwhile");
        continue;
      }
      if (got_ == 0) empty_file(file_, name());
      if (wrong_part_) {
        begin_anew();
        attempts_.failed("the server sends another part than the one that was asked for");
        continue;
      }
      if (!size_ || got_ == *size_) return got_;
      attempts_.failed(str("only ", got_, " of ", *size_, " bytes came"));
    }
  }

 private:
  static constexpr int kRangeRefused = 416;

  std::string name() const { return remote::shown(url_); }

  void begin_anew() {
    got_ = 0;
    validator_.clear();
    empty_file(file_, name());
  }

  HttpRequest request() {
    if (got_ >= best_ + kProgress) attempts_.made_progress();
    best_ = std::max(best_, got_);
    if (validator_.empty()) got_ = 0;
    HttpRequest request = get(url_, got_ > 0 ? str("bytes=", got_, "-") : "");
    if (got_ > 0) request.headers.push_back("If-Range: " + validator_);
    begun_ = wrong_part_ = false;
    request.take = [this](const HttpResponse& response, std::string_view piece) { return take(response, piece); };
    return request;
  }

  // Of a response's first piece.
  void begin(const HttpResponse& response) {
    const auto range = response.status == 206 ? content_range(response) : std::nullopt;
    wrong_part_ = response.status == 206 && (!range || range->begin != got_);
    if (wrong_part_) return;
    if (response.status != 206) {
      got_ = 0;
      empty_file(file_, name());
    }
    if (!range)
      size_ = number_of(response.header("content-length"));
    else if (range->size || got_ == 0)  // else the first response may have said it
      size_ = range->size;
    const std::string tag = response.header("etag");
    validator_ = !tag.empty() && !tag.starts_with("W/") ? tag : response.header("last-modified");
  }

  bool take(const HttpResponse& response, std::string_view piece) {
    if (!begun_) begin(response);
    begun_ = true;
    if (wrong_part_) return false;
    if (got_ + piece.size() > most_) attempts_.refuse(str("it has more than the ", most_, " bytes expected"));
    write_at(file_, got_, piece, name());
    got_ += piece.size();
    return true;
  }

  const std::string& url_;
  const int file_;
  const std::uint64_t most_;
  Attempts attempts_;
  std::uint64_t got_ = 0, best_ = 0;
  std::optional<std::uint64_t> size_;
  std::string validator_;  // of the file that the bytes so far are from; "": the server names none
  bool begun_ = false, wrong_part_ = false;
};

std::optional<detail::FileStart> local_start(const std::string& path, std::size_t count) {
  detail::FileStart start{std::string(count, '\0'), {}};
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  file.read(start.bytes.data(), static_cast<std::streamsize>(count));
  start.bytes.resize(static_cast<std::size_t>(file.gcount()));
  std::error_code none;
  if (const std::uintmax_t size = std::filesystem::file_size(path, none); !none) start.size = size;
  return start;
}

}  // namespace

bool is_remote(std::string_view path) {
  const std::string_view scheme = scheme_of(path);
  if (scheme.empty() || scheme == "s3" || scheme == "http" || scheme == "https") return !scheme.empty();
  throw InvalidArgument(str("'", remote::shown(path), "' is no place that can be read or written: ",
                            scheme == "file" ? "write the path without file://"
                                             : "known are s3://, http://, https:// and paths of this host"));
}

std::string redacted(const std::string& path) { return is_remote(path) ? remote::shown(path) : path; }

std::string detail::join_url(const std::string& folder, std::string_view name) {
  return str(folder, '/', is_s3(folder) ? std::string(name) : percent_encoded(name, "/"));
}

bool detail::exists(const std::string& path) {
  return is_remote(path) ? read_start(path, 1).has_value() : std::filesystem::exists(path);
}

std::uint64_t detail::download(const std::string& url, int file, std::uint64_t most, const Tick& tick) {
  return Download(url, file, most, tick).run();
}

int detail::download_unnamed(const std::string& url) {
  Descriptor file(unnamed_file());
  download(url, file.number(), std::numeric_limits<std::uint64_t>::max());
  return file.release();
}

std::optional<detail::FileStart> detail::read_start(const std::string& path, std::size_t count) {
  if (!is_remote(path)) return local_start(path, count);
  constexpr int kRangeRefused = 416;  // of a file without bytes
  FileStart start;
  const Tick none;
  Attempts attempts("read", path, none);
  const auto make = [&] {
    HttpRequest request = get(path, str("bytes=0-", count - 1));
    start.bytes.clear();
    request.take = [&](const HttpResponse&, std::string_view piece) {
      start.bytes.append(piece.substr(0, count - start.bytes.size()));
      return start.bytes.size() < count;
    };
    return request;
  };
  try {
    const HttpResponse response = attempts.perform(make, kRangeRefused);
    if (response.status == kRangeRefused) return FileStart{"", 0};
    const auto range = content_range(response);
    start.size = range ? range->size : number_of(response.header("content-length"));
    return start;
  } catch (const NoSuchFile&) {
    return {};
  }
}

}  // namespace paceline
