#include "manifest_details.h"

#include <string>
#include <vector>

namespace paceline {
namespace io {
namespace {

using Json = nlohmann::json;

// So that no product of sizes overflows, and no example of a damaged manifest takes all memory.
constexpr std::int64_t kMostElements = std::int64_t{1} << 31;

Json to_json(const ExampleArray& array) {
  return {{"name", array.name},
          {"shape", std::vector<std::int64_t>(array.shape.begin(), array.shape.end())},
          {"dtype", name_of(array.dtype)}};
}

ExampleArray array_from_json(const Json& json) {
  ExampleArray array{json.at("name").get<std::string>(), {}, parse_dtype(json.at("dtype").get<std::string>())};
  std::int64_t elements = 1;
  for (const Json& size : json.at("shape")) {
    const bool fits = size.is_number_integer() && size.get<std::int64_t>() > 0 &&
                      size.get<std::int64_t>() <= kMostElements / elements && array.shape.ndim() < Shape::kMaxDims;
    if (!fits) throw Corrupt(str("its array '", array.name, "' has a shape that no array has"));
    array.shape.push_back(size.get<std::int64_t>());
    elements *= array.shape.back();
  }
  return array;
}

}  // namespace

Json to_json(const NumberStatistics& numbers) {
  return {{"count", numbers.count},         {"missing", numbers.missing},   {"mean", numbers.mean},
          {"deviation", numbers.deviation}, {"smallest", numbers.smallest}, {"largest", numbers.largest}};
}

NumberStatistics numbers_from_json(const Json& json) {
  return {.count = whole<std::int64_t>(json, "count"),
          .missing = whole<std::int64_t>(json, "missing"),
          .mean = json.at("mean").get<double>(),
          .deviation = json.at("deviation").get<double>(),
          .smallest = json.at("smallest").get<double>(),
          .largest = json.at("largest").get<double>()};
}

Json to_json(const DataStatistics& statistics) {
  Json numbers = Json::object();
  for (const auto& [name, of_column] : statistics.numbers) numbers[name] = to_json(of_column);
  return {{"numbers", std::move(numbers)}, {"classes", statistics.classes}, {"lengths", to_json(statistics.lengths)}};
}

DataStatistics statistics_from_json(const Json& json) {
  DataStatistics statistics;
  for (const auto& [name, of_column] : json.at("numbers").items())
    statistics.numbers[name] = numbers_from_json(of_column);
  for (const auto& item : json.at("classes").items())
    statistics.classes[item.key()] = whole<std::int64_t>(json.at("classes"), item.key().c_str());
  statistics.lengths = numbers_from_json(json.at("lengths"));
  return statistics;
}

Json to_json(const DecoderDescription& decoder) {
  Json arrays = Json::array();
  for (const ExampleArray& array : decoder.arrays) arrays.push_back(to_json(array));
  return {{"name", decoder.name}, {"options", decoder.options}, {"arrays", std::move(arrays)}};
}

DecoderDescription decoder_from_json(const Json& json) {
  DecoderDescription decoder;
  decoder.name = json.at("name").get<std::string>();
  for (const auto& item : json.at("options").items()) {
    const std::string& name = item.key();
    const auto number = whole<std::int64_t>(json.at("options"), name.c_str());
    if (number > kMostElements || number < -kMostElements)
      throw Corrupt(str("its decoder has ", name, " = ", number, ", which is too much"));
    decoder.options[name] = number;
  }
  try {
    for (const Json& array : json.at("arrays")) decoder.arrays.push_back(array_from_json(array));
  } catch (const InvalidArgument& error) {
    throw Corrupt(error.what());
  }
  return decoder;
}

}  // namespace io

std::string DecoderDescription::text() const {
  if (name.empty()) return "";
  std::string inside;
  for (const ExampleArray& array : arrays)
    inside += str(inside.empty() ? "" : ", ", array.name, ": ", name_of(array.dtype), " ", array.shape);
  for (const auto& [option, value] : options) inside += str(inside.empty() ? "" : ", ", option, "=", value);
  return str(name, "(", inside, ")");
}

}  // namespace paceline
