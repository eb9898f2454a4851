#pragma once
// A 64-bit hash of a state. It shows whether two copies of the state are equal. It is not cryptographic.

#include <paceline/detail/split_mix.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace paceline {

class Digest {
 public:
  void add(const void* data, std::size_t bytes) {
    const auto* next = static_cast<const std::byte*>(data);
    mix(bytes);
    for (; bytes >= sizeof(std::uint64_t); bytes -= sizeof(std::uint64_t), next += sizeof(std::uint64_t)) {
      std::uint64_t word = 0;
      std::memcpy(&word, next, sizeof word);
      mix(word);
    }
    std::uint64_t rest = 0;
    if (bytes > 0) std::memcpy(&rest, next, bytes);
    mix(rest);
  }
  template <class T>
  requires std::is_integral_v<T>
  void add(T number) { mix(static_cast<std::uint64_t>(number)); }
  std::uint64_t value() const { return state_; }

 private:
  // Mixes a word into the hash with the finaliser of SplitMix64.
  void mix(std::uint64_t word) { state_ = detail::split_mix(state_ ^ word); }

  std::uint64_t state_ = 0;
};

}  // namespace paceline
