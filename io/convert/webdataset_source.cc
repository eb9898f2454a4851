// Tar files of WebDataset. A tar file is a row of members: a head of 512 bytes, then the member's bytes, filled up to a
// multiple of 512. A name that does not fit the head stands in a member before it, in the format of GNU or of POSIX.

#include <paceline/error.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <unordered_map>
#include <utility>

#include "convert/packed_images.h"
#include "file.h"
#include "text_numbers.h"

namespace paceline {
namespace io {
namespace {

constexpr std::uint64_t kTarBlock = 512;

struct Member {
  std::string name;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;
};

std::string_view field(const char* head, std::size_t at, std::size_t length) {
  const std::string_view bytes(head + at, length);
  return bytes.substr(0, bytes.find('\0'));
}

// Reads a number of a head. It is octal text or, where the first bit is set, a big-endian binary number.
std::uint64_t number_in(const char* head, std::size_t at, std::size_t length) {
  std::uint64_t number = 0;
  if (static_cast<std::uint8_t>(head[at]) & 0x80) {
    for (std::size_t i = 1; i < length; ++i) number = number << 8 | static_cast<std::uint8_t>(head[at + i]);
    return number;
  }
  for (const char c : field(head, at, length))
    if (c >= '0' && c <= '7') number = number * 8 + static_cast<std::uint64_t>(c - '0');
  return number;
}

bool has_right_sum(const char* head) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < kTarBlock; ++i) {
    const bool of_sum = i >= 148 && i < 156;  // counts as spaces
    sum += of_sum ? ' ' : static_cast<std::uint8_t>(head[i]);
  }
  return sum == number_in(head, 148, 8);
}

std::string read_part(const InputFile& file, std::uint64_t offset, std::uint64_t bytes) {
  std::string part(static_cast<std::size_t>(bytes), '\0');
  if (file.read_at(offset, part.data(), part.size()) != part.size()) throw Corrupt(str(file.path(), " is truncated"));
  return part;
}

// The last value of `key` among lines "LENGTH key=VALUE\n" of POSIX's extended head; empty where there is none.
std::string value_in(std::string_view lines, std::string_view key) {
  std::string value;
  while (!lines.empty()) {
    std::uint64_t length = 0;
    const std::size_t space = lines.find(' ');
    if (space == std::string_view::npos || !parse_number(lines.substr(0, space), length) || length <= space + 1 ||
        length > lines.size())
      break;
    std::string_view line = lines.substr(space + 1, length - space - 2);
    lines.remove_prefix(length);
    if (line.starts_with(key)) value = line.substr(key.size());
  }
  return value;
}

std::vector<Member> members_of(const InputFile& file) {
  std::vector<Member> members;
  std::string long_name;
  std::string long_target;                        // of a link, as long_name
  std::unordered_map<std::string, Member> files;  // by name, for hard links
  for (std::uint64_t at = 0; at + kTarBlock <= file.size();) {
    const std::string head = read_part(file, at, kTarBlock);
    if (head.find_first_not_of('\0') == std::string::npos) break;
    if (!has_right_sum(head.data())) {
      throw Corrupt(str(file.path(), at == 0 ? " is no tar file; unpack it first where it is compressed"
                                             : str(" is damaged at byte ", at)));
    }
    Member member{std::string(field(head.data(), 0, 100)), at + kTarBlock, number_in(head.data(), 124, 12)};
    if (member.bytes > file.size() || member.offset > file.size() - member.bytes)
      throw Corrupt(str(file.path(), " is truncated in ", member.name));
    at = member.offset + (member.bytes + kTarBlock - 1) / kTarBlock * kTarBlock;
    const char type = head[156];
    constexpr std::uint64_t kLongestName = 1 << 16;
    if ((type == 'L' || type == 'K' || type == 'x') && member.bytes <= kLongestName) {
      const std::string bytes = read_part(file, member.offset, member.bytes);
      const std::string name = type == 'x' ? value_in(bytes, "path=") : bytes.substr(0, bytes.find('\0'));
      const std::string target = type == 'x' ? value_in(bytes, "linkpath=") : type == 'K' ? name : "";
      if (!target.empty()) long_target = target;
      if (type != 'K' && !name.empty()) long_name = name;
      continue;
    }
    const bool hard_link = type == '1', symbolic_link = type == '2';
    if (type != '0' && type != '\0' && !hard_link && !symbolic_link) {
      long_name.clear();
      long_target.clear();
      continue;
    }
    if (field(head.data(), 257, 5) == "ustar" && head[345] != '\0' && field(head.data(), 257, 6).size() == 5)
      member.name = str(field(head.data(), 345, 155), '/', member.name);
    if (!long_name.empty()) member.name = std::exchange(long_name, "");
    std::string target = std::string(field(head.data(), 157, 100));
    if (!long_target.empty()) target = std::exchange(long_target, "");
    if (hard_link || symbolic_link) {
      const auto found = files.find(target);
      if (symbolic_link || found == files.end())
        throw Corrupt(str(file.path(), " holds the link ", member.name, " to ", target,
                          ", whose bytes are elsewhere; pack with tar --dereference --hard-dereference"));
      member.offset = found->second.offset;
      member.bytes = found->second.bytes;
    }
    files.insert_or_assign(member.name, member);
    members.push_back(std::move(member));
  }
  return members;
}

// Where the images of the samples are.
class TarImages final : public ImageBytes {
 public:
  struct Place {
    std::shared_ptr<const InputFile> file;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
    std::string wrong = {};  // why the sample is bad; else empty
  };

