#pragma once
// Requests to an object store that speaks S3: addressed and signed.

#include <map>
#include <string>

#include "http.h"

namespace paceline::remote {

struct S3Place {
  std::string bucket;
  std::string key;
  // Of s3://BUCKET/KEY. Throws InvalidArgument.
  static S3Place parse(const std::string& url);
};

// With an endpoint, the bucket stands in the path. Amazon's own servers have it in the name of the host, where a
// certificate allows that. Throws IoError where there are no credentials.
HttpRequest s3_request(const std::string& method, const std::string& url, std::string body = {},
                       const std::map<std::string, std::string>& query = {});

}  // namespace paceline::remote
