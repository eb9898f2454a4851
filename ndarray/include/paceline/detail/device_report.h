#pragma once
// What a kernel of a CUDA device finds wrong with the values of its operands. A kernel cannot throw: it leaves a
// report, which the host throws as InvalidArgument where it waits for the device next: for whichever array, as there is
// one report for each device. Not installed.

#include <paceline/device.h>

#include <cstdint>
#include <exception>

namespace paceline::detail {

struct DeviceReport {
  static constexpr int kNone = 0, kBeingWritten = 1, kComplete = 2;

  int state;            // of the report: the first since the last was taken
  const char* pattern;  // a literal of the host, in which each {} stands for one of these, the last may come twice:
  double value;
  std::int64_t number, limit;
};

// The device's one, in memory that it and the host see. For kernels, which get it as an argument.
DeviceReport* report_of(Device device);

// Takes the report as an exception; null where there is none. What the device did before must be complete, or its
// report may be left for the next.
std::exception_ptr take_report(Device device) noexcept;

}  // namespace paceline::detail
