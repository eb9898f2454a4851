// JSON lines as tables.

#include <paceline/convert_sources.h>
#include <paceline/error.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "convert/json_line.h"
#include "convert/line_rows.h"

namespace paceline {
namespace io {
namespace {

using Json = nlohmann::json;

// Calls take(column, word) for every value of an object.
template <class Take>
void flatten(const std::string& name, const Json& value, const Take& take) {
  const auto inside = [&](const std::string& more) { return name.empty() ? more : name + "." + more; };
  if (value.is_object()) {
    for (const auto& item : value.items()) flatten(inside(item.key()), item.value(), take);
  } else if (value.is_array()) {
    for (std::size_t i = 0; i < value.size(); ++i) flatten(inside(std::to_string(i)), value[i], take);
  } else if (value.is_boolean()) {
    take(name, std::string(value.get<bool>() ? "1" : "0"));
  } else if (value.is_string()) {
    take(name, value.get<std::string>());
  } else {
    take(name, value.is_null() ? std::string() : value.dump());
  }
}

// "name.2" comes before "name.10".
bool natural_order(const std::string& a, const std::string& b) {
  const auto parts = [](const std::string& name) {
    const std::size_t dot = name.rfind('.');
    const std::string last = dot == std::string::npos ? "" : name.substr(dot + 1);
    const bool number = !last.empty() && last.size() < 10 && last.find_first_not_of("0123456789") == std::string::npos;
    // The name itself tells "x.2" from "x.02".
    return number ? std::tuple{name.substr(0, dot), std::stoll(last), name} : std::tuple{name, -1ll, name};
  };
  return parts(a) < parts(b);
}

class JsonRows final : public LineRows {
 public:
  explicit JsonRows(const std::vector<std::string>& files) : LineRows(files, {}, false) {
    std::map<std::string, int, bool (*)(const std::string&, const std::string&)> names(natural_order);
    constexpr std::size_t kMostColumns = 100'000;
    lines_.each([&](std::int64_t row, std::string_view bytes) {
      try {
        flatten("", parse_object(bytes), [&](const std::string& name, const std::string&) { names.emplace(name, 0); });
      } catch (const Corrupt&) {
        return;  // counts as bad later
      }
      if (names.size() > kMostColumns)
        throw InvalidArgument(
            str("the objects up to ", lines_.place(row), " have more than ", kMostColumns, " fields"));
    });
    for (const auto& [name, unused] : names) {
      places_[name] = columns_.size();
      columns_.push_back(name);
    }
    require(!columns_.empty(), files[0], " holds no JSON objects, of which each line should be one");
  }

  void parse(std::string_view bytes, std::vector<std::string>& words) const override {
    words.assign(columns_.size(), "");
    std::vector<bool> given(columns_.size());
    flatten("", parse_object(bytes), [&](const std::string& name, std::string word) {
      const std::size_t place = places_.at(name);
      if (given[place]) throw Corrupt(str("two fields are called '", name, "'"));
      given[place] = true;
      words[place] = std::move(word);
    });
  }
  std::string identity() const override { return "json lines\n" + LineRows::identity(); }

 private:
  std::map<std::string, std::size_t> places_;
};

}  // namespace

Json parse_object(std::string_view line) {
  constexpr int kDeepest = 64;
  try {
    std::size_t keys[kDeepest + 1] = {};  // of the objects that are open, by depth
    Json json = Json::parse(line, [&](int depth, Json::parse_event_t event, Json& parsed) {
      if (depth > kDeepest) throw Corrupt("it is nested too deeply");
      const bool inside = event == Json::parse_event_t::key;
      std::size_t& count = keys[inside ? depth - 1 : depth];
      if (inside)
        ++count;
      else if (event == Json::parse_event_t::object_start)
        count = 0;
      else if (event == Json::parse_event_t::object_end && parsed.size() != count)
        throw Corrupt("two fields of an object have the same name");
      return true;
    });
    if (!json.is_object()) throw Corrupt(str("it is a JSON ", json.type_name(), ", expected an object"));
    return json;
  } catch (const Json::parse_error& error) {
    throw Corrupt(str("from byte ", error.byte, " on it is no JSON"));
  } catch (const Json::exception&) {
    throw Corrupt("it holds a number that is too large");
  }
}

}  // namespace io

RecordSourceHandle json_lines_source(const std::vector<std::string>& files, const TableOptions& options) {
  return io::table_source(std::make_unique<io::JsonRows>(files), options);
}

}  // namespace paceline
