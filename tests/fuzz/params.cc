#include "arrays.h"

namespace paceline::fuzz {

void params(std::string_view input) {
  const std::string path = file_of(input);
  const auto read = within(65536 + 128 * input.size(), [&] {
    return parsed<Corrupt, NotAvailable, InvalidArgument>([&] { return load_params(path); });
  });
  if (!read) return;
  // What holds no array cannot be saved.
  if (std::ranges::any_of(*read, [](const auto& entry) { return entry.second.is_none(); })) return;
  save_params(path_of("output"), *read);
  expect(same(load_params(path_of("output")), *read), "the arrays come back as others");
}

}  // namespace paceline::fuzz
