#include <paceline/dtype.h>

namespace paceline {
namespace {

struct Entry {
  DType dtype;
  const char* name;
  std::size_t size;
  bool floating;
};

constexpr Entry kEntries[] = {
    {DType::kFloat32, "float32", 4, true}, {DType::kFloat64, "float64", 8, true},
    {DType::kFloat16, "float16", 2, true}, {DType::kBfloat16, "bfloat16", 2, true},
    {DType::kUint8, "uint8", 1, false},    {DType::kInt8, "int8", 1, false},
    {DType::kInt32, "int32", 4, false},    {DType::kInt64, "int64", 8, false},
    {DType::kBool, "bool", 1, false},
};

const Entry& entry_of(DType dtype) {
  for (const Entry& entry : kEntries)
    if (entry.dtype == dtype) return entry;
  throw InvalidArgument(str("unknown element type ", static_cast<int>(dtype)));
}

}  // namespace

std::size_t size_of(DType dtype) { return entry_of(dtype).size; }

std::string name_of(DType dtype) { return entry_of(dtype).name; }

bool is_floating(DType dtype) { return entry_of(dtype).floating; }

bool is_valid(std::int64_t type_flag) {
  for (const Entry& entry : kEntries)
    if (static_cast<std::int64_t>(entry.dtype) == type_flag) return true;
  return false;
}

DType parse_dtype(std::string_view name) {
  std::string known;
  for (const Entry& entry : kEntries) {
    if (name == entry.name) return entry.dtype;
    known += std::string(" ") + entry.name;
  }
  throw InvalidArgument(str("unknown element type '", name, "'; known:", known));
}

}  // namespace paceline
