#include "body_mutator.h"

#include <algorithm>
#include <string_view>
#include <vector>

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace paceline::fuzz {
namespace {

constexpr int kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5;
constexpr std::uint64_t kNumbers[] = {0,
                                      1,
                                      2,
                                      3,
                                      4,
                                      7,
                                      8,
                                      9,
                                      255,
                                      1000,
                                      65536,
                                      0x7fffffff,
                                      0x80000000,
                                      0xffffffff,
                                      std::uint64_t{1} << 32,
                                      std::uint64_t{1} << 50,
                                      0x7fffffffffffffff,
                                      0x8000000000000000,
                                      0xfffffffffffffffe,
                                      0xffffffffffffffff};

std::size_t below(Random& random, std::size_t limit) { return limit == 0 ? 0 : random() % limit; }

std::uint64_t read_varint(std::string_view& bytes) {
  std::uint64_t value = 0;
  for (int shift = 0; !bytes.empty() && shift < 64; shift += 7) {
    const auto byte = static_cast<std::uint8_t>(bytes.front());
    bytes.remove_prefix(1);
    value |= std::uint64_t{byte & 0x7fu} << shift;
    if (byte < 0x80) break;
  }
  return value;
}

void write_varint(std::string& bytes, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  bytes += static_cast<char>(value);
}

struct Field {
  std::uint64_t tag = 0;
  std::uint64_t number = 0;  // of the types varint, fixed64 and fixed32
  std::string bytes;

  int type() const { return static_cast<int>(tag & 7); }
};

// False where the bytes are no fields.
bool read_fields(std::string_view bytes, std::vector<Field>& fields) {
  while (!bytes.empty()) {
    Field field{read_varint(bytes), 0, {}};
    if (field.tag >> 3 == 0 || field.tag >> 3 > 200) return false;
    if (field.type() == kVarint) {
      if (bytes.empty()) return false;
      field.number = read_varint(bytes);
    } else if (field.type() == kFixed64 || field.type() == kFixed32) {
      const std::size_t size = field.type() == kFixed64 ? 8 : 4;
      if (bytes.size() < size) return false;
      std::copy_n(bytes.data(), size, reinterpret_cast<char*>(&field.number));
      bytes.remove_prefix(size);
    } else if (field.type() == kBytes) {
      const std::uint64_t size = read_varint(bytes);
      if (size > bytes.size()) return false;
      field.bytes = bytes.substr(0, size);
      bytes.remove_prefix(size);
    } else {
      return false;
    }
    fields.push_back(std::move(field));
  }
  return true;
}

std::string write_fields(const std::vector<Field>& fields) {
  std::string bytes;
  for (const Field& field : fields) {
    write_varint(bytes, field.tag);
    if (field.type() == kVarint) {
      write_varint(bytes, field.number);
    } else if (field.type() == kBytes) {
      write_varint(bytes, field.bytes.size());
      bytes += field.bytes;
    } else {
      bytes.append(reinterpret_cast<const char*>(&field.number), field.type() == kFixed64 ? 8 : 4);
    }
  }
  return bytes;
}

std::string mutated_text(std::string bytes) {
  const std::size_t size = bytes.size(), most = size + 8;
  bytes.resize(most);
  const std::size_t now = LLVMFuzzerMutate(reinterpret_cast<std::uint8_t*>(bytes.data()), size, most);
  bytes.resize(std::min(now, most));
  return bytes;
}

}  // namespace

std::string mutated_body(const std::string& body, Random& random) {
  std::vector<Field> fields;
  if (!read_fields(body, fields) || fields.empty() || random() % 16 == 0) return mutated_text(body);
  const std::size_t at = below(random, fields.size());
  switch (random() % 8) {
    case 0: fields.erase(fields.begin() + static_cast<std::ptrdiff_t>(at)); break;
    case 1:
      fields.insert(fields.begin() + static_cast<std::ptrdiff_t>(at), fields[below(random, fields.size())]);
      break;
    case 2: fields[at].tag = (1 + random() % 12) << 3 | (fields[at].tag & 7); break;
    default: {
      Field& field = fields[at];
      if (field.type() == kBytes)
        field.bytes = mutated_body(field.bytes, random);
      else
        field.number =
            random() % 4 == 0 ? field.number + random() % 3 - 1 : kNumbers[below(random, std::size(kNumbers))];
    }
  }
  return write_fields(fields);
}

}  // namespace paceline::fuzz
