#include <paceline/idx_file.h>

#include "fuzz.h"

namespace paceline::fuzz {

// MNIST's files, plain or compressed. Compression makes a byte of at most 1032.
void idx(std::string_view input) {
  const std::string path = file_of(input);
  const auto read = within((std::size_t{4} << 20) + 4 * 1032 * input.size(),
                           [&] { return parsed<Corrupt>([&] { return read_idx(path); }); });
  if (!read) return;
  write_idx(path_of("output"), *read);
  const IdxFile again = read_idx(path_of("output"));
  expect(again.shape == read->shape && again.values == read->values, "the values come back as others");
}

}  // namespace paceline::fuzz
