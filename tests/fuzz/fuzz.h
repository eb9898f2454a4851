#pragma once
// What fuzzers share. A fuzzer is a function `void NAME(std::string_view input)` in NAME.cc. It gives the input to a
// parser and checks what comes back. It throws a Finding where a property does not hold. Any exception that leaves a
// fuzzer is a defect of the parser.

#include <paceline/error.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace paceline::fuzz {

// A property that does not hold.
class Finding : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

// Throws a Finding with the joined parts unless `holds`.
template <class... Parts>
void expect(bool holds, const Parts&... parts) {
  if (!holds) throw Finding(str(parts...));
}

// What `parse` returns; none where it throws one of the `Declared` types. Other exceptions pass.
template <class... Declared, class Parse>
auto parsed(const Parse& parse) -> std::optional<std::invoke_result_t<Parse>> {
  try {
    return parse();
  } catch (const Error& error) {
    if ((... || (dynamic_cast<const Declared*>(&error) != nullptr))) return std::nullopt;
    throw;
  }
}

// Memory that the process holds now, and the most since reset_peak(). Counts operator new, and under libFuzzer malloc()
// too. Thread-safe.
std::size_t live_bytes();
std::size_t peak_bytes();
void reset_peak();

// Calls `call`. Throws a Finding where the process held more than `bytes` in addition meanwhile.
template <class Call>
auto within(std::size_t bytes, const Call& call) {
  const std::size_t before = live_bytes();
  reset_peak();
  auto result = call();
  const std::size_t peak = peak_bytes();
  const std::size_t used = peak > before ? peak - before : 0;
  expect(used <= bytes, "the parser held ", used, " bytes; at most ", bytes, " are allowed for this input");
  return result;
}

// Cuts an input into parts. Behind the end of the input there are zeros.
class Cutter {
 public:
  explicit Cutter(std::string_view input) : rest_(input) {}

  template <class T>
  T number() {
    T value{};
    const std::string_view bytes = take(sizeof(T));
    std::memcpy(&value, bytes.data(), bytes.size());
    return value;
  }
  // At most `bytes`.
  std::string_view take(std::size_t bytes) {
    const std::string_view part = rest_.substr(0, bytes);
    rest_.remove_prefix(part.size());
    return part;
  }
  // A text whose length the input says in one byte, or in two.
  std::string_view text() { return take(number<std::uint8_t>()); }
  std::string_view long_text() { return take(number<std::uint16_t>()); }
  std::string_view rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  std::string_view rest_;
};

// Writes a file of this process and returns its path. The next file of the same name takes its place.
std::string file_of(std::string_view content, const std::string& name = "input");
// The path of a file of this process that a parser's counterpart may write.
std::string path_of(const std::string& name);

}  // namespace paceline::fuzz
