#pragma once
// Requests to an object store that speaks S3: addressed and signed.

#include <map>
#include <string>

#include "http.h"

namespace paceline::remote {

struct S3Place {
  std::string bucket;
  std::string key;
  // The place that s3://BUCKET/KEY names. Throws InvalidArgument where it names no object.
  static S3Place parse(const std::string& url);
};

// A signed request for the object at `url`, s3://BUCKET/KEY. Where an endpoint is set, the bucket stands in the path.
// On Amazon's own servers it stands in the host's name, unless it contains a dot, which their certificate does not
// cover. The caller keeps the body. Throws IoError where there are no credentials.
HttpRequest s3_request(const std::string& method, const std::string& url, std::string_view body = {},
                       const std::map<std::string, std::string>& query = {});

}  // namespace paceline::remote