  void add(Place place) { places_.push_back(std::move(place)); }
  std::string read(std::int64_t entry, const std::function<void()>&) const override {
    const Place& place = places_[static_cast<std::size_t>(entry)];
    if (!place.wrong.empty()) throw Corrupt(place.wrong);
    return read_part(*place.file, place.offset, place.bytes);
  }

 private:
  std::vector<Place> places_;
};

// The members of one sample by extension, in small letters.
struct Sample {
  std::string key;
  std::map<std::string, Member> members;
};

// The samples of a file, in the order of their first members. A sample is all members with the same key.
std::vector<Sample> samples_of(const InputFile& file) {
  std::vector<Sample> samples;
  std::unordered_map<std::string, std::size_t> places;
  for (Member& member : members_of(file)) {
    const std::size_t slash = member.name.rfind('/');
    const std::size_t begin = slash == std::string::npos ? 0 : slash + 1;
    const std::size_t dot = member.name.find('.', begin);
    if (dot == std::string::npos || dot == begin) continue;  // it has no extension, or no key
    const std::string key = member.name.substr(0, dot);
    std::string extension = member.name.substr(dot + 1);
    std::transform(extension.begin(), extension.end(), extension.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; });
    const std::size_t place = places.emplace(key, samples.size()).first->second;
    if (place == samples.size()) samples.push_back({key, {}});
    const std::string name = member.name;
    if (!samples[place].members.emplace(std::move(extension), std::move(member)).second)
      throw Corrupt(str(file.path(), " holds the member ", name, " twice"));
  }
  return samples;
}

const Member* image_in(const Sample& sample) {
  for (const char* extension : {"jpg", "jpeg", "png"})
    if (const auto found = sample.members.find(extension); found != sample.members.end()) return &found->second;
  return nullptr;
}

// Throws Corrupt with the reason alone.
float label_of(const InputFile& file, const Sample& sample) {
  const auto found = sample.members.find("cls");
  if (found == sample.members.end()) throw Corrupt("the sample has an image and no .cls with its label");
  constexpr std::uint64_t kLongest = 64;
  const std::string text = read_part(file, found->second.offset, std::min(found->second.bytes, kLongest));
  Words words(text);
  std::string_view word;
  float label = 0;
  if (!words.next(word) || !parse_finite(word, label) || words.next(word))
    throw Corrupt(str("the sample has the label ", io::in_quotes(text), ", expected a number"));
  return label;
}

}  // namespace
}  // namespace io

RecordSourceHandle webdataset_source(const std::vector<std::string>& files, const ImageSourceOptions& options) {
  require(!files.empty(), "no files were given");
  ImageList list;
  auto images = std::make_unique<io::TarImages>();
  std::vector<std::uint64_t> keys;
  for (const std::string& path : files) {
    const auto file = std::make_shared<const io::InputFile>(path);
    for (const io::Sample& sample : io::samples_of(*file)) {
      const io::Member* const image = io::image_in(sample);
      float label = 0;
      io::TarImages::Place place{file};
      try {
        if (!image) throw Corrupt("the sample holds no .jpg, .jpeg or .png");
        place.offset = image->offset;
        place.bytes = image->bytes;
        label = io::label_of(*file, sample);
      } catch (const Corrupt& error) {
        place.wrong = error.what();
      }
      list.entries.push_back(
          {static_cast<std::int64_t>(keys.size()), {label}, str(path, "/", image ? image->name : sample.key)});
      images->add(std::move(place));
      keys.push_back(io::stable_hash(sample.key));
    }
  }
  require(!list.entries.empty(), files[0], " holds no samples");
  return io::packed_images(std::move(list), std::move(images), options, io::identity_of(files), std::move(keys));
}

}  // namespace paceline
