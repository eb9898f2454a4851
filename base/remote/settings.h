#pragma once
// What the environment says about files elsewhere. Read for each request, so that credentials can be renewed.

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

namespace paceline::remote {

struct Settings {
  int attempts = 8;                    // PACELINE_REMOTE_ATTEMPTS: without progress, until a failure counts
  std::chrono::seconds stall{30};      // PACELINE_REMOTE_STALL: without bytes, until an attempt counts as failed
  std::string certificates;            // SSL_CERT_FILE, of authorities that are trusted; "": the system's
  static Settings from_environment();  // throws InvalidArgument
};

struct Credentials {
  std::string key_id;
  std::string secret;
  std::string token;  // "" where the credentials last
};

struct S3Settings {
  std::optional<Credentials> credentials;
  std::string missing;   // why there are none, as a part of a sentence
  std::string region;    // AWS_REGION, AWS_DEFAULT_REGION, the profile's, or us-east-1
  std::string endpoint;  // AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's; "": Amazon's
  // The variables come first, then the profile AWS_PROFILE ("default") in the files that AWS's own tools read.
  static S3Settings from_environment();
};

// The value of `key` in a section of an INI file; "" where it is missing. Lines that are no entries are left aside.
std::string ini_value(std::string_view text, std::string_view section, std::string_view key);

// A variable's value; "" where it is not set.
std::string variable(const char* name);

}  // namespace paceline::remote
