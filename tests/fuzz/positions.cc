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
  std::int64_t last = -1;
  for (const Range& range : read->ranges()) {
    expect(range.begin > last && range.end > range.begin, "positions ", range.begin, " to ", range.end, " after ",
           last);
    last = range.end;
  }
}

}  // namespace paceline::fuzz
