#pragma once
// GPUs of this process whose arrays NCCL adds up and spreads, as engine tasks. Each stream of the group belongs to NCCL
// alone; events order it with the tasks of the devices.
//
// For two devices the sum has the bits of one that is added in the order of the devices. For more NCCL chooses the
// order: the same from run to run on one machine with one version of NCCL.

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

// Thread-safe. Outlives the tasks, and ends no later than the engine.
class DeviceGroup : public std::enable_shared_from_this<DeviceGroup> {
 public:
  // Of CUDA devices that are GPUs of their own, two at least, in ascending order. Null where they are not, where NCCL
  // is not there or does not start, and where PACELINE_NCCL=0 refuses it (another value is the library's name); a line
  // in the log says which way their arrays go, but for devices that are not GPUs.
  static std::shared_ptr<DeviceGroup> make(const std::vector<Device>& devices, Engine& engine);
  ~DeviceGroup();

  // What is done for one key. All arrays are contiguous, of one size and type, float32 or float64, in the order of the
  // devices.
  struct Operation {
    std::string key;
    Variable weights;            // poisoned where NCCL fails when the task has ended
    std::vector<NDArray> parts;  // a sum's; else none
    NDArray one;                 // on one of the devices: the sum, or what is spread
    std::vector<NDArray> outs;   // what is spread arrives here; none on the device of `one` leaves that out
  };
  // Task: all together, so a failure of any array fails all. A failure of NCCL is a DeviceError that names the keys;
  // the group does nothing any more.
  void run(const char* task, std::vector<Operation> operations, int priority);
  // A task of somebody else's, not pushed yet, fills `out` from `weights`. Where NCCL fails when a task has ended that
  // made a sum for these, `out` is poisoned as they are; who has begun to wait for it before may miss that.
  void fills(const Variable& weights, const Variable& out);
  // For a task that updates weights without a sum: throws the failure of a sum that they came of.
  void require_kept(const Variable& weights);

 private:
  class UnderWay;
  DeviceGroup(std::vector<Device> devices, std::unique_ptr<nccl::Library> library, Engine& engine);

  void issue(const std::vector<Operation>& operations, Device device, detail::Stream& stream);
  void issue_to(std::size_t rank, const Operation& operation) PACELINE_REQUIRES(mutex_);
  void look() PACELINE_REQUIRES(mutex_);  // has NCCL failed since?
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
  std::vector<std::pair<Variable, std::string>> lost_ PACELINE_GUARDED_BY(mutex_);  // weights, and why
  bool ending_ PACELINE_GUARDED_BY(mutex_) = false;
  std::thread watcher_;
};

}  // namespace paceline
