#include "secrets/seal.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <paceline/error.h>

#include <array>
#include <memory>

#include "random.h"
#include "secrets/job_secret.h"

namespace paceline {
namespace {

struct FreeContext {
  void operator()(EVP_CIPHER_CTX* context) const { EVP_CIPHER_CTX_free(context); }
};

// Returns a context that the thread keeps. Fetching the cipher and making a context cost more than sealing a small
// piece.
EVP_CIPHER_CTX* context_of_this_thread() {
  static EVP_CIPHER* const cipher = EVP_CIPHER_fetch(nullptr, "AES-256-GCM", nullptr);
  thread_local const std::unique_ptr<EVP_CIPHER_CTX, FreeContext> context(EVP_CIPHER_CTX_new());
  if (!cipher || !context || EVP_CipherInit_ex2(context.get(), cipher, nullptr, nullptr, 1, nullptr) != 1)
    throw Error("[secrets] libcrypto offers no AES-256-GCM");
  return context.get();
}

const unsigned char* chars(const std::byte* data) { return reinterpret_cast<const unsigned char*>(data); }
unsigned char* chars(std::byte* data) { return reinterpret_cast<unsigned char*>(data); }

// Does what seal() and open() have in common: everything except the tag.
bool apply(EVP_CIPHER_CTX* context, const std::string& key, std::uint64_t number, const std::string& about,
           const std::byte* from, std::size_t bytes, std::byte* to, bool sealing) {
  std::array<unsigned char, 12> nonce = {};
  for (std::size_t i = 0; i < sizeof(number); ++i) nonce[4 + i] = static_cast<unsigned char>(number >> (8 * i));
  int done = 0;
  return EVP_CipherInit_ex2(context, nullptr, reinterpret_cast<const unsigned char*>(key.data()), nonce.data(), sealing,
                            nullptr) == 1 &&
         EVP_CipherUpdate(context, nullptr, &done, reinterpret_cast<const unsigned char*>(about.data()),
                          static_cast<int>(about.size())) == 1 &&
         EVP_CipherUpdate(context, chars(to), &done, chars(from), static_cast<int>(bytes)) == 1;
}

}  // namespace

SealingKey::~SealingKey() { OPENSSL_cleanse(key_.data(), key_.size()); }

std::string SealingKey::draw() { return random_bytes(kSecretBytes); }

void SealingKey::seal(std::uint64_t number, const std::string& about, const std::byte* plain, std::size_t bytes,
                      std::byte* sealed) const {
  EVP_CIPHER_CTX* context = context_of_this_thread();
  int rest = 0;
  if (!apply(context, key_, number, about, plain, bytes, sealed, true) ||
      EVP_CipherFinal_ex(context, chars(sealed + bytes), &rest) != 1 ||
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_GET_TAG, kTagBytes, sealed + bytes) != 1)
    throw Error("[secrets] libcrypto cannot seal");
}

bool SealingKey::open(std::uint64_t number, const std::string& about, const std::byte* sealed, std::size_t bytes,
                      std::byte* plain) const {
  EVP_CIPHER_CTX* context = context_of_this_thread();
  int rest = 0;
  return apply(context, key_, number, about, sealed, bytes, plain, false) &&
         EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_AEAD_SET_TAG, kTagBytes, const_cast<std::byte*>(sealed + bytes)) == 1 &&
         EVP_CipherFinal_ex(context, chars(plain + bytes), &rest) == 1;
}

}  // namespace paceline
