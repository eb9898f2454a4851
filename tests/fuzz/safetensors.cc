#include <map>

#include "arrays.h"

namespace paceline::fuzz {
namespace {

using Metadata = std::vector<std::pair<std::string, std::string>>;

NamedArrays by_name(NamedArrays arrays) {
  std::ranges::sort(arrays, {}, [](const auto& entry) { return entry.first; });
  return arrays;
}

}  // namespace

void safetensors(std::string_view input) {
  const std::string path = file_of(input);
  Metadata metadata;
  const auto read = within(65536 + 256 * input.size(), [&] {
    return parsed<Corrupt, NotAvailable, InvalidArgument>([&] { return load_safetensors(path, &metadata); });
  });
  if (!read) return;
  std::uint64_t bytes = sizeof(std::uint64_t) + Cutter(input).number<std::uint64_t>();
  for (const auto& [name, array] : *read) bytes += array.bytes();
  expect(bytes == input.size(), "header and arrays have ", bytes, " of the file's ", input.size(), " bytes");
  save_safetensors(path_of("output"), *read, metadata);
  Metadata again;
  const NamedArrays loaded = load_safetensors(path_of("output"), &again);
  expect(same(by_name(loaded), by_name(*read)), "the arrays come back as others");
  expect(again == metadata, "the metadata come back as others");
}

}  // namespace paceline::fuzz
