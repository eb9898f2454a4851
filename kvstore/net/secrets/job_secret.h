#pragma once
// The secret of a job: the bytes by which its processes know each other. It is written as 64 hexadecimal digits.

#include <string>

namespace paceline {

constexpr std::size_t kSecretBytes = 32;

// The secret in a file. Throws InvalidArgument unless the file belongs to this user and nobody else may read it.
std::string secret_in_file(const std::string& path);

// The secret in a pipe that this process inherited. Reads and closes the descriptor at the first call; later calls
// return the same secret. Throws InvalidArgument if it holds no secret.
std::string inherited_secret(int descriptor);

// Keeps the memory of this process out of core dumps.
void forbid_core_dumps();

// A key of 32 bytes for one purpose. The secret does not follow from it.
std::string derived_key(const std::string& secret, const std::string& purpose);

// The authentication code of a text under a key: 32 bytes.
std::string code_of(const std::string& key, const std::string& text);

// In a time that does not depend on the contents.
bool equal_in_constant_time(const std::string& a, const std::string& b);

}  // namespace paceline
