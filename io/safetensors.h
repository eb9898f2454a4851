#pragma once
// Named arrays as the bytes of a safetensors file, the payload of decoders::tensors().

#include <paceline/decoder.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::io {

// The number of bytes that one example's array takes.
std::size_t bytes_of(const ExampleArray& array);

// Copies the arrays out of a safetensors file in memory. Throws Corrupt. Its message gives the reason only; the caller
// adds file and record.
void read_tensors(std::string_view file, const std::vector<ExampleArray>& arrays, std::span<void* const> to);

// The beginning of a file of these arrays. The values follow in the order of the arrays, without gaps.
std::string tensors_head(const std::vector<ExampleArray>& arrays);

}  // namespace paceline::io
