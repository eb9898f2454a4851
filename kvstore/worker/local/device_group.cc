#include "local/device_group.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/physical_device.h>
#include <paceline/detail/start_thread.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <set>
#include <utility>

namespace paceline {
namespace {

constexpr std::chrono::milliseconds kLookAgain{50};

std::string names_of(const std::vector<Device>& devices) {
  std::string names;
  for (const Device& device : devices) names += (names.empty() ? "" : ", ") + device.name();
  return names;
}

std::string keys_of(const std::vector<DeviceGroup::Operation>& operations) {
  const std::size_t others = operations.size() - 1;
  return str("key '", operations.front().key, "'", others > 0 ? str(" and ", others, " more") : "");
}

}  // namespace

// The operations of a task. The task holds this object until its work is complete.
class DeviceGroup::UnderWay {
 public:
  UnderWay(std::shared_ptr<DeviceGroup> group, std::vector<Operation> operations)
      : operations(std::move(operations)), group_(std::move(group)) {
    const Lock lock(group_->mutex_);
    group_->under_way_.push_back(this);
    group_->changed_.notify_all();
  }
  ~UnderWay() {
    const Lock lock(group_->mutex_);
    group_->look();
    std::erase(group_->under_way_, this);
  }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

  const std::vector<Operation> operations;
  std::vector<std::pair<const Operation*, Variable>> filled;  // set by fills(); guarded by the group's mutex

