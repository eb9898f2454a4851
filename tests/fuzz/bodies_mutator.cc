// Changes an input of the fuzzers `body` and `layout`, which is a number and a body.

#include <algorithm>

#include "body_mutator.h"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  paceline::fuzz::Random random(seed);
  if (size < 2 || random() % 4 == 0) return LLVMFuzzerMutate(data, size, max_size);
  const std::string body = paceline::fuzz::mutated_body({reinterpret_cast<const char*>(data) + 1, size - 1}, random);
  const std::size_t kept = std::min(body.size(), max_size - 1);
  std::copy_n(body.data(), kept, reinterpret_cast<char*>(data) + 1);
  return kept + 1;
}
