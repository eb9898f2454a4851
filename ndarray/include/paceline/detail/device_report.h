#pragma once
// What a kernel of a CUDA device finds wrong with the values of its operands. A kernel cannot throw: it leaves a
// report, which the host throws as InvalidArgument where it waits for the device next: for whichever array, as there is
// one report for each device. Not installed.

#include <paceline/device.h>

#include <cstdint>
#include <exception>

namespace paceline::detail {

// Lies in memory of the host that the device sees. A thread may write the report numbered `taken` once it has made
// `*claimed` taken + 1; the report is complete when `written` is taken + 1, and belongs to the host until `taken` is,
// too. Not every machine has atomic operations of a device on memory of the host, so `claimed` lies in the device's.
struct DeviceReport {
  unsigned written = 0, taken = 0;  // reports so far: the device's count, the host's count
  unsigned* claimed = nullptr;
  const char* pattern = nullptr;  // a literal of the host, in which each {} stands for one of these, the last twice:
  double value = 0;
  std::int64_t number = 0, limit = 0;
};

// The device's one. For kernels, which get it as an argument.
DeviceReport* report_of(Device device);

// Takes the report as an exception; null where there is none. What the device did before must be complete, or its
// report may be left for the next.
std::exception_ptr take_report(Device device) noexcept;

}  // namespace paceline::detail
