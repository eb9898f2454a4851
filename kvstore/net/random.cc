#include "random.h"

#include <openssl/rand.h>
#include <paceline/error.h>

#include <cstring>

namespace paceline {

std::string random_bytes(std::size_t count) {
  std::string bytes(count, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(count)) != 1)
    throw Error("[cluster] libcrypto has no random bytes");
  return bytes;
}

std::uint64_t random_number() {
  std::uint64_t number = 0;
  std::memcpy(&number, random_bytes(sizeof(number)).data(), sizeof(number));
  return number;
}

}  // namespace paceline
