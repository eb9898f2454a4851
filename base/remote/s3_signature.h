#pragma once
// AWS Signature Version 4 in headers. The signature covers the method, the place, these headers and the body.

#include <map>
#include <string>
#include <string_view>

#include "settings.h"

namespace paceline::remote {

struct ToSign {
  std::string method;                          // "GET"
  std::string path;                            // begins with '/'; percent-encoded but for slashes
  std::map<std::string, std::string> query;    // not encoded
  std::map<std::string, std::string> headers;  // names in lower case, values without blanks around them
  std::string body_sha256;                     // sha256_hex() of the body
  std::string time;                            // "20130524T000000Z"
  std::string region;
};

std::string sha256_hex(std::string_view bytes);

// The query as it stands in the URL: sorted and percent-encoded.
std::string canonical_query(const std::map<std::string, std::string>& query);

// The value of the header Authorization.
std::string authorization(const ToSign& request, const Credentials& credentials);

}  // namespace paceline::remote
