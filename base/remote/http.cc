#include "http.h"

#include <algorithm>
#include <cctype>
#include <exception>
#include <memory>

#include "curl_library.h"
#include "url.h"

namespace paceline::remote {
namespace {

constexpr std::size_t kMostBody = std::size_t{64} << 10;
constexpr std::size_t kMostHeader = 1024;
constexpr long kSlowest = 100;  // bytes per second; an attempt that is slower for the time Settings::stall fails
constexpr long kConnectSeconds = 15;
constexpr long kMostRedirections = 10;
// The headers of a response that callers ask for. Other headers are not kept.
constexpr std::string_view kHeaders[] = {"content-length", "content-range",      "date", "etag", "last-modified",
                                         "retry-after",    "x-amz-bucket-region"};

struct FreeHandle {
  void operator()(CURL* handle) const { CurlLibrary::get().easy_cleanup(handle); }
};
// Resets the options of a handle, which outlives what they point to.
struct ResetHandle {
  void operator()(CURL* handle) const { CurlLibrary::get().easy_reset(handle); }
};
struct FreeList {
  void operator()(curl_slist* list) const { CurlLibrary::get().slist_free_all(list); }
};

CURL* handle_of_this_thread(const CurlLibrary& curl) {
  thread_local std::unique_ptr<CURL, FreeHandle> handle;
  if (!handle) handle.reset(curl.easy_init());
  if (!handle) throw OutOfMemory("no memory is left for a connection");
  return handle.get();
}

// The callbacks of libcurl for one exchange. Exceptions must not pass through libcurl, so guarded() keeps them until
// finish().
class Exchange {
 public:
  Exchange(const CurlLibrary& curl, CURL* handle, const HttpRequest& request, const Tick& tick)
      : curl_(curl), handle_(handle), request_(request), tick_(tick) {}

  static std::size_t header(char* bytes, std::size_t one, std::size_t count, void* self) {
    auto& exchange = *static_cast<Exchange*>(self);
    exchange.guarded([&] { exchange.take_header({bytes, one * count}); });
    return exchange.thrown_ ? 0 : one * count;
  }
  static std::size_t body(char* bytes, std::size_t one, std::size_t count, void* self) {
    auto& exchange = *static_cast<Exchange*>(self);
    bool more = false;
    exchange.guarded([&] { more = exchange.take_body({bytes, one * count}); });
    return more ? one * count : 0;
  }
  static int progress(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    auto& exchange = *static_cast<Exchange*>(self);
    exchange.guarded([&] {
      if (exchange.tick_) exchange.tick_();
    });
    return exchange.thrown_ ? 1 : 0;
  }

  HttpResponse finish(CURLcode code, const char* reason, const Settings& settings) {
    if (thrown_) std::rethrow_exception(thrown_);
    if (code == CURLE_OK || (code == CURLE_WRITE_ERROR && enough_)) {
      response_.status = status();
      return std::move(response_);
    }
    throw TransferError(sentence(code, reason, settings), lasting(code));
  }

 private:
  template <class Body>
  void guarded(const Body& body) {
    try {
      body();
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }

  int status() const {
    long status = 0;
    curl_.easy_getinfo(handle_, CURLINFO_RESPONSE_CODE, &status);
    return static_cast<int>(status);
  }

  void take_header(std::string_view line) {
    if (line.starts_with("HTTP/")) response_.headers.clear();  // drops the headers of a redirection
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || line.size() > kMostHeader) return;
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    if (std::ranges::find(kHeaders, name) == std::end(kHeaders)) return;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    const std::size_t end = line.find_last_not_of(" \t\r\n");
    if (begin <= end && end != std::string_view::npos)
      response_.headers[name] = std::string(line.substr(begin, end - begin + 1));
  }

  bool take_body(std::string_view piece) {
    response_.status = status();
    if (request_.take && response_.good()) {
      enough_ = !request_.take(response_, piece);
      return !enough_;
    }
    response_.body.append(piece.substr(0, kMostBody - std::min(kMostBody, response_.body.size())));
    return true;
  }

