#include "s3.h"

#include <ctime>

#include "s3_signature.h"
#include "url.h"

namespace paceline::remote {
namespace {

std::string now() {
  const std::time_t seconds = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[32];
  const std::size_t size = std::strftime(text, sizeof text, "%Y%m%dT%H%M%SZ", &parts);
  return {text, size};
}

// The host as the header Host names it: without the port that the scheme has anyway.
std::string host_of(const std::string& server) {
  std::string host = server.substr(server.find("://") + 3);
  const std::string usual = server.starts_with("https") ? ":443" : ":80";
  if (host.ends_with(usual)) host.resize(host.size() - usual.size());
  return host;
}

struct Address {
  std::string server;  // "https://host:port"
  std::string path;    // encoded
};

Address address_of(const S3Place& place, const S3Settings& settings) {
  const std::string key = '/' + percent_encoded(place.key, "/");
  if (settings.endpoint.empty()) {
    const std::string amazon = str("s3.", settings.region, ".amazonaws.com");
    // A wildcard of a certificate covers no dot.
    if (place.bucket.find('.') == std::string::npos) return {str("https://", place.bucket, '.', amazon), key};
    return {"https://" + amazon, '/' + place.bucket + key};
  }
  std::string server = settings.endpoint;
  while (server.ends_with('/')) server.pop_back();
  const std::size_t scheme = server.find("://");
  require((server.starts_with("http://") || server.starts_with("https://")) && server.find('@') == std::string::npos,
          "the endpoint '", shown(server), "' (AWS_ENDPOINT_URL) is not http://HOST:PORT or https://HOST:PORT");
  const std::size_t slash = server.find('/', scheme + 3);
  const std::string prefix = slash == std::string::npos ? "" : server.substr(slash);
  return {server.substr(0, slash), prefix + '/' + place.bucket + key};
}

}  // namespace

S3Place S3Place::parse(const std::string& url) {
  constexpr std::string_view kScheme = "s3://";
  const std::size_t slash = url.find('/', kScheme.size());
  S3Place place;
  place.bucket = url.substr(kScheme.size(), slash == std::string::npos ? slash : slash - kScheme.size());
  if (slash != std::string::npos) place.key = url.substr(slash + 1);
  require(!place.bucket.empty() && !place.key.empty() && percent_encoded(place.bucket) == place.bucket, "'", shown(url),
          "' names no object: expected s3://BUCKET/KEY");
  return place;
}

HttpRequest s3_request(const std::string& method, const std::string& url, std::string_view body,
                       const std::map<std::string, std::string>& query) {
  const S3Place place = S3Place::parse(url);
  const S3Settings settings = S3Settings::from_environment();
  if (!settings.credentials)
    throw IoError(str("there are no credentials for ", shown(url), ": ", settings.missing,
                      "; an object that everybody may read has an https:// address, too"));
  const Address address = address_of(place, settings);
  ToSign sign{.method = method,
              .path = address.path,
              .query = query,
              .headers = {},
              .body_sha256 = sha256_hex(body),
              .time = now(),
              .region = settings.region};
  sign.headers = {
      {"host", host_of(address.server)}, {"x-amz-content-sha256", sign.body_sha256}, {"x-amz-date", sign.time}};
  if (!settings.credentials->token.empty()) sign.headers["x-amz-security-token"] = settings.credentials->token;

  HttpRequest request;
  request.method = method;
  request.url = address.server + address.path;
  if (!query.empty()) request.url += '?' + canonical_query(query);
  request.body = body;
  request.follow = false;  // a signature is for one host
  for (const auto& [name, value] : sign.headers) request.headers.push_back(str(name, ": ", value));
  request.headers.push_back("Authorization: " + authorization(sign, *settings.credentials));
  return request;
}

}  // namespace paceline::remote
