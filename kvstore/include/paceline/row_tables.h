#pragma once
// Row-sparse tables: embeddings and wide linear models, where a step touches few rows. Only the rows that a call names
// are sent and updated. Only rows that exist take memory. A table may therefore be larger than the memory of one
// server.
//
// A row exists from its first update on. Before that, its values are a function of the initializer, its seed, the
// table's name and the row's number, and are the same in every process. If the user gives first values, all rows exist
// from then on: each takes memory for its weights and for the optimizer's state. Optimizers are lazy: they touch a row
// only when it is pushed. Each row has its own state, version and delays. A counter of steps, such as Adam's, counts
// the updates of the row.

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
  std::int64_t width = 0;         // number of elements of a row
  DType dtype = DType::kFloat32;  // float32 or float64
  // Gives the values of rows that were never updated: `zeros`, `normal` (sigma 0.01, seed 0), or `uniform` from -bound
  // to bound (bound 0.01, seed 0).
  Spec initializer = {"zeros", {}};
};

// Writes the first values of the rows [begin, end) of a table to `out`. `out` has the shape (end - begin, width) and
// the table's type, and is in host memory. The function may use operators to write `out`; the store waits for them.
using FirstRows = std::function<void(std::int64_t begin, std::int64_t end, const NDArray& out)>;

// Gradients of some rows.
struct RowPush {
  std::string table;  // name of the table
  NDArray ids;        // int64 (n), in any order; gradients of an id that occurs more than once are added up
  NDArray gradients;  // (n, width), of the table's type
};

// Rows to read.
struct RowPull {
  std::string table;  // name of the table
  NDArray ids;        // int64 (n), in any order; an id may occur more than once
  NDArray out;        // (n, width), of the table's type; is overwritten
};

}  // namespace paceline
