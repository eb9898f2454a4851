#include "compression/sparse_values.h"

namespace paceline::sparse_values {
namespace {

using encoded::load;
using encoded::magnitude_bits;
using encoded::store;

// The magnitude of the smallest value that is kept, and the number of kept values of that magnitude.
struct Cut {
  std::uint32_t magnitude = 0;
  std::int64_t ties = 0;
};

// The bit pattern of a magnitude grows with the magnitude, and NaN is above all numbers. So a radix select finds the
// cut without a copy of the values. It counts the values by 11, then 10, then 10 bits of the pattern.
Cut find_cut(std::span<const float> values, std::int64_t kept) {
  constexpr std::array<int, 3> kShifts{20, 10, 0};
  Cut cut{0, kept};
  std::uint32_t known = 0;  // mask of the bits of `magnitude` that are found
  for (const int shift : kShifts) {
    std::array<std::uint32_t, 2048> counts{};
    const std::uint32_t digit = shift == 20 ? 2047 : 1023;
    for (const float value : values) {
      const std::uint32_t bits = magnitude_bits(value);
      counts[(bits >> shift) & digit] += (bits & known) == cut.magnitude;
    }
    std::uint32_t place = digit;
    while (counts[place] < cut.ties) cut.ties -= counts[place--];
    cut.magnitude |= place << shift;
    known |= digit << shift;
  }
  return cut;
}

}  // namespace

std::size_t write_largest(std::span<const float> values, std::int64_t kept, std::byte* out) {
  if (values.empty()) {
    store<std::uint32_t>(out, 0);
    return bytes_of(0);
  }
  Cut cut = find_cut(values, kept);
  store(out, static_cast<std::uint32_t>(kept));
  std::byte* index = out + 4;
  std::byte* value = index + 4 * kept;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t bits = magnitude_bits(values[i]);
    if (bits < cut.magnitude || (bits == cut.magnitude && cut.ties-- <= 0)) continue;
    store(index, static_cast<std::uint32_t>(i));
    store(value, values[i]);
    index += 4;
    value += 4;
  }
  return bytes_of(kept);
}

void check(const char* codec, EncodedBytes bytes, std::int64_t count) {
  if (bytes.size() < 4) throw Corrupt(str("a gradient encoded as ", codec, " has ", bytes.size(), " bytes"));
  const std::int64_t kept = load<std::uint32_t>(bytes.data());
  if (kept > count) throw Corrupt(str("a gradient encoded as ", codec, " holds ", kept, " of ", count, " elements"));
  encoded::expect_bytes(codec, bytes, bytes_of(kept), count);
  std::int64_t last = -1;
  for_each_index(bytes, [&](std::int64_t index) {
    if (index <= last || index >= count)
      throw Corrupt(str("a gradient encoded as ", codec, " has index ", index, " after ", last, " of ", count));
    last = index;
  });
}

void decode(EncodedBytes bytes, std::int64_t begin, std::span<float> out) {
  std::fill(out.begin(), out.end(), 0.0f);
  const std::size_t kept = load<std::uint32_t>(bytes.data());
  const std::byte* const indices = bytes.data() + 4;
  const std::byte* const values = indices + 4 * kept;
  std::size_t low = 0, high = kept;
  while (low < high) {
    const std::size_t middle = (low + high) / 2;
    if (load<std::uint32_t>(indices + 4 * middle) < begin)
      low = middle + 1;
    else
      high = middle;
  }
  const std::int64_t end = begin + static_cast<std::int64_t>(out.size());
  for (; low < kept; ++low) {
    const std::int64_t index = load<std::uint32_t>(indices + 4 * low);
    if (index >= end) return;
    out[static_cast<std::size_t>(index - begin)] = load<float>(values + 4 * low);
  }
}

}  // namespace paceline::sparse_values
