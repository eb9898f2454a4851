#include <paceline/options.h>

#include "fuzz.h"

namespace paceline::fuzz {

void options(std::string_view input) {
  const std::size_t bound = 4096 + 256 * input.size();
  if (const auto read = within(bound, [&] { return parsed<InvalidArgument>([&] { return Options::parse(input); }); })) {
    expect(Options::parse(read->text()).text() == read->text(), "the options come back as others");
    parsed<InvalidArgument>([&] { return read->get("a", true); });
    parsed<InvalidArgument>([&] { return read->get("b", std::int64_t{0}); });
    parsed<InvalidArgument>([&] { return read->get("c", 0); });
    parsed<InvalidArgument>([&] { return read->get("d", 0.0); });
    parsed<InvalidArgument>([&] { return read->get("e", 0.0f); });
    parsed<InvalidArgument>([&] {
      read->reject_unknown("the fuzzer");
      return true;
    });
  }
  if (const auto read = within(bound, [&] { return parsed<InvalidArgument>([&] { return Spec::parse(input); }); })) {
    const Spec again = Spec::parse(read->text());
    expect(again.name == read->name && again.options.text() == read->options.text(), "the spec comes back as another");
  }
}

}  // namespace paceline::fuzz
