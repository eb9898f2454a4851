#include "settings.h"

#include <paceline/detail/remote.h>
#include <paceline/error.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>

namespace paceline::remote {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r";
  const std::size_t begin = text.find_first_not_of(kBlank);
  return begin == std::string_view::npos ? "" : text.substr(begin, text.find_last_not_of(kBlank) - begin + 1);
}

int whole_number(const char* name, int otherwise, int least, int most) {
  const std::string text = variable(name);
  if (text.empty()) return otherwise;
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  require(error == std::errc() && end == text.data() + text.size() && value >= least && value <= most, name, "='", text,
          "' is not a whole number from ", least, " to ", most);
  return value;
}

// A file of AWS's tools: where the variable says, or in the folder ~/.aws.
std::string profile_file(const char* name, const char* file) {
  const std::string given = variable(name);
  return given.empty() ? variable("HOME") + "/.aws/" + file : given;
}

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

std::string first_of(std::initializer_list<std::string> values) {
  for (const std::string& value : values)
    if (!value.empty()) return value;
  return {};
}

std::uint64_t parse_size(const std::string& text) {
  std::uint64_t number = 0, bytes = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  std::uint64_t scale = 0;
  for (const auto& [name, factor] : {std::pair<std::string_view, std::uint64_t>{"", 1},
                                     {"MB", 1'000'000},
                                     {"GB", 1'000'000'000},
                                     {"TB", 1'000'000'000'000}})
    if (unit == name) scale = factor;
  require(error == std::errc() && scale > 0 && !__builtin_mul_overflow(number, scale, &bytes) && bytes > 0,
          "PACELINE_CACHE_SIZE='", text, "' is no size; expected for instance 500MB, 20GB or 1TB");
  return bytes;
}

}  // namespace

std::string variable(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): no thread sets variables
  return value ? value : "";
}

std::string ini_value(std::string_view text, std::string_view section, std::string_view key) {
  bool inside = false;
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.starts_with('[')) {
      inside = line.ends_with(']') && trimmed(line.substr(1, line.size() - 2)) == section;
      continue;
    }
    const std::size_t equals = line.find('=');
    if (inside && equals != std::string_view::npos && trimmed(line.substr(0, equals)) == key)
      return std::string(trimmed(line.substr(equals + 1)));
  }
  return {};
}

Settings Settings::from_environment() {
  Settings settings;
  settings.attempts = whole_number("PACELINE_REMOTE_ATTEMPTS", settings.attempts, 1, 1000);
  settings.stall =
      std::chrono::seconds(whole_number("PACELINE_REMOTE_STALL", static_cast<int>(settings.stall.count()), 1, 86400));
  settings.certificates = variable("SSL_CERT_FILE");
  return settings;
}

S3Settings S3Settings::from_environment() {
  S3Settings settings;
  const std::string profile = first_of({variable("AWS_PROFILE"), "default"});
  const std::string file = profile_file("AWS_SHARED_CREDENTIALS_FILE", "credentials");
  Credentials credentials{variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"),
                          variable("AWS_SESSION_TOKEN")};
  if (credentials.key_id.empty() && credentials.secret.empty()) {
    const std::string text = text_of(file);
    credentials = {ini_value(text, profile, "aws_access_key_id"), ini_value(text, profile, "aws_secret_access_key"),
                   ini_value(text, profile, "aws_session_token")};
    settings.missing = str("neither AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are set, nor does ", file,
                           " hold both for the profile '", profile, "'");
  } else {
    settings.missing = str("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong together, and only ",
                           credentials.secret.empty() ? "the first" : "the second", " is set");
  }
  if (!credentials.key_id.empty() && !credentials.secret.empty()) settings.credentials = std::move(credentials);

  const std::string config = text_of(profile_file("AWS_CONFIG_FILE", "config"));
  const std::string section = profile == "default" ? profile : "profile " + profile;
  settings.region = first_of(
      {variable("AWS_REGION"), variable("AWS_DEFAULT_REGION"), ini_value(config, section, "region"), "us-east-1"});
  settings.endpoint = first_of(
      {variable("AWS_ENDPOINT_URL_S3"), variable("AWS_ENDPOINT_URL"), ini_value(config, section, "endpoint_url")});
  return settings;
}

}  // namespace paceline::remote

paceline::detail::CacheSettings paceline::detail::CacheSettings::from_environment() {
  const std::string size = remote::variable("PACELINE_CACHE_SIZE");
  return {remote::variable("PACELINE_CACHE"), size.empty() ? 0 : remote::parse_size(size)};
}
