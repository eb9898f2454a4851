#pragma once
// Whole numbers in a device's memory that must lie in [0, limit): labels, positions, rows.

#include <paceline/detail/device_report.h>
#include <paceline/detail/elementwise.cuh>

namespace paceline::detail {

__device__ inline void leave_report(DeviceReport* report, const char* pattern, double value, std::int64_t number,
                                    std::int64_t limit) {
  const unsigned taken = *static_cast<const volatile unsigned*>(&report->taken);
  if (atomicCAS(report->claimed, taken, taken + 1) != taken) return;
  report->pattern = pattern;
  report->value = value;
  report->number = number;
  report->limit = limit;
  __threadfence_system();
  *static_cast<volatile unsigned*>(&report->written) = taken + 1;
}

struct DevicePositions {
  DType dtype;
  const void* data;
  std::int64_t limit;
  const char* pattern;  // of the report: value, number, limit, limit
  DeviceReport* report;
  bool from_back = false;           // negative ones count from the limit
  const char* not_whole = nullptr;  // of the report of one that is no whole number; null: it is rounded towards 0

  DevicePositions(const KernelContext& context, const Tensor& positions, std::int64_t end, const char* message)
      : dtype(positions.dtype), data(positions.data), limit(end), pattern(message), report(report_of(context.device)) {}

  // Negative for one outside, which is reported; NaN is outside.
  __device__ std::int64_t operator[](std::int64_t i) const {
    const double value = load_as<double>(dtype, data, i);
    const bool whole = !not_whole || value == trunc(value);
    std::int64_t position = value == value ? load_as<std::int64_t>(dtype, data, i) : -1;
    if (from_back && position < 0) position += limit;
    if (whole && position >= 0 && position < limit) return position;
    leave_report(report, whole ? pattern : not_whole, value, i, limit);
    return -1;
  }
};

// Those of an axis, negative ones from its end.
inline DevicePositions positions_from_back(const KernelContext& context, const Tensor& positions, std::int64_t end,
                                           const char* message) {
  DevicePositions result(context, positions, end, message);
  result.from_back = true;
  return result;
}

// Class numbers.
inline DevicePositions device_labels(const KernelContext& context, const Tensor& labels, std::int64_t classes,
                                     const char* message, const char* not_whole) {
  DevicePositions result(context, labels, classes, message);
  result.not_whole = not_whole;
  return result;
}

}  // namespace paceline::detail
