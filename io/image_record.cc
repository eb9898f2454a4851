#include <paceline/error.h>
#include <paceline/image.h>

#include <cstring>

namespace paceline {
namespace {

// flag:u32 label:f32 id:u64 id2:u64 labels:f32[flag] image
constexpr std::size_t kLabelOffset = 4;
constexpr std::size_t kIdOffset = 8;
constexpr std::size_t kHeaderBytes = 24;

}  // namespace

std::string pack_image_record(std::span<const float> labels, std::uint64_t id, std::string_view image) {
  require(!labels.empty(), "an image record needs a label");
  const std::uint32_t flag = labels.size() == 1 ? 0 : static_cast<std::uint32_t>(labels.size());
  const float scalar = flag == 0 ? labels[0] : 0.0f;
  std::string record(kHeaderBytes + flag * sizeof(float), '\0');
  std::memcpy(record.data(), &flag, sizeof flag);
  std::memcpy(record.data() + kLabelOffset, &scalar, sizeof scalar);
  std::memcpy(record.data() + kIdOffset, &id, sizeof id);
  std::memcpy(record.data() + kHeaderBytes, labels.data(), flag * sizeof(float));
  record.append(image);
  return record;
}

ImageRecord::ImageRecord(std::string_view record) {
  if (record.size() < kHeaderBytes) {
    throw Corrupt(str("an image record has at least ", kHeaderBytes, " bytes, this one ", record.size()));
  }
  std::uint32_t flag = 0;
  std::memcpy(&flag, record.data(), sizeof flag);
  std::memcpy(&id_, record.data() + kIdOffset, sizeof id_);
  if (flag > (record.size() - kHeaderBytes) / sizeof(float)) {
    throw Corrupt(str("the record claims ", flag, " labels, but has ", record.size(), " bytes"));
  }
  label_count_ = flag == 0 ? 1 : static_cast<int>(flag);
  labels_ = flag == 0 ? record.substr(kLabelOffset) : record.substr(kHeaderBytes);
  image_ = record.substr(kHeaderBytes + flag * sizeof(float));
}

float ImageRecord::label(int i) const {
  float value = 0;
  std::memcpy(&value, labels_.data() + static_cast<std::size_t>(i) * sizeof value, sizeof value);
  return value;
}

}  // namespace paceline
