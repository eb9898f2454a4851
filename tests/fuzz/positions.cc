#include <paceline/data_iterator.h>

#include "fuzz.h"

namespace paceline::fuzz {

// The positions of data in a checkpoint.
void positions(std::string_view input) {
  const std::string text(input);
  const auto read =
      within(4096 + 32 * input.size(), [&] { return parsed<Corrupt>([&] { return RangeSet::parse(text); }); });
  if (!read) return;
  expect(RangeSet::parse(read->text()).text() == read->text(), "the positions come back as others");
  expect(read->count() >= 0, read->count(), " positions");
}

}  // namespace paceline::fuzz
