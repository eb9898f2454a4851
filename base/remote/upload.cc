// A small file is one PUT. A large one is sent in parts, which become a file when all are there: POST ?uploads gives a
// number, PUT ?partNumber=1&uploadId=... sends a part and gives its tag, POST ?uploadId=... with the tags ends it.

#include <paceline/detail/in_parallel.h>
#include <paceline/detail/remote.h>

#include <algorithm>
#include <map>
#include <vector>

#include "attempts.h"
#include "file_bytes.h"
#include "s3.h"
#include "url.h"

namespace paceline {
namespace {

using namespace remote;

constexpr std::uint64_t kPart = std::uint64_t{32} << 20;
constexpr std::uint64_t kMostParts = 10000;
constexpr int kAtOnce = 4;  // parts on their way, each of them in memory

using Query = std::map<std::string, std::string>;

std::string xml_escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '&')
      escaped += "&amp;";
    else if (c == '<')
      escaped += "&lt;";
    else
      escaped += c;
  }
  return escaped;
}

class Upload {
 public:
  Upload(int file, std::uint64_t bytes, const std::string& url) : file_(file), bytes_(bytes), url_(url) {}

  void run() {
    part_ = std::max(kPart, (bytes_ + kMostParts - 1) / kMostParts);
    if (bytes_ <= part_) {
      send("PUT", read_at(file_, 0, bytes_, shown(url_)), {});
      return;
    }
    // A server that lost track answers twice; the part that was begun first is then left to the server's own cleaning.
    id_ = xml_text(send("POST", "", {{"uploads", ""}}).body, "UploadId");
    if (id_.empty()) Attempts("write", url_, none_).refuse("the server gives no number to an upload in parts");
    try {
      finish(send_parts());
    } catch (...) {
      give_up();
      throw;
    }
  }

 private:
  HttpResponse send(const char* method, const std::string& body, const Query& query) const {
    return Attempts("write", url_, none_).perform([&] { return s3_request(method, url_, body, query); });
  }

  // Does the file at the URL have the bytes of this upload, and no others? False where it cannot be read.
  bool has_arrived() const {
    std::uint64_t same = 0;  // bytes, from the first on
    bool differs = false;
    const auto make = [&] {
      HttpRequest request = s3_request("GET", url_);
      same = 0;
      differs = false;
      request.take = [&](const HttpResponse&, std::string_view piece) {
        differs = piece.size() > bytes_ - same || read_at(file_, same, piece.size(), shown(url_)) != piece;
        same += piece.size();
        return !differs;
      };
      return request;
    };
    try {
      Attempts("read", url_, none_).perform(make);
    } catch (const IoError&) {
      return false;
    }
    return !differs && same == bytes_;
  }

  // The text that ends the upload.
  std::string send_parts() const {
    std::vector<std::string> tags(static_cast<std::size_t>((bytes_ + part_ - 1) / part_));
    detail::in_parallel(tags.size(), kAtOnce, [&](std::size_t i) {
      const std::uint64_t begin = i * part_;
      const std::uint64_t size = std::min(part_, bytes_ - begin);
      const HttpResponse response = send("PUT", read_at(file_, begin, size, shown(url_)),
                                         {{"partNumber", std::to_string(i + 1)}, {"uploadId", id_}});
      tags[i] = xml_escaped(response.header("etag"));
    });
    std::string list = "<CompleteMultipartUpload>";
    for (std::size_t i = 0; i < tags.size(); ++i)
      list += str("<Part><PartNumber>", i + 1, "</PartNumber><ETag>", tags[i], "</ETag></Part>");
    return list + "</CompleteMultipartUpload>";
  }

  void finish(const std::string& list) const {
    constexpr int kNoSuchUpload = 404;
    Attempts attempts("write", url_, none_);
    const HttpResponse response = attempts.perform(
        [&] {
          return s3_request("POST", url_, list, {{"uploadId", id_}});
        },
        kNoSuchUpload);
    if (response.good()) return;
    // An attempt whose answer was lost may have ended the upload.
    if (attempts.made() == 1 || !has_arrived()) attempts.refuse("the server has forgotten the parts of the upload");
  }

  // The server would keep, and charge for, the parts.
  void give_up() const {
    try {
      exchange(s3_request("DELETE", url_, "", {{"uploadId", id_}}), Settings::from_environment(), none_);
    } catch (const Error&) {
      // What made it give up is the error to tell.
    }
  }

  const int file_;
  const std::uint64_t bytes_;
  const std::string& url_;
  const Tick none_;
  std::uint64_t part_ = 0;
  std::string id_;
};

}  // namespace

void detail::upload(int file, std::uint64_t bytes, const std::string& url) {
  if (!url.starts_with("s3://"))
    throw IoError(str("cannot write ", shown(url), ": only files of s3:// can be written on other hosts"));
  Upload(file, bytes, url).run();
}

}  // namespace paceline
