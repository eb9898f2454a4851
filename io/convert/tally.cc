#include "convert/tally.h"

#include <cmath>
#include <limits>

#include "manifest_details.h"

namespace paceline::io {
namespace {

using Json = nlohmann::json;

}  // namespace

void Moments::add_sums(std::int64_t count, double sum, double squares, double smallest, double largest) {
  if (count == 0) return;
  Moments other;
  other.count_ = count;
  other.mean_ = sum / static_cast<double>(count);
  other.squares_ = std::max(squares - sum * other.mean_, 0.0);
  other.smallest_ = smallest;
  other.largest_ = largest;
  merge(other);
}

void Moments::merge(const Moments& other) {
  missing_ += other.missing_;
  if (other.count_ == 0) return;
  if (count_ == 0) {
    const std::int64_t missing = missing_;
    *this = other;
    missing_ = missing;
    return;
  }
  const double mine = static_cast<double>(count_), theirs = static_cast<double>(other.count_);
  const double distance = other.mean_ - mean_;
  mean_ += distance * (theirs / (mine + theirs));
  squares_ += other.squares_ + distance * distance * (mine * theirs / (mine + theirs));
  smallest_ = std::min(smallest_, other.smallest_);
  largest_ = std::max(largest_, other.largest_);
  count_ += other.count_;
}

NumberStatistics Moments::statistics() const {
  // A manifest cannot hold what is beyond all numbers.
  const auto bounded = [](double value) { return std::isfinite(value) ? value : std::numeric_limits<double>::max(); };
  const double variance = count_ > 0 ? squares_ / static_cast<double>(count_) : 0;
  return {count_, missing_, bounded(mean_), bounded(std::sqrt(variance)), smallest_, largest_};
}

Json Moments::to_json() const { return {count_, missing_, mean_, squares_, smallest_, largest_}; }

Moments Moments::from_json(const Json& json) {
  Moments moments;
  moments.count_ = json.at(0).get<std::int64_t>();
  moments.missing_ = json.at(1).get<std::int64_t>();
  moments.mean_ = json.at(2).get<double>();
  moments.squares_ = json.at(3).get<double>();
  moments.smallest_ = json.at(4).get<double>();
  moments.largest_ = json.at(5).get<double>();
  return moments;
}

void Tally::add_image(const ImageSize& size, const std::string& its_encoding) {
  if (!image) {
    image = size;
    encoding = its_encoding;
  }
  if (encoding != its_encoding) encoding = "mixed";
  if (image->height != size.height) image->height = 0;
  if (image->width != size.width) image->width = 0;
  if (image->channels != size.channels) image->channels = 0;
}

void Tally::merge(const Tally& other) {
  for (std::size_t i = 0; i < other.numbers.size(); ++i) number(i).merge(other.numbers[i]);
  for (const auto& [number, count] : other.classes) classes[number] += count;
  lengths.merge(other.lengths);
  if (other.image) add_image(*other.image, other.encoding);
  records += other.records;
}

void Tally::describe(Manifest& manifest, const std::vector<std::string>& number_names) const {
  DataStatistics& statistics = manifest.statistics;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const NumberStatistics found = numbers[i].statistics();
    if (found.count + found.missing > 0) statistics.numbers[number_names.at(i)] = found;
  }
  for (const auto& [number, count] : classes) {
    const auto place = static_cast<std::size_t>(number);
    statistics.classes[place < manifest.labels.size() ? manifest.labels[place] : std::to_string(number)] += count;
  }
  statistics.lengths = lengths.statistics();
  if (!image) return;
  manifest.image = *image;
  manifest.encoding = encoding;
}

Json Tally::to_json() const {
  Json all = Json::array(), by_class = Json::array();
  for (const Moments& moments : numbers) all.push_back(moments.to_json());
  for (const auto& [number, count] : classes) by_class.push_back({number, count});
  Json json = {{"numbers", all}, {"classes", by_class}, {"lengths", lengths.to_json()}, {"records", records}};
  if (!image) return json;
  json["image"] = {image->height, image->width, image->channels};
  json["encoding"] = encoding;
  return json;
}

Tally Tally::from_json(const Json& json) {
  Tally tally;
  for (const Json& moments : json.at("numbers")) tally.numbers.push_back(Moments::from_json(moments));
  for (const Json& entry : json.at("classes"))
    tally.classes[entry.at(0).get<std::int64_t>()] = entry.at(1).get<std::int64_t>();
  tally.lengths = Moments::from_json(json.at("lengths"));
  tally.records = json.at("records").get<std::int64_t>();
  if (json.contains("image")) {
    const Json& size = json.at("image");
    tally.image = ImageSize{size.at(0).get<int>(), size.at(1).get<int>(), size.at(2).get<int>()};
    tally.encoding = json.value("encoding", "mixed");  // an earlier release did not keep it
  }
  return tally;
}

}  // namespace paceline::io
