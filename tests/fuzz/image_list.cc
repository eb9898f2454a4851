#include <paceline/image_list.h>

#include <charconv>

#include "fuzz.h"

namespace paceline::fuzz {
namespace {

template <class T>
std::string written(T number) {
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, number).ptr};
}

bool same(const ImageListEntry& a, const ImageListEntry& b) {
  return a.id == b.id && a.labels == b.labels && a.path == b.path;
}

}  // namespace

void image_list(std::string_view input) {
  const std::string path = file_of(input);
  const auto read = within(16384 + 256 * input.size(),
                           [&] { return parsed<Corrupt, InvalidArgument>([&] { return read_image_list(path, ""); }); });
  if (!read) return;
  std::string text;
  for (const ImageListEntry& entry : read->entries) {
    expect(!entry.labels.empty(), "an entry without labels");
    text += written(entry.id);
    for (const float label : entry.labels) text += '\t' + written(label);
    text += '\t' + entry.path + '\n';
  }
  const ImageList again = read_image_list(file_of(text), "");
  expect(std::ranges::equal(again.entries, read->entries, same), "the entries come back as others");
}

}  // namespace paceline::fuzz
