// Changes an input of the fuzzer `sequences` so that it stays a sequence of messages: messages are dropped, repeated,
// moved and copied, and bodies change.

#include <algorithm>

#include "body_mutator.h"
#include "sequence.h"

namespace paceline::fuzz {
namespace {

std::size_t below(Random& random, std::size_t limit) { return limit == 0 ? 0 : random() % limit; }

void mutate(Sequence& sequence, Random& random) {
  std::vector<Sent>& messages = sequence.messages;
  if (messages.empty()) {
    messages.emplace_back();
    return;
  }
  const auto any = [&] { return messages.begin() + static_cast<std::ptrdiff_t>(below(random, messages.size())); };
  Sent& sent = *any();
  switch (random() % 16) {
    case 0: messages.erase(any()); break;
    case 1: messages.insert(any(), Sent(*any())); break;
    case 2: std::iter_swap(any(), any()); break;
    case 3: sent.to = static_cast<std::uint8_t>(random() % 3); break;
    case 4: sent.from = static_cast<std::uint8_t>(random() % 6); break;
    case 5: sent.kind = any()->kind; break;
    case 6: sent.epoch = static_cast<std::uint8_t>(random() % 3); break;
    case 7: sent.request = random() % 6 == 0 ? kNoRequest : static_cast<std::uint8_t>(random() % 6); break;
    case 8:
      if (!sent.frames.empty() && random() % 4 > 0)
        sent.frames[below(random, sent.frames.size())] = static_cast<std::uint16_t>(8 * below(random, 65));
      else if (sent.frames.size() < 4)
        sent.frames.push_back(32);
      break;
    case 9:
      if (random() % 8 == 0) sequence.setup = static_cast<std::uint8_t>(random() % 8);
      break;
    default: sent.body = mutated_body(sent.body, random);
  }
}

}  // namespace
}  // namespace paceline::fuzz

extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned seed) {
  using namespace paceline::fuzz;
  Random random(seed);
  Sequence sequence = read_sequence({reinterpret_cast<const char*>(data), size});
  for (std::size_t changes = 1 + random() % 3; changes > 0; --changes) mutate(sequence, random);
  while (!sequence.messages.empty() && write_sequence(sequence).size() > max_size) sequence.messages.pop_back();
  const std::string bytes = write_sequence(sequence);
  std::copy_n(bytes.data(), std::min(bytes.size(), max_size), reinterpret_cast<char*>(data));
  return std::min(bytes.size(), max_size);
}

// Messages of both.
extern "C" std::size_t LLVMFuzzerCustomCrossOver(const std::uint8_t* one, std::size_t one_size, const std::uint8_t* two,
                                                 std::size_t two_size, std::uint8_t* out, std::size_t max_size,
                                                 unsigned seed) {
  using namespace paceline::fuzz;
  Random random(seed);
  Sequence sequence = read_sequence({reinterpret_cast<const char*>(one), one_size});
  const Sequence other = read_sequence({reinterpret_cast<const char*>(two), two_size});
  const std::size_t kept = below(random, sequence.messages.size() + 1), from = below(random, other.messages.size() + 1);
  sequence.messages.resize(kept);
  sequence.messages.insert(sequence.messages.end(), other.messages.begin() + static_cast<std::ptrdiff_t>(from),
                           other.messages.end());
  while (!sequence.messages.empty() && write_sequence(sequence).size() > max_size) sequence.messages.pop_back();
  const std::string bytes = write_sequence(sequence);
  std::copy_n(bytes.data(), std::min(bytes.size(), max_size), reinterpret_cast<char*>(out));
  return std::min(bytes.size(), max_size);
}
