#include "row_gradients.h"

#include <paceline/kernel.h>
#include <paceline/ops.h>
#include <paceline/recorder.h>

#include <algorithm>
#include <array>
#include <numeric>

namespace paceline::nn {
namespace {

// The third input, which is the rows of the second one that have the numbers in the first.
const OpDef& looked_up_operator() {
  static const OpDef& op =
      *new OpDef(OpDef("looked_up")
                     .input("numbers")
                     .input("table")
                     .input("rows")
                     .saves_inputs({0})
                     .forward([](const std::vector<NDArray>& inputs, const void*) { return std::vector{inputs[2]}; })
                     .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
                       const NDArray& numbers = call.inputs[0];
                       const Shape& table = call.input_specs[1].shape;
                       const NDArray values = gradients[0].contiguous().view({numbers.size(), table[1]});
                       return {Gradient(), RowSparse{numbers, values, table}, Gradient()};
                     }));
  return op;
}

template <class T>
void add_up(const Tensor& numbers, const Tensor& values, const Tensor& rows, const Tensor& sums) {
  const auto* const ids = numbers.as<const std::int64_t>();
  const std::int64_t count = numbers.size(), width = count > 0 ? values.size() / count : 0;
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [ids](std::int64_t i) { return ids[i]; });
  T* sum = nullptr;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t from = order[static_cast<std::size_t>(i)];
    const bool again = i > 0 && rows.as<std::int64_t>()[i - 1] == ids[from];
    T* const out = sums.as<T>() + i * width;
    const T* const value = values.as<const T>() + from * width;
    rows.as<std::int64_t>()[i] = ids[from];
    if (!again) {
      sum = std::copy_n(value, width, out) - width;
      continue;
    }
    std::fill_n(out, width, T(0));
    for (std::int64_t e = 0; e < width; ++e) sum[e] += value[e];
  }
}

}  // namespace

NDArray rows_from(const RowSource& source, const Parameter& table, const NDArray& numbers) {
  const NDArray& value = table.value;
  Shape shape = numbers.shape();
  shape.push_back(value.size(1));
  const NDArray rows(shape, value.dtype(), value.device(), value.engine()),
      flat = numbers.cast(DType::kInt64).contiguous().view({numbers.size()});
  {
    const RecordingScope no_recording(nullptr);
    source(table, flat, rows.view({numbers.size(), value.size(1)}));
  }
  return invoke(looked_up_operator(), {flat, value, rows})[0];
}

NDArray row_numbers(std::int64_t begin, std::int64_t end, Device device) {
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(end - begin));
  std::iota(numbers.begin(), numbers.end(), begin);
  return NDArray::from(numbers, {end - begin}, device);
}

RowSparse sum_of_rows(const Parameter& table, const std::vector<Gradient>& gradients) {
  const RecordingScope no_recording(nullptr);
  const NDArray& value = table.value;
  std::vector<NDArray> rows, values;
  for (const Gradient& gradient : gradients) {
    if (gradient.is_none()) continue;
    rows.push_back(gradient.is_sparse() ? gradient.sparse.rows : row_numbers(0, value.size(0), value.device()));
    values.push_back(gradient.is_sparse() ? gradient.sparse.values : gradient.dense);
  }
  if (rows.empty())
    return {NDArray({0}, DType::kInt64, value.device()), NDArray({0, value.size(1)}, value.dtype(), value.device()),
            value.shape()};
  return rows.size() == 1 ? RowSparse{rows[0], values[0], value.shape()}
                          : RowSparse{concat(rows, 0), concat(values, 0), value.shape()};
}

RowSparse with_each_row_once(const RowSparse& gradient) {
  const RecordingScope no_recording(nullptr);
  const NDArray numbers = gradient.rows.to(Device()), values = gradient.values.to(Device()).contiguous();
  const RowSparse result{NDArray(numbers.shape(), DType::kInt64), NDArray(values.shape(), values.dtype()),
                         gradient.shape};
  launch_host("sum_repeated_rows", std::array{numbers, values}, std::array{result.rows, result.values},
              [](const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out) {
                if (in[1].dtype == DType::kFloat64)
                  add_up<double>(in[0], in[1], out[0], out[1]);
                else
                  add_up<float>(in[0], in[1], out[0], out[1]);
              });
  return result;
}

}  // namespace paceline::nn
