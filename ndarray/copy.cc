#include "copy.h"

#include "capture/listener.h"
#include "launch.h"
#include "storage.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/device_report.h>
#include <paceline/detail/late_failure.h>
#include <paceline/detail/run_ahead.h>

namespace paceline::detail {
namespace {

bool same_layout(const NDArray& a, const NDArray& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.strides() == b.strides() || (a.is_contiguous() && b.is_contiguous())) && is_dense(a.shape(), a.strides());
}

// Goes with a copy to the host, which is where the host sees what kernels did: when the copy is complete, its task has
// their failure, so that tasks which read the array do not run. A copy that was never issued leaves a CUDA device's
// report to others.
class ReportOf {
 public:
  explicit ReportOf(Device device) : device_(device) {}
  ReportOf(ReportOf&&) = default;
  void issued(std::shared_ptr<Storage> to) { to_ = std::move(to); }
  // On a simulated device, in its stream.
  void copied(std::exception_ptr failure) { failure_ = std::move(failure); }
  ~ReportOf() {
    if (!to_) return;
    if (device_.kind == DeviceKind::kCuda) {
      failure_ = take_report(device_);
      if (to_->failure()) to_->set_failure(nullptr);
    }
    if (failure_) fail_late(failure_);
  }

 private:
  Device device_;
  std::shared_ptr<Storage> to_;
  std::exception_ptr failure_;
};

// The bytes of one dense array into another of the same layout, through the runtime of the accelerator among the two.
void copy_across(const NDArray& source, const NDArray& to, int priority) {
  if (CaptureListener* const listener = CaptureListener::current()) listener->refuse("it copies between devices");
  const bool into = !to.device().is_cpu();
  const TaskInfo info{"copy", into ? to.device() : source.device(), into ? Lane::kCopyIn : Lane::kCopyOut, priority};
  const CopyKind kind = !into                      ? CopyKind::kDeviceToHost
                        : source.device().is_cpu() ? CopyKind::kHostToDevice
                                                   : CopyKind::kDeviceToDevice;
  const bool whole = covers_storage(to);
  std::vector<Variable> reads{source.variable()};
  if (!whole) reads.push_back(to.variable());
  const Variable writes[] = {to.variable()};
  const std::int64_t new_bytes = into && to.variable().version() == 0 ? static_cast<std::int64_t>(to.bytes()) : 0;
  to.engine().push(
      info, reads, writes,
      [ahead = RunAhead(new_bytes, to.device()), source_storage = ArrayBuilder::storage(source),
       to_storage = ArrayBuilder::storage(to), from = ArrayBuilder::data(source), into = ArrayBuilder::data(to),
       bytes = to.bytes(), kind, whole, report = ReportOf(info.device)](TaskContext& task) mutable {
        runtime(task.device).copy(into, from, bytes, kind, *task.stream);
        if (kind == CopyKind::kDeviceToHost) report.issued(to_storage);
        if (task.device.kind != DeviceKind::kSim) return;
        // The array keeps the failure too: a later copy to a simulated device is issued before this one is complete.
        task.stream->enqueue([source = source_storage.get(), to = to_storage.get(), whole, &report] {
          const std::exception_ptr failure = source->failure() || whole ? source->failure() : to->failure();
          if (failure || to->failure()) to->set_failure(failure);
          report.copied(failure);
        });
      });
  if (!whole) ArrayBuilder::storage(to)->note_partial_write(Layout::of(to));
}

}  // namespace

bool overlap(const NDArray& a, const NDArray& b) {
  return a.shares_memory_with(b) && may_overlap(Layout::of(a), Layout::of(b));
}

bool disturbs(const NDArray& out, const NDArray& input) {
  const bool same_view = out.shares_memory_with(input) && ArrayBuilder::offset(out) == ArrayBuilder::offset(input) &&
                         out.dtype() == input.dtype() && out.shape() == input.shape() &&
                         out.strides() == input.strides();
  return !same_view && overlap(out, input);
}

void copy(const NDArray& source, const NDArray& to, int priority) {
  require(&source.engine() == &to.engine(), "[copy] the two arrays belong to different engines");
  const NDArray from = source.broadcast_to(to.shape());
  if (disturbs(to, from)) return copy(source.clone(), to, priority);

  const bool local = source.device() == to.device() || (source.device().is_cpu() && to.device().is_cpu());
  if (local) {
    const NDArray inputs[] = {from};
    const NDArray outputs[] = {to};
    return launch_anywhere(copy_kernel(), inputs, outputs, {.priority = priority});
  }
  const bool through_host =
      !source.device().is_cpu() && !to.device().is_cpu() && source.device().kind != to.device().kind;
  if (through_host) return copy(source.to(Device()), to, priority);
  if (same_layout(from, to)) return copy_across(from, to, priority);
  // Only dense bytes cross: what the source has without its broadcasting, then the rest is done at the other end.
  const NDArray dense = is_dense(source.shape(), source.strides()) ? source : source.contiguous();
  NDArray arrived = ArrayBuilder::view(NDArray(dense.shape(), dense.dtype(), to.device(), to.engine()), 0,
                                       dense.shape(), dense.strides(), dense.dtype());
  copy_across(dense, arrived, priority);
  copy(arrived, to, priority);
}

}  // namespace paceline::detail
