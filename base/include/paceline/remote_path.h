#pragma once
// Paths that may name a file on another host: http://, https:// and s3://. The readers and writers of files take them.

#include <string>
#include <string_view>

namespace paceline {

// Is `path` a URL of a file on another host? A path without a scheme is one of this host. Throws InvalidArgument for
// any other scheme: gs://, file://, S3://.
bool is_remote(std::string_view path);

// `path` for messages and logs: a URL without user, password and query; any other path as it is. Throws as is_remote().
std::string redacted(const std::string& path);

}  // namespace paceline