  std::string sentence(CURLcode code, const char* reason, const Settings& settings) const {
    if (code == CURLE_OPERATION_TIMEDOUT && std::string_view(reason).starts_with("Operation too slow"))
      return str("nothing, or hardly anything, came for ", settings.stall.count(), " s");
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
      return str("TLS failed: ", reason, "; SSL_CERT_FILE names a file of the authorities to trust");
    std::string text = *reason ? reason : curl_.easy_strerror(code);
    while (text.ends_with('\n')) text.pop_back();
    if (!text.empty()) text[0] = static_cast<char>(std::tolower(static_cast<unsigned char>(text[0])));
    return printable(text, 300);
  }

  static bool lasting(CURLcode code) {
    switch (code) {
      case CURLE_URL_MALFORMAT:
      case CURLE_UNSUPPORTED_PROTOCOL:
      case CURLE_NOT_BUILT_IN:
      case CURLE_TOO_MANY_REDIRECTS:
      case CURLE_PEER_FAILED_VERIFICATION:
      case CURLE_SSL_CACERT_BADFILE:
      case CURLE_SSL_CERTPROBLEM:
      case CURLE_LOGIN_DENIED: return true;
      default: return false;
    }
  }

  const CurlLibrary& curl_;
  CURL* const handle_;
  const HttpRequest& request_;
  const Tick& tick_;
  HttpResponse response_;
  bool enough_ = false;
  std::exception_ptr thrown_;
};

}  // namespace

std::string HttpResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? std::string() : found->second;
}

HttpResponse exchange(const HttpRequest& request, const Settings& settings, const Tick& tick) {
  const CurlLibrary& curl = CurlLibrary::get();
  CURL* const handle = handle_of_this_thread(curl);
  const std::unique_ptr<CURL, ResetHandle> reset(handle);  // its connections stay
  Exchange state(curl, handle, request, tick);
  const auto set = [&](CURLoption option, auto value) { curl.easy_setopt(handle, option, value); };
  char reason[CURL_ERROR_SIZE] = {};

  std::unique_ptr<curl_slist, FreeList> headers;
  const auto add = [&](const char* header) {
    curl_slist* const longer = curl.slist_append(headers.get(), header);
    if (!longer) throw OutOfMemory("no memory is left for a request");
    if (!headers) headers.reset(longer);  // else it is the same list
  };
  for (const std::string& header : request.headers) add(header.c_str());
  if (request.method != "GET") {
    add("Expect:");  // no pause before the body
    add("Content-Type: application/octet-stream");
    set(CURLOPT_POSTFIELDS, request.body.empty() ? "" : request.body.data());
    set(CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(request.body.size()));
    set(CURLOPT_CUSTOMREQUEST, request.method.c_str());
  }
  set(CURLOPT_HTTPHEADER, headers.get());
  set(CURLOPT_URL, request.url.c_str());
  set(CURLOPT_PATH_AS_IS, 1L);
  set(CURLOPT_USERAGENT, "paceline");
  set(CURLOPT_PROTOCOLS_STR, "http,https");
  set(CURLOPT_REDIR_PROTOCOLS_STR, request.url.starts_with("https") ? "https" : "http,https");
  set(CURLOPT_FOLLOWLOCATION, request.follow ? 1L : 0L);
  set(CURLOPT_MAXREDIRS, kMostRedirections);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_CONNECTTIMEOUT, std::min<long>(kConnectSeconds, settings.stall.count()));
  set(CURLOPT_LOW_SPEED_LIMIT, kSlowest);
  set(CURLOPT_LOW_SPEED_TIME, static_cast<long>(settings.stall.count()));
  set(CURLOPT_ERRORBUFFER, static_cast<char*>(reason));
  if (!settings.certificates.empty()) set(CURLOPT_CAINFO, settings.certificates.c_str());
  set(CURLOPT_HEADERFUNCTION, &Exchange::header);
  set(CURLOPT_HEADERDATA, static_cast<void*>(&state));
  set(CURLOPT_WRITEFUNCTION, &Exchange::body);
  set(CURLOPT_WRITEDATA, static_cast<void*>(&state));
  set(CURLOPT_XFERINFOFUNCTION, &Exchange::progress);
  set(CURLOPT_XFERINFODATA, static_cast<void*>(&state));
  set(CURLOPT_NOPROGRESS, 0L);
  const CURLcode code = curl.easy_perform(handle);
  return state.finish(code, reason, settings);
}

std::int64_t seconds_of_date(const std::string& date) {
  return static_cast<std::int64_t>(CurlLibrary::get().getdate(date.c_str(), nullptr));
}

}  // namespace paceline::remote
