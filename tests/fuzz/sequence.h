#pragma once
// The input of the fuzzer `sequences`: a set-up, then messages. Its mutator reads and writes the same form.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::fuzz {

constexpr std::size_t kMostSent = 24;
constexpr std::uint8_t kNoRequest = 255;

// A message as the input has it. What the numbers choose, sequences.cc says.
struct Sent {
  std::uint8_t to = 0;       // whom it is for
  std::uint8_t from = 0;     // whose incarnation it carries
  std::uint8_t kind = 0;     // of MessageKind
  std::uint8_t epoch = 0;    // 0: the roster's; else so many later
  std::uint8_t request = 0;  // 0: a new number; kNoRequest: 0; else that number
  std::string body;
  std::vector<std::uint16_t> frames;  // sizes of the payload's frames
};

struct Sequence {
  std::uint8_t setup = 0;
  std::vector<Sent> messages;
};

// Reads any bytes; what is missing is 0.
Sequence read_sequence(std::string_view input);
std::string write_sequence(const Sequence& sequence);

}  // namespace paceline::fuzz
