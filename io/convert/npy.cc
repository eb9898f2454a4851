// A .npy file: "\x93NUMPY", version, length of the header, header as a Python dictionary, values:
//
//   {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 28, 28), }
//
// A .npz file is a zip archive of them.

#include "convert/npy.h"

#include <paceline/error.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <utility>

#include "convert/zip.h"
#include "text_numbers.h"

namespace paceline::io {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::pair<const char*, DType> kTypes[] = {
    {"<f4", DType::kFloat32}, {"<f8", DType::kFloat64}, {"<f2", DType::kFloat16}, {"|u1", DType::kUint8},
    {"<i4", DType::kInt32},   {"|i1", DType::kInt8},    {"<i8", DType::kInt64},   {"|b1", DType::kBool}};

// What follows `key` in the header, behind its colon and space.
std::string_view after(std::string_view header, const char* key, const std::string& path) {
  const std::size_t at = header.find(key);
  const std::size_t colon = at == std::string_view::npos ? at : header.find(':', at);
  if (colon == std::string_view::npos) throw Corrupt(str(path, ": its header has no ", key));
  header.remove_prefix(colon + 1);
  header.remove_prefix(std::min(header.find_first_not_of(' '), header.size()));
  return header;
}

DType parse_type(std::string_view header, const std::string& path) {
  std::string_view text = after(header, "'descr'", path);
  if (!text.starts_with('\'')) throw Corrupt(str(path, ": its array has fields; take one of them in NumPy first"));
  text.remove_prefix(1);
  text = text.substr(0, text.find('\''));
  for (const auto& [name, type] : kTypes)
    if (text == name) return type;
  throw Corrupt(str(path, ": its elements are ", io::in_quotes(text),
                    ", expected float16, float32, float64, int8, int32, int64, uint8 or bool, little-endian; "
                    "convert the array with .astype() first"));
}

std::vector<std::int64_t> parse_shape(std::string_view header, const std::string& path) {
  std::string_view text = after(header, "'shape'", path);
  const std::size_t end = text.find(')');
  if (!text.starts_with('(') || end == std::string_view::npos) throw Corrupt(str(path, ": its header has no shape"));
  text = text.substr(1, end - 1);
  std::vector<std::int64_t> sizes;
  std::int64_t elements = 1;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view word = text.substr(0, comma);
    word.remove_prefix(std::min(word.find_first_not_of(' '), word.size()));
    text.remove_prefix(std::min(comma + 1, text.size()));
    if (word.empty()) continue;
    std::int64_t size = 0;
    if (!parse_number(word, size) || size < 0 || (size > 0 && __builtin_mul_overflow(elements, size, &elements)))
      throw Corrupt(str(path, ": its shape holds ", io::in_quotes(word), ", which no shape does"));
    sizes.push_back(size);
  }
  return sizes;
}

}  // namespace

NumpyArray::NumpyArray(std::string name, std::shared_ptr<const InputFile> file, std::uint64_t offset,
                       std::uint64_t bytes)
    : name_(std::move(name)), path_(file->path()), file_(std::move(file)), begin_(offset), bytes_(bytes) {
  parse_header();
}

NumpyArray::NumpyArray(std::string name, std::string path, std::string bytes)
    : name_(std::move(name)), path_(std::move(path)), memory_(std::move(bytes)), bytes_(memory_.size()) {
  parse_header();
}

void NumpyArray::read(std::uint64_t offset, std::size_t count, char* to) const {
  const bool inside = offset <= bytes_ && count <= bytes_ - offset;
  if (inside && !file_)
    std::memcpy(to, memory_.data() + offset, count);
  else if (!inside || file_->read_at(begin_ + offset, to, count) != count)
    throw Corrupt(str(path_, ": the array '", name_, "' is truncated"));
}

