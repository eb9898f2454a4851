#pragma once
// Whole numbers in a device's memory that must lie in [0, limit): labels, positions, rows.

#include <paceline/detail/device_report.h>
#include <paceline/detail/elementwise.cuh>

namespace paceline::detail {

__device__ inline void leave_report(DeviceReport* report, const char* pattern, double value, std::int64_t number,
                                    std::int64_t limit) {
  if (atomicCAS_system(&report->state, DeviceReport::kNone, DeviceReport::kBeingWritten) != DeviceReport::kNone) return;
  report->pattern = pattern;
  report->value = value;
  report->number = number;
  report->limit = limit;
  __threadfence_system();
  atomicExch_system(&report->state, DeviceReport::kComplete);
}

struct DevicePositions {
  DType dtype;
  const void* data;
  std::int64_t limit;
  const char* pattern;  // of the report: value, number, limit
  DeviceReport* report;
  bool from_back;  // negative ones count from the limit

  DevicePositions(const KernelContext& context, const Tensor& positions, std::int64_t end, const char* message,
                  bool negative = false)
      : dtype(positions.dtype),
        data(positions.data),
        limit(end),
        pattern(message),
        report(report_of(context.device)),
        from_back(negative) {}

  // Negative for one outside, which is reported; NaN is outside.
  __device__ std::int64_t operator[](std::int64_t i) const {
    const double value = load_as<double>(dtype, data, i);
    std::int64_t position = value == value ? load_as<std::int64_t>(dtype, data, i) : -1;
    if (from_back && position < 0) position += limit;
    if (position >= 0 && position < limit) return position;
    leave_report(report, pattern, value, i, limit);
    return -1;
  }
};

}  // namespace paceline::detail
