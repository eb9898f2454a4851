#include <paceline/detail/device_runtime.h>
#include <paceline/error.h>

#include <charconv>
#include <map>
#include <mutex>

namespace paceline {
namespace {

struct Kind {
  DeviceKind kind;
  std::string_view name;
  std::unique_ptr<detail::DeviceRuntime> (*make)(int index);
};

constexpr Kind kKinds[] = {
    {DeviceKind::kCpu, "cpu", detail::make_cpu_runtime},
    {DeviceKind::kCuda, "cuda", detail::make_cuda_runtime},
    {DeviceKind::kSim, "sim", detail::make_simulated_runtime},
};

const Kind& kind_of(Device device) { return kKinds[static_cast<int>(device.kind)]; }

}  // namespace

Device::Device(std::string_view name) {
  const std::string_view prefix = name.substr(0, name.find(':'));
  for (const Kind& known : kKinds) {
    if (prefix != known.name) continue;
    kind = known.kind;
    if (prefix.size() == name.size()) return;
    const char* end = name.data() + name.size();
    const auto [stopped, error] = std::from_chars(name.data() + prefix.size() + 1, end, index);
    if (error == std::errc() && stopped == end && index >= 0) return;
  }
  throw InvalidArgument(str("unknown device '", name, "'; known: cpu, cpu:N, cuda:N, sim:N"));
}

std::string Device::name() const {
  const std::string kind_name(kind_of(*this).name);
  return is_cpu() && index == 0 ? kind_name : kind_name + ":" + std::to_string(index);
}

int device_count(DeviceKind kind) {
  switch (kind) {
    case DeviceKind::kCpu: return 16;
    case DeviceKind::kSim: return 4;
    case DeviceKind::kCuda: return detail::cuda_device_count();
  }
  return 0;
}

namespace detail {

DeviceRuntime& runtime(Device device) {
  // Never destroyed: arrays that live as long as the process give their memory back to it.
  static std::mutex& mutex = *new std::mutex;
  static auto& runtimes = *new std::map<Device, std::unique_ptr<DeviceRuntime>>;
  // Arrays of the CPU ask for every piece of memory.
  static DeviceRuntime* const first_cpu = make_cpu_runtime(0).release();
  if (device == Device()) return *first_cpu;
  if (device.index < 0) throw NotAvailable(str("there is no device ", device.name(), "; the first one has index 0"));

  const std::lock_guard lock(mutex);
  std::unique_ptr<DeviceRuntime>& found = runtimes[device];
  if (!found) {
    if (device.kind != DeviceKind::kCuda && device.index >= device_count(device.kind))
      throw NotAvailable(str("there is no device ", device.name(), "; the last one is ",
                             Device(device.kind, device_count(device.kind) - 1).name()));
    found = kind_of(device).make(device.index);
  }
  return *found;
}

}  // namespace detail
}  // namespace paceline
