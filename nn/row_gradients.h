#pragma once
// Row-sparse gradients of tables, whose rows come from a RowSource (module.h).

#include <paceline/module.h>
#include <paceline/row_sparse.h>

#include <vector>

namespace paceline::nn {

// embedding() with rows from `source` in place of the table's value; its gradient is that of the table, row-sparse.
NDArray rows_from(const RowSource& source, const Parameter& table, const NDArray& numbers);

// The sum of a table's gradients, each dense, row-sparse or none: all their rows, one behind the other.
RowSparse sum_of_rows(const Parameter& table, const std::vector<Gradient>& gradients);

// The same on the CPU, in arrays of its own: rows in ascending order, the gradients of a row that occurs more than once
// added up in the order given, and zeros where it occurs again. Float32 and float64.
RowSparse with_each_row_once(const RowSparse& gradient);

// begin, begin + 1, .. end - 1
NDArray row_numbers(std::int64_t begin, std::int64_t end, Device device = {});

}  // namespace paceline::nn
