#include <paceline/recordio.h>

#include "fuzz.h"

namespace paceline::fuzz {

// MXNet's index of a record file, and our list of checksums.
void index(std::string_view input) {
  const std::string path = file_of(input);
  const std::size_t bound = 16384 + 32 * input.size();
  if (const auto read = within(bound, [&] { return parsed<Corrupt>([&] { return read_index(path); }); })) {
    write_index(path_of("output"), *read);
    expect(read_index(path_of("output")) == *read, "the index comes back as another");
  }
  if (const auto read = within(bound, [&] { return parsed<Corrupt>([&] { return read_checksums(path); }); })) {
    write_checksums(path_of("output"), *read);
    expect(read_checksums(path_of("output")) == *read, "the checksums come back as others");
  }
}

}  // namespace paceline::fuzz
