#pragma once
// The parts of a manifest that describe its records, as JSON.

#include <paceline/error.h>
#include <paceline/manifest.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <utility>

namespace paceline::io {

// A whole number of an object. The library's get<T>() cuts a number to what fits. Throws Corrupt.
template <class T>
T whole(const nlohmann::json& object, const char* key) {
  const nlohmann::json& value = object.at(key);
  const bool fits = value.is_number_unsigned()
                        ? std::in_range<T>(value.get<std::uint64_t>())
                        : value.is_number_integer() && std::in_range<T>(value.get<std::int64_t>());
  if (!fits)
    throw Corrupt(str("its '", key, "' is ", value.is_number() ? value.dump() : str("a ", value.type_name()),
                      ", expected a whole number from ", std::numeric_limits<T>::min(), " to ",
                      std::numeric_limits<T>::max()));
  return value.get<T>();
}

// As a manifest has them.
nlohmann::json to_json(const NumberStatistics& numbers);
nlohmann::json to_json(const DataStatistics& statistics);
nlohmann::json to_json(const DecoderDescription& decoder);

// They throw Corrupt, and what the library throws for other types.
NumberStatistics numbers_from_json(const nlohmann::json& json);
DataStatistics statistics_from_json(const nlohmann::json& json);
DecoderDescription decoder_from_json(const nlohmann::json& json);

}  // namespace paceline::io
