#pragma once
// Every fuzzer by name. CMake writes the table.

#include <string_view>
#include <vector>

namespace paceline::fuzz {

struct Fuzzer {
  const char* name;
  void (*run)(std::string_view input);
};
const std::vector<Fuzzer>& fuzzers();

}  // namespace paceline::fuzz
