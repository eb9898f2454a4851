#pragma once
// What the first bytes of a file of arrays say.

#include <paceline/detail/remote.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace paceline::detail {

// So many bytes tell the format.
constexpr std::size_t kFormatBytes = 9;
bool begins_params(const FileStart& start);
bool begins_safetensors(const FileStart& start);

// The metadata of a safetensors file, of which `start` is known. Reads the header and no arrays. Throws what
// load_safetensors() throws over a header.
std::vector<std::pair<std::string, std::string>> safetensors_metadata(const std::string& path, FileStart start);

}  // namespace paceline::detail
