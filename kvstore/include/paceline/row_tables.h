#pragma once
// Row-sparse tables: embeddings and wide linear models, where a step touches few rows. Only the rows that a call names
// travel, are updated and take memory. A table may therefore be larger than the memory of one server.
//
// A row exists from its first update on. Before, it is what the initializer makes of the seed, the table's name and the
// row's number, the same at every place. A table that begins with values of the user's own has all rows from then on:
// each takes the memory of its weights and of the optimizer's state. Optimizers are lazy: they touch a row only when it
// is pushed. Each row has a state, a version and delays of its own. A counter of steps, as Adam's, counts the updates
// of the row.

#include <paceline/ndarray.h>
#include <paceline/options.h>

#include <cstdint>
#include <functional>
#include <string>

namespace paceline {

// A table as every worker declares it.
struct TableSpec {
  std::string name;               // not empty; differs from those of other tables and keys
  std::int64_t rows = 0;          // ids are 0 to rows - 1
  std::int64_t width = 0;         // elements of a row
  DType dtype = DType::kFloat32;  // or float64
  // Gives the values of rows that were never updated: `zeros`, `normal` (sigma 0.01, seed 0), or `uniform` from -bound
  // to bound (bound 0.01, seed 0).
  Spec initializer = {"zeros", {}};
};

// Writes the first values of the rows [begin, end) of a table to `out`: (end - begin, width) of the table's type, in
// host memory. May use operators; they are waited for.
using FirstRows = std::function<void(std::int64_t begin, std::int64_t end, const NDArray& out)>;

// Gradients of some rows.
struct RowPush {
  std::string table;  // its name
  NDArray ids;        // int64 (n), in any order; gradients of an id that occurs more than once are added up
  NDArray gradients;  // (n, width), of the table's type
};

// Rows to read.
struct RowPull {
  std::string table;  // its name
  NDArray ids;        // int64 (n), in any order; an id may occur more than once
  NDArray out;        // (n, width), of the table's type; is overwritten
};

}  // namespace paceline
