#include "copy.h"
#include "kernels/cuda_kernels.h"
#include "kernels/functors.h"

#include <paceline/detail/elementwise.h>
#include <paceline/row_sparse.h>

namespace paceline {
namespace detail {
namespace {

// Each thread has its own range of the table's rows, so rows that repeat are added in order by one thread.
void scatter_add_cpu(const KernelContext&, std::span<const Tensor> inputs, std::span<const Tensor> outputs,
                     const void*) {
  const Tensor& table = outputs[0];
  const std::span<const std::int64_t> rows(inputs[0].as<const std::int64_t>(),
                                           static_cast<std::size_t>(inputs[0].size()));
  const std::int64_t height = table.shape[0];
  for (std::size_t i = 0; i < rows.size(); ++i)
    require(0 <= rows[i] && rows[i] < height, "[scatter_add] row ", rows[i], " (number ", i,
            " of the update) is outside a table of ", height);
  if (table.size() == 0) return;
  const std::int64_t width = table.size() / height;
  const std::int64_t work_per_row = std::max<std::int64_t>(1, inputs[1].size() / height);
  visit_dtype(table.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    parallel_ranges(height, kElementsPerThread / work_per_row, [&](std::int64_t begin, std::int64_t end) {
      for (std::size_t i = 0; i < rows.size(); ++i) {
        if (rows[i] < begin || rows[i] >= end) continue;
        T* to = table.as<T>() + rows[i] * width;
        const T* from = inputs[1].as<const T>() + static_cast<std::int64_t>(i) * width;
        for (std::int64_t j = 0; j < width; ++j) to[j] = convert<T>(wrapping_sum(load(to[j]), load(from[j])));
      }
    });
  });
}

}  // namespace
}  // namespace detail

void scatter_add(const NDArray& table, const RowSparse& update) {
  const auto& [rows, values, shape] = update;
  require(table.ndim() >= 1 && shape == table.shape(), "[scatter_add] the update is for shape ", shape,
          ", the table is ", table.describe());
  require(rows.dtype() == DType::kInt64 && rows.ndim() == 1,
          "[scatter_add] needs int64 row numbers in one dimension, got ", rows.describe());
  Shape expected = table.shape();
  expected[0] = rows.size();
  require(values.shape() == expected && values.dtype() == table.dtype(), "[scatter_add] ", rows.size(), " rows of ",
          table.describe(), " need values of shape ", expected, ", got ", values.describe());
  const NDArray target = table.is_contiguous() ? table : table.clone();
  const auto dense = [&](const NDArray& input) {
    return detail::overlap(input, target) ? input.clone() : input.contiguous();
  };
  const NDArray inputs[] = {dense(rows), dense(values), target};
  const NDArray outputs[] = {target};
  launch({"scatter_add", detail::scatter_add_cpu, detail::scatter_add_cuda()}, inputs, outputs);
  if (!table.is_contiguous()) table.copy_from(target);
}

}  // namespace paceline
