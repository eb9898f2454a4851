#pragma once
// AES-256-GCM by libcrypto, which uses the processor's AES instructions. This header is not installed.

#include <cstddef>
#include <cstdint>
#include <string>

namespace paceline {

constexpr std::size_t kTagBytes = 16;

// Seals the pieces that travel in one direction of a link. `number` is the nonce, so it must never be used twice under
// one key. Thread-safe.
class SealingKey {
 public:
  // `key`: 32 bytes.
  explicit SealingKey(std::string key) : key_(std::move(key)) {}
  ~SealingKey();
  SealingKey(const SealingKey&) = delete;
  // Returns a new random key.
  static std::string draw();

  // Writes `bytes` bytes of ciphertext, and then the tag, to `sealed`. The tag also protects `about`, which is not
  // encrypted. Throws Error if libcrypto fails.
  void seal(std::uint64_t number, const std::string& about, const std::byte* plain, std::size_t bytes,
            std::byte* sealed) const;
  // Writes `bytes` bytes of plaintext to `plain`. False if the ciphertext, tag, number, `about` or key is not the one
  // of seal(). The content of `plain` is then meaningless.
  [[nodiscard]] bool open(std::uint64_t number, const std::string& about, const std::byte* sealed, std::size_t bytes,
                          std::byte* plain) const;

 private:
  std::string key_;
};

}  // namespace paceline
