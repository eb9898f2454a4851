#pragma once
// The secret of a job, which docs/glossary.md calls the key of the job. By this secret, the processes recognize each
// other. It is written as 64 hexadecimal digits.

#include <string>

namespace paceline {

constexpr std::size_t kSecretBytes = 32;

// Reads the secret from a file. Throws InvalidArgument if the file holds no secret, belongs to another user, or gives
// any permission to other users.
std::string secret_in_file(const std::string& path);

// Returns the secret from a pipe that this process inherited. The first call reads the pipe and closes the descriptor.
// Later calls return the same secret. Throws InvalidArgument if the descriptor is no pipe, or if the pipe holds no
// secret.
std::string inherited_secret(int descriptor);

// Keeps the memory of this process out of core dumps.
void forbid_core_dumps();

// Derives a key of 32 bytes for one purpose. Nobody can compute the secret from this key.
std::string derived_key(const std::string& secret, const std::string& purpose);

// The authentication code of a text under a key: 32 bytes.
std::string code_of(const std::string& key, const std::string& text);

// Compares in a time that does not depend on the contents.
bool equal_in_constant_time(const std::string& a, const std::string& b);

}  // namespace paceline
