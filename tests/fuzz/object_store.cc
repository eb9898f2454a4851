#include <paceline/detail/remote.h>

#include "fuzz.h"
#include "remote/http.h"
#include "remote/s3.h"
#include "remote/settings.h"
#include "remote/url.h"

namespace paceline::fuzz {

// What object stores answer, files of profiles and names of objects.
void object_store(std::string_view input) {
  const std::string text(input);
  for (const char* name : {"Code", "Region", "UploadId"}) {
    const std::string found = remote::xml_text(input, name);
    expect(input.find(found) != std::string_view::npos, "the element holds what the answer does not");
  }
  expect(input.find(remote::ini_value(input, "default", "aws_access_key_id")) != std::string_view::npos,
         "the profile holds what its file does not");
  for (const char c : remote::printable(input, input.size()) + remote::shown(input))
    expect(c >= ' ' && c <= '~', "a message holds a byte that is not printable");
  remote::seconds_of_date(text.substr(0, text.find('\0')));
  const std::string url = "s3://" + text;
  if (const auto place = parsed<InvalidArgument>([&] { return remote::S3Place::parse(url); }))
    expect(url.substr(5, place->bucket.size()) == place->bucket && url.substr(6 + place->bucket.size()) == place->key,
           "the object comes back as another");
}

}  // namespace paceline::fuzz
