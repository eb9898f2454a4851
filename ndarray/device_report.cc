#include <paceline/detail/device_report.h>
#include <paceline/detail/device_runtime.h>
#include <paceline/error.h>

#include <atomic>
#include <cmath>
#include <map>
#include <memory>
#include <mutex>
#include <string>

namespace paceline::detail {
namespace {

struct Reports {
  std::mutex mutex;
  std::map<Device, DeviceReport*> of;
};

// Never destroyed: kernels may end after the program's statics.
Reports& reports() {
  static Reports& all = *new Reports;
  return all;
}

DeviceReport* new_report(DeviceRuntime& of) {
  auto* const report = new (of.allocate(sizeof(DeviceReport), MemoryKind::kPinned, nullptr)) DeviceReport{};
  report->claimed = static_cast<unsigned*>(of.allocate(sizeof(unsigned), MemoryKind::kNormal, nullptr));
  const std::unique_ptr<Stream> stream = of.create_stream(0);
  of.copy(report->claimed, &report->taken, sizeof(unsigned), CopyKind::kHostToDevice, *stream);
  of.synchronize(*stream);
  return report;
}

std::string text_of(const DeviceReport& report) {
  const bool whole = report.value == std::floor(report.value) && std::fabs(report.value) < 0x1p62;
  const std::string numbers[] = {whole ? std::to_string(static_cast<std::int64_t>(report.value)) : str(report.value),
                                 std::to_string(report.number), std::to_string(report.limit),
                                 std::to_string(report.limit)};
  std::string text = report.pattern ? report.pattern : "a kernel found {} wrong";
  std::size_t at = 0;
  for (const std::string& number : numbers)
    if ((at = text.find("{}", at)) != std::string::npos) text.replace(at, 2, number);
  return text;
}

}  // namespace

DeviceReport* report_of(Device device) {
  Reports& all = reports();
  const std::lock_guard lock(all.mutex);
  DeviceReport*& report = all.of[device];
  if (!report) report = new_report(runtime(device));
  return report;
}

std::exception_ptr take_report(Device device) noexcept try {
  Reports& all = reports();
  const std::lock_guard lock(all.mutex);
  const auto found = all.of.find(device);
  if (found == all.of.end() || !found->second) return nullptr;  // or there was no memory for one
  const unsigned written = std::atomic_ref(found->second->written).load(std::memory_order_acquire);
  const std::atomic_ref taken(found->second->taken);
  if (written == taken.load(std::memory_order_relaxed)) return nullptr;
  const std::exception_ptr error = std::make_exception_ptr(InvalidArgument(str(
      text_of(*found->second), "; ", device.name(), " found this before now, perhaps for another array than this")));
  taken.store(written, std::memory_order_release);
  return error;
} catch (...) {
  return std::current_exception();
}

}  // namespace paceline::detail
