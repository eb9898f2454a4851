#include "refusal.h"

#include <typeinfo>

#include "fuzz.h"

namespace paceline::fuzz {
namespace {

constexpr std::size_t kText = 50'000'000;  // as for every body: see body.cc

struct Thrown {
  const std::type_info* type;
  std::string text;
};

Thrown thrown(const std::exception_ptr& error) {
  expect(error != nullptr, "a refusal without an error");
  try {
    std::rethrow_exception(error);
  } catch (const Error& refused) {
    return {&typeid(refused), refused.what()};
  }
}

void check_round_trip(const std::exception& error) {
  const Thrown again = thrown(error_of(refusal_of(error)));
  expect(*again.type == typeid(error) && again.text == error.what(), "a ", typeid(error).name(), " comes back as ",
         again.type->name(), " with the text '", again.text, "'");
}

}  // namespace

// A refusal of a peer, and the text of an error of our own, which may name keys of any bytes.
void refusal(std::string_view input) {
  const std::exception_ptr error = within(kText + 8 * input.size(), [&] { return error_of(std::string(input)); });
  try {
    std::rethrow_exception(error);
  } catch (const Error& refused) {
    check_round_trip(refused);
  }
  check_round_trip(InvalidArgument(std::string(input.substr(0, input.find('\0')))));
}

}  // namespace paceline::fuzz