void NumpyArray::parse_header() {
  char head[12];
  read(0, 10, head);
  if (!std::string_view(head, kMagic.size()).starts_with(kMagic))
    throw Corrupt(str(path_, ": '", name_, "' is no array in NumPy's format"));
  const auto version = static_cast<unsigned>(static_cast<unsigned char>(head[6]));
  if (version < 1 || version > 3)
    throw Corrupt(str(path_, ": '", name_, "' has version ", version, " of NumPy's format, known are 1 to 3"));
  std::size_t length = 0, begin = 10;
  std::uint16_t short_length = 0;
  std::uint32_t long_length = 0;
  if (version == 1) {
    std::memcpy(&short_length, head + 8, sizeof short_length);
    length = short_length;
  } else {
    read(0, begin = 12, head);
    std::memcpy(&long_length, head + 8, sizeof long_length);
    length = long_length;
  }
  constexpr std::size_t kLongest = 1 << 20;
  if (length > kLongest) throw Corrupt(str(path_, ": '", name_, "' has a header of ", length, " bytes"));
  std::string header(length, '\0');
  read(begin, length, header.data());
  const std::string place = str(path_, ": '", name_, "'");
  dtype_ = parse_type(header, place);
  const std::vector<std::int64_t> sizes = parse_shape(header, place);
  if (sizes.empty()) throw Corrupt(str(place, ": it is a single number; the first axis counts the examples"));
  const bool columns_first = after(header, "'fortran_order'", place).starts_with("True");
  if (columns_first && sizes.size() > 1)
    throw Corrupt(str(place, ": it is stored by columns; save numpy.ascontiguousarray() of it"));
  if (sizes.size() - 1 > static_cast<std::size_t>(Shape::kMaxDims) - 1)
    throw Corrupt(str(place, ": it has ", sizes.size(), " axes, expected at most ", Shape::kMaxDims));
  rows_ = sizes[0];
  constexpr std::int64_t kLargest = std::int64_t{1} << 29;  // bytes of a record
  std::int64_t elements = 1;
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    const bool fits = sizes[i] > 0 && sizes[i] < kLargest / elements;
    if (!fits) throw Corrupt(str(place, ": an example of it has no elements, or too many for a record"));
    elements *= sizes[i];
  }
  row_shape_ = Shape(std::span(sizes).subspan(1));
  row_bytes_ = static_cast<std::size_t>(row_shape_.size()) * size_of(dtype_);
  if (row_bytes_ >= static_cast<std::size_t>(kLargest))
    throw Corrupt(str(place, ": an example of it has ", row_bytes_, " bytes, expected fewer than ", kLargest));
  const std::uint64_t values = begin + length;
  if (static_cast<std::uint64_t>(rows_) > (bytes_ - values) / row_bytes_)
    throw Corrupt(str(place, ": it is truncated"));
  begin_ += values;
  bytes_ -= values;
  if (!file_) memory_.erase(0, values);
}

void NumpyArray::append_row(std::int64_t row, std::string& to) const {
  const std::size_t before = to.size();
  to.resize(before + row_bytes_);
  read(static_cast<std::uint64_t>(row) * row_bytes_, row_bytes_, to.data() + before);
}

std::vector<NumpyArray> read_numpy(const std::string& path) {
  const auto file = std::make_shared<const InputFile>(path);
  std::vector<NumpyArray> arrays;
  char head[4] = {};
  if (file->read_at(0, head, sizeof head) == sizeof head && std::string_view(head, 4).starts_with("PK")) {
    for (const ZipMember& member : zip_members(*file)) {
      std::string name = member.name;
      if (!name.ends_with(".npy")) continue;
      name.resize(name.size() - std::string_view(".npy").size());
      if (member.stored)
        arrays.emplace_back(name, file, member.offset, member.bytes);
      else
        arrays.emplace_back(name, path, unpack(*file, member));
    }
    if (arrays.empty()) throw Corrupt(str(path, " holds no arrays"));
  } else {
    arrays.emplace_back(std::filesystem::path(path).stem().string(), file, 0, file->size());
  }
  return arrays;
}

}  // namespace paceline::io
