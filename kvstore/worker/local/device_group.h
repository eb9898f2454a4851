#pragma once
// A group of GPUs of this process. NCCL sums and broadcasts their arrays, in engine tasks. Only NCCL uses the streams
// of the group. Events order these streams with the tasks of the devices.
//
// With two devices the sum has the same bits as a sum in the order of the devices. With more devices NCCL chooses the
// order. It is the same in every run on one machine with one version of NCCL.

#include <paceline/detail/device_runtime.h>
#include <paceline/mutex.h>
#include <paceline/ndarray.h>

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "local/nccl.h"

namespace paceline {

// Thread-safe. Its tasks keep the group alive. It must not outlive the engine.
class DeviceGroup : public std::enable_shared_from_this<DeviceGroup> {
 public:
  // Makes the group of at least two CUDA devices, in ascending order. Null unless the devices are different physical
  // GPUs, NCCL can be opened and started, and PACELINE_NCCL is not 0. Another value of PACELINE_NCCL is the library's
  // name. For GPUs, the log says whether NCCL or copies sum the gradients.
  static std::shared_ptr<DeviceGroup> make(const std::vector<Device>& devices, Engine& engine);
  ~DeviceGroup();

  // The work for one key. All arrays are contiguous and have one size and type, float32 or float64. `parts` are in the
  // order of the devices.
  struct Operation {
    std::string key;
    // Variable of the key's weights. It is poisoned if NCCL fails before the task is complete. Null for a broadcast.
    Variable weights;
    std::vector<NDArray> parts;  // the summands; empty for a broadcast
    NDArray one;                 // on one of the devices: the sum, or the array to broadcast
    std::vector<NDArray> outs;   // targets of a broadcast; the device of `one` needs none
  };
  // Task: runs all operations together, so a failure of one array fails all. A failure of NCCL is a DeviceError that
  // names the keys. Later tasks of the group then fail too.
  void run(const char* task, std::vector<Operation> operations, int priority);
  // Announces that a task, not pushed yet, will fill `out` from `weights`. If NCCL then fails before a sum for
  // `weights` is complete, `out` is poisoned as well as `weights`. A thread that already waits for `out` may miss this.
  void fills(const Variable& weights, const Variable& out);
  // For a task that updates weights: throws if NCCL has failed before a sum for the weights was complete. A task that
  // reads no such sum would not notice the failure.
  void require_kept(const Variable& weights);

 private:
  class UnderWay;
  DeviceGroup(std::vector<Device> devices, std::unique_ptr<nccl::Library> library, Engine& engine);

  void issue(const std::vector<Operation>& operations, Device device, detail::Stream& stream);
  void issue_to(std::size_t rank, const Operation& operation) PACELINE_REQUIRES(mutex_);
  void look() PACELINE_REQUIRES(mutex_);  // checks whether NCCL has failed
  void fail(const std::string& what) PACELINE_REQUIRES(mutex_);
  void watch();

  const std::vector<Device> devices_;
  const std::unique_ptr<nccl::Library> library_;
  Engine& engine_;
  std::vector<std::unique_ptr<detail::Stream>> streams_;
  Mutex mutex_;
  CondVar changed_;
  std::vector<nccl::Comm> comms_ PACELINE_GUARDED_BY(mutex_);
  std::vector<UnderWay*> under_way_ PACELINE_GUARDED_BY(mutex_);
  std::string failure_ PACELINE_GUARDED_BY(mutex_);
  std::vector<std::pair<Variable, std::string>> lost_ PACELINE_GUARDED_BY(mutex_);  // weights, and the error's text
  bool ending_ PACELINE_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace paceline
