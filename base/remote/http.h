#pragma once
// One HTTP request and its response, through libcurl. The first request of the process opens libcurl.

#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "settings.h"

namespace paceline::remote {

using detail::Tick;

struct HttpResponse {
  int status = 0;
  std::map<std::string, std::string> headers;  // by name in lower case
  std::string body;                            // its first 64 KiB; empty where HttpRequest::take received the body

  // The value of a header that http.cc lists in kHeaders; "" for others and where the server did not send it.
  std::string header(const std::string& name) const;
  bool good() const { return status >= 200 && status < 300; }
};

struct HttpRequest {
  std::string method = "GET";
  std::string url;
  std::vector<std::string> headers;  // "name: value"
  std::string_view body;             // of PUT and POST; the caller keeps it
  bool follow = true;                // redirections; a request for https:// follows them to https:// only
  // Takes the body of a good response in pieces. False: no more is wanted, and the exchange ends well.
  std::function<bool(const HttpResponse& response, std::string_view piece)> take = {};
};

// No response came, or only a part of one. The message is a part of a sentence.
class TransferError : public Error {
 public:
  TransferError(const std::string& what, bool lasting) : Error(what), lasting_(lasting) {}
  bool lasting() const { return lasting_; }  // trying again does not help

 private:
  bool lasting_;
};

// Throws TransferError; NotAvailable where there is no libcurl; what `tick` and `take` throw. Thread-safe. A thread
// keeps its connections.
HttpResponse exchange(const HttpRequest& request, const Settings& settings, const Tick& tick);

// Seconds since 1970 of a date in a header; -1 where it is none.
std::int64_t seconds_of_date(const std::string& date);

}  // namespace paceline::remote
