#include "checkpoint/saved_tables.h"

#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <cstring>

#include "checkpoint/saved_names.h"
#include "checkpoint/saved_state.h"
#include "saved_count.h"

namespace paceline {

void SavedTable::write(const TableSpec& table, StoreState& state, Engine& engine) {
  const std::string prefix = saved_table(table.name);
  std::vector<std::string> names{"weight"};
  std::int64_t rows = 0, examples = 0;
  for (const SavedRowArrays& part : parts_) {
    rows += static_cast<std::int64_t>(part.ids.size());
    examples = std::max(examples, part.examples);
    for (const auto& [name, values] : part.arrays)
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  const auto make = [&](const std::string& name, const Shape& shape, DType dtype) {
    const NDArray array(shape, dtype, {}, engine);
    array.wait();
    state.arrays.emplace_back(prefix + ":" + name, array);
    return static_cast<std::byte*>(array.data());
  };
  std::byte* ids = make("ids", {rows}, DType::kInt64);
  std::byte* versions = make("versions", {rows}, DType::kInt64);
  std::vector<std::byte*> arrays;
  for (const std::string& name : names) arrays.push_back(make(name, {rows, table.width}, table.dtype));
  const auto append = [](std::byte*& to, const void* from, std::size_t bytes) {
    if (bytes > 0) std::memcpy(to, from, bytes);
    to += bytes;
  };
  for (SavedRowArrays& part : parts_) {
    append(ids, part.ids.data(), part.ids.size() * sizeof(std::int64_t));
    append(versions, part.versions.data(), part.versions.size() * sizeof(std::uint64_t));
    for (const auto& [name, values] : part.arrays)
      append(arrays[static_cast<std::size_t>(std::find(names.begin(), names.end(), name) - names.begin())],
             values.data(), values.size());
    part = {};
  }
  parts_.clear();
  state.counters.emplace_back("examples:" + prefix, std::to_string(examples));
}

LoadedTable LoadedTable::read(const TableSpec& table, const StoreState& state, const RowRules& rules) {
  LoadedTable loaded;
  const std::vector<std::string>& known = rules.state_names;
  for (const auto& [name, array] : state.arrays) {
    const auto part = parse_table_slot(name);
    if (!part || part->first != table.name) continue;
    const std::string& slot = part->second;
    if (is_policy_state(slot) && std::ranges::count(known, slot) == 0) {
      LOG(WARNING) << "the checkpoint's state '" << slot << "' of table '" << table.name
                   << "' is of a staleness policy that this job does not use, and is dropped";
      continue;
    }
    const NDArray dense = array.contiguous();
    dense.wait();
    if (slot == "ids") {
      loaded.ids_ = dense;
    } else if (slot == "versions") {
      loaded.versions_ = dense;
    } else {
      require(slot == "weight" || std::ranges::count(known, slot) > 0, "table '", table.name, "' has no state '", slot,
              "' under these rules");
      loaded.arrays_.emplace_back(slot, dense);
    }
  }
  require(!loaded.ids_.is_none() && !loaded.versions_.is_none(), "the checkpoint has no table '", table.name, "'");
  require(std::ranges::count(loaded.arrays_, std::string("weight"), &NamedArrays::value_type::first) > 0,
          "a checkpoint without the weights of table '", table.name, "'");
  require(loaded.ids_.dtype() == DType::kInt64 && loaded.versions_.dtype() == DType::kInt64 &&
              loaded.ids_.size() == loaded.versions_.size(),
          "the checkpoint's table '", table.name, "' has ids ", loaded.ids_.describe(), " and versions ",
          loaded.versions_.describe());
  for (const auto& [slot, array] : loaded.arrays_)
    require(array.dtype() == table.dtype && array.size() == loaded.ids_.size() * table.width, "'", slot, "' of table '",
            table.name, "' is ", array.describe(), " in the checkpoint, expected ", name_of(table.dtype), " ",
            Shape{loaded.ids_.size(), table.width});
  for (const std::int64_t id : loaded.ids())
    require(id >= 0 && id < table.rows, "the checkpoint's table '", table.name, "' has row ", id, "; here it has ",
            table.rows, " rows");
  const auto* const versions = loaded.versions_.data_as<const std::int64_t>();
  for (std::size_t i = 0; i < loaded.ids().size(); ++i)
    require(versions[i] >= 0 && versions[i] <= kMostSavedCount, "the checkpoint's table '", table.name, "' has row ",
            loaded.ids()[i], " at version ", versions[i], ", expected a version from 0 to ", kMostSavedCount);
  for (const auto& [name, text] : state.counters) {
    if (name != "examples:" + saved_table(table.name)) continue;
    loaded.examples = read_counter(name, text);
  }
  return loaded;
}

std::vector<std::pair<std::string, const std::byte*>> LoadedTable::arrays() const {
  std::vector<std::pair<std::string, const std::byte*>> arrays;
  for (const auto& [slot, array] : arrays_) arrays.emplace_back(slot, static_cast<const std::byte*>(array.data()));
  return arrays;
}

NDArray first_rows(const TableSpec& table, const FirstRows& values, std::int64_t begin, std::int64_t end,
                   Engine& engine) {
  const NDArray rows(Shape{end - begin, table.width}, table.dtype, {}, engine);
  values(begin, end, rows);
  rows.wait();
  return rows;
}

}  // namespace paceline
