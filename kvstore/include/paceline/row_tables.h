#pragma once
// Row-sparse tables: embeddings and wide linear models, of which a step touches few rows. Only the rows named travel,
// are updated and take memory; a table may be larger than the memory of one server.
//
// A row exists from its first update on. Until then it is what the initializer makes of the seed, the table's name and
// the row's number, wherever it lives. Optimizers are lazy: a row that is not pushed is not touched, and each row has
// its own state, its own version and so its own delays. A step counter (Adam's) counts the updates of the row.

#include <paceline/ndarray.h>
#include <paceline/options.h>

#include <cstdint>
#include <string>

namespace paceline {

struct TableSpec {
  std::string name;
  std::int64_t rows = 0;          // ids are 0 .. rows - 1
  std::int64_t width = 0;         // elements of a row
  DType dtype = DType::kFloat32;  // or float64
  // zeros, normal:sigma=0.01 or uniform:bound=0.01 (from -bound to bound); the latter with seed=0.
  Spec initializer = {"zeros", {}};
};

struct RowPush {
  std::string table;
  NDArray ids;        // int64 (n), in any order; the gradients of an id that occurs more than once are added up
  NDArray gradients;  // (n, width), of the table's type
};

struct RowPull {
  std::string table;
  NDArray ids;  // int64 (n); may repeat
  NDArray out;  // (n, width)
};

}  // namespace paceline
