#pragma once
// Small tables, ids and rows for the tests of row-sparse tables.

#include <paceline/kvstore.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace paceline::test {

using Ids = std::vector<std::int64_t>;

inline TableSpec table_of(std::int64_t rows, std::int64_t width,
                          const std::string& initializer = "normal:sigma=1,seed=3", DType dtype = DType::kFloat32) {
  return {"table", rows, width, dtype, Spec::parse(initializer)};
}

inline NDArray ids_of(const Ids& ids, Engine& engine = default_engine()) {
  return NDArray::from<std::int64_t>(ids, Shape{static_cast<std::int64_t>(ids.size())}, {}, engine);
}

inline NDArray rows_of(const std::vector<float>& values, std::int64_t width, Engine& engine = default_engine()) {
  return NDArray::from<float>(values, Shape{static_cast<std::int64_t>(values.size()) / width, width}, {}, engine);
}

inline std::vector<float> pull(KVStore& store, const TableSpec& table, const Ids& ids, Engine& engine) {
  const NDArray out =
      NDArray::zeros(Shape{static_cast<std::int64_t>(ids.size()), table.width}, table.dtype, {}, engine);
  store.pull_rows({{table.name, ids_of(ids, engine), out}});
  return out.to_vector<float>();
}

inline Ids all_rows(const TableSpec& table) {
  Ids ids(static_cast<std::size_t>(table.rows));
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::int64_t>(i);
  return ids;
}

inline Ids random_ids(std::mt19937& random, std::int64_t rows, std::size_t count) {
  Ids ids(count);
  for (std::int64_t& id : ids) id = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(rows));
  return ids;
}

inline std::vector<float> random_values(std::mt19937& random, std::size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

}  // namespace paceline::test
