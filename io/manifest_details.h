#pragma once
// The parts of a manifest that describe its records, as JSON.

#include <paceline/error.h>
#include <paceline/manifest.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <limits>
#include <utility>

namespace paceline::io {

// The whole number under `key` in `object`. The JSON library's get<T>() would silently cut off what T cannot hold.
// Throws Corrupt unless it is a whole number that T can hold, and what the library throws where the key is missing.
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

// These functions turn their argument into JSON, in the form in which a manifest stores it.
nlohmann::json to_json(const NumberStatistics& numbers);
nlohmann::json to_json(const DataStatistics& statistics);
nlohmann::json to_json(const DecoderDescription& decoder);

// These functions read that form. They throw Corrupt for a value that does not fit. For missing keys and other types
// they throw what the JSON library throws.
NumberStatistics numbers_from_json(const nlohmann::json& json);
DataStatistics statistics_from_json(const nlohmann::json& json);
DecoderDescription decoder_from_json(const nlohmann::json& json);

}  // namespace paceline::io
