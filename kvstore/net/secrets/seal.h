#pragma once
// AES-256-GCM by libcrypto, which uses the instructions of the processor. Not installed.

#include <cstddef>
#include <cstdint>
#include <string>

namespace paceline {

constexpr std::size_t kTagBytes = 16;

// Seals the pieces of one direction of a link. A number must never be used twice under one key. Thread-safe.
class SealingKey {
 public:
  // `key`: 32 bytes.
  explicit SealingKey(std::string key) : key_(std::move(key)) {}
  ~SealingKey();
  SealingKey(const SealingKey&) = delete;
  static std::string draw();

  // Writes `bytes` of ciphertext and the tag to `sealed`. `about` is bound to them and not sealed. Throws Error.
  void seal(std::uint64_t number, const std::string& about, const std::byte* plain, std::size_t bytes,
            std::byte* sealed) const;
  // Writes `bytes` of plaintext to `plain`. False if the ciphertext, its tag, number or `about` is another; `plain`
  // then holds nothing of use.
  [[nodiscard]] bool open(std::uint64_t number, const std::string& about, const std::byte* sealed, std::size_t bytes,
                          std::byte* plain) const;

 private:
  std::string key_;
};

}  // namespace paceline
