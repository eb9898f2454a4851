// A small file is one PUT. A large one is sent in parts, which become a file when all are there: POST ?uploads gives a
// number, PUT ?partNumber=1&uploadId=... sends a part and gives its tag, POST ?uploadId=... with the tags ends it.

#include <paceline/detail/remote.h>

#include <algorithm>
#include <map>

#include "attempts.h"
#include "file_bytes.h"
#include "s3.h"
#include "url.h"

namespace paceline {
namespace {

using namespace remote;

constexpr std::uint64_t kPart = std::uint64_t{32} << 20;
constexpr std::uint64_t kMostParts = 10000;

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
  HttpResponse send(const char* method, const std::string& body, const Query& query, int accept = 0) {
    Attempts attempts("write", url_, none_);
    HttpResponse response = attempts.perform([&] { return s3_request(method, url_, body, query); }, accept);
    made_ = attempts.made();
    return response;
  }

  // The text that ends the upload.
  std::string send_parts() {
    std::string list = "<CompleteMultipartUpload>";
    std::uint64_t number = 1;
    for (std::uint64_t begin = 0; begin < bytes_; begin += part_, ++number) {
      const std::uint64_t size = std::min(part_, bytes_ - begin);
      const HttpResponse response = send("PUT", read_at(file_, begin, size, shown(url_)),
                                         {{"partNumber", std::to_string(number)}, {"uploadId", id_}});
      list += str("<Part><PartNumber>", number, "</PartNumber><ETag>", xml_escaped(response.header("etag")),
                  "</ETag></Part>");
    }
    return list + "</CompleteMultipartUpload>";
  }

  void finish(const std::string& list) {
    constexpr int kNoSuchUpload = 404;
    const HttpResponse response = send("POST", list, {{"uploadId", id_}}, kNoSuchUpload);
    if (response.good()) return;
    // An attempt whose answer was lost may have ended the upload.
    const auto there = made_ > 1 ? detail::read_start(url_, 1) : std::nullopt;
    if (!there || there->size != bytes_)
      Attempts("write", url_, none_).refuse("the server has forgotten the parts of the upload");
  }

  // The server would keep, and charge for, the parts.
  void give_up() {
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
  int made_ = 0;
};

}  // namespace

void detail::upload(int file, std::uint64_t bytes, const std::string& url) {
  if (!url.starts_with("s3://"))
    throw IoError(str("cannot write ", shown(url), ": only files of s3:// can be written on other hosts"));
  Upload(file, bytes, url).run();
}

}  // namespace paceline