 private:
  const std::shared_ptr<DeviceGroup> group_;
};

std::shared_ptr<DeviceGroup> DeviceGroup::make(const std::vector<Device>& devices, Engine& engine) {
  std::set<int> physical;
  for (const Device& device : devices)
    if (device.kind == DeviceKind::kCuda) physical.insert(detail::physical_cuda_device(device.index));
  if (devices.size() < 2 || physical.empty()) return nullptr;
  const auto copied = [&](const std::string& why) {
    LOG(INFO) << "gradients of " << names_of(devices) << " are summed by copies between the devices: " << why;
    return nullptr;
  };
  if (physical.size() < devices.size()) return copied("they are not GPUs of their own");
  const char* const wanted = std::getenv("PACELINE_NCCL");  // NOLINT(concurrency-mt-unsafe)
  const std::string name = wanted && *wanted ? wanted : "libnccl.so.2";
  if (name == "0") return copied("PACELINE_NCCL=0 refuses NCCL");
  try {
    std::shared_ptr<DeviceGroup> group(new DeviceGroup(devices, std::make_unique<nccl::Library>(name), engine));
    LOG(INFO) << "gradients of " << names_of(devices) << " are summed by NCCL " << group->library_->version_text();
    return group;
  } catch (const Error& error) {
    return copied(error.what());
  }
}

DeviceGroup::DeviceGroup(std::vector<Device> devices, std::unique_ptr<nccl::Library> library, Engine& engine)
    : devices_(std::move(devices)), library_(std::move(library)), engine_(engine) {
  std::vector<int> physical;
  for (const Device& device : devices_) {
    streams_.push_back(detail::runtime(device).create_stream(1));
    physical.push_back(detail::physical_cuda_device(device.index));
  }
  std::vector<nccl::Comm> comms(devices_.size());
  library_->check(library_->comm_init_all(comms.data(), static_cast<int>(comms.size()), physical.data()), "starting");
  {
    const Lock lock(mutex_);
    comms_ = std::move(comms);
  }
  watcher_ = detail::start_thread("one that watches NCCL", [this] { watch(); });
}

DeviceGroup::~DeviceGroup() {
  std::vector<nccl::Comm> comms;
  {
    const Lock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
    comms = std::move(comms_);
  }
  watcher_.join();
  for (nccl::Comm comm : comms) library_->comm_destroy(comm);
}

void DeviceGroup::run(const char* task, std::vector<Operation> operations, int priority) {
  if (operations.empty()) return;
  std::vector<Variable> reads, writes;
  for (const Operation& operation : operations) {
    const bool sums = !operation.parts.empty();
    for (const NDArray& part : operation.parts) reads.push_back(part.variable());
    for (const NDArray& out : operation.outs) writes.push_back(out.variable());
    (sums ? writes : reads).push_back(operation.one.variable());
  }
  auto under_way = std::make_unique<UnderWay>(shared_from_this(), std::move(operations));
  engine_.push({task, devices_.front(), Lane::kCommunication, priority}, reads, writes,
               [this, under_way = std::move(under_way)](TaskContext& context) {
                 issue(under_way->operations, context.device, *context.stream);
               });
}

void DeviceGroup::fills(const Variable& weights, const Variable& out) {
  const Lock lock(mutex_);
  for (UnderWay* task : under_way_)
    for (const Operation& operation : task->operations)
      if (operation.weights == weights) task->filled.emplace_back(&operation, out);
}

void DeviceGroup::require_kept(const Variable& weights) {
  const Lock lock(mutex_);
  for (const auto& [lost, why] : lost_)
    if (lost == weights) throw DeviceError(why);
}

void DeviceGroup::issue(const std::vector<Operation>& operations, Device device, detail::Stream& stream) {
  const Lock lock(mutex_);
  look();
  if (!failure_.empty()) throw DeviceError(str(keys_of(operations), ": ", failure_));
  const auto before = detail::runtime(device).record(stream);
  for (std::size_t rank = 0; rank < devices_.size(); ++rank)
    detail::runtime(devices_[rank]).wait(*streams_[rank], *before);
  try {
    library_->check(library_->group_start(), "beginning a group");
    try {
      for (const Operation& operation : operations)
        for (std::size_t rank = 0; rank < devices_.size(); ++rank) issue_to(rank, operation);
    } catch (...) {
      library_->group_end();
      throw;
    }
    library_->check(library_->group_end(), "issuing a group");
  } catch (const DeviceError& error) {
    fail(error.what());
    throw DeviceError(str(keys_of(operations), ": ", error.what()));
  }
  for (std::size_t rank = 0; rank < devices_.size(); ++rank)
    detail::runtime(device).wait(stream, *detail::runtime(devices_[rank]).record(*streams_[rank]));
}

void DeviceGroup::issue_to(std::size_t rank, const Operation& operation) {
  const NDArray& one = operation.one;
  const auto count = static_cast<std::size_t>(one.size());
  const int type = nccl::type_of(one.dtype());
  const auto root = static_cast<std::size_t>(std::ranges::find(devices_, one.device()) - devices_.begin());
  void* const native = streams_[rank]->native();
  if (!operation.parts.empty()) {
    void* const part = ArrayBuilder::data(operation.parts[rank]);
    void* const sum = rank == root ? ArrayBuilder::data(one) : part;  // NCCL writes only the root's sum
    library_->check(library_->reduce(part, sum, count, type, nccl::kSum, static_cast<int>(root), comms_[rank], native),
                    "adding up");
    return;
  }
  const auto out = std::ranges::find(operation.outs, devices_[rank], &NDArray::device);
  void* const to = ArrayBuilder::data(out == operation.outs.end() ? one : *out);
  void* const from = rank == root ? ArrayBuilder::data(one) : to;  // NCCL reads only the root's array
  library_->check(library_->broadcast(from, to, count, type, static_cast<int>(root), comms_[rank], native),
                  "spreading");
}

void DeviceGroup::look() {
  for (nccl::Comm comm : comms_) {
    nccl::Result error = nccl::kSuccess;
    const nccl::Result asked = library_->comm_get_async_error(comm, &error);
    if (asked != nccl::kSuccess) error = asked;
    if (error == nccl::kSuccess || error == nccl::kInProgress) continue;
    return fail(str("NCCL, at work: ", library_->get_error_string(error), " (", error, ")"));
  }
}

// Operations in flight may have been issued to NCCL. They end when NCCL aborts, and their results cannot be used. So
// this poisons the arrays that they write.
void DeviceGroup::fail(const std::string& what) {
  failure_ = what + "; load the last checkpoint in a new store, or set PACELINE_NCCL=0 to go by copies";
  LOG(ERROR) << "the group of " << names_of(devices_) << " does nothing any more: " << what;
  for (const UnderWay* task : under_way_) {
    for (const Operation& operation : task->operations) {
      std::vector<Variable> written;
      const std::string text = str("key '", operation.key, "': ", failure_);
      if (operation.weights) {
        written.push_back(operation.weights);
        lost_.emplace_back(operation.weights, text);
      }
      // The update may not have been pushed yet. It then fails because the sum is poisoned.
      if (!operation.parts.empty()) written.push_back(operation.one.variable());
      for (const NDArray& out : operation.outs) written.push_back(out.variable());
      for (const auto& [of, out] : task->filled)
        if (of == &operation) written.push_back(out);
      engine_.push({operation.outs.empty() ? "store.sum" : "store.spread", {}}, {}, written,
                   [text](TaskContext&) { throw DeviceError(text); });
    }
  }
  for (nccl::Comm comm : std::exchange(comms_, {})) library_->comm_abort(comm);
}

void DeviceGroup::watch() {
  never_hold_back_this_thread();
  const Lock lock(mutex_);
  while (!ending_) {
    changed_.wait(mutex_, [this]() PACELINE_REQUIRES(mutex_) { return ending_ || !under_way_.empty(); });
    changed_.wait_for(mutex_, kLookAgain, [this]() PACELINE_REQUIRES(mutex_) { return ending_; });
    look();
  }
}

}  // namespace paceline
