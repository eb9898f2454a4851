#include "launch.h"

#include "capture/listener.h"
#include "storage.h"

#include <paceline/detail/array_builder.h>

#include <utility>
#include <vector>

namespace paceline {
namespace detail {
namespace {

// A kernel call on its way: everything its task needs, kept until the task is complete.
class Call {
 public:
  Call(const char* name, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
       const LaunchOptions& options)
      : input_count_(inputs.size()) {
    operands_.reserve(inputs.size() + outputs.size());
    tensors_.reserve(inputs.size() + outputs.size());
    for (const NDArray& array : inputs) add(array, name, true);
    for (const NDArray& array : outputs) {
      add(array, name, !covers_storage(array));
      for (int i = 0; i < array.ndim(); ++i)
        require(array.strides()[i] != 0 || array.shape()[i] <= 1, "[", name, "] cannot write ", array.describe(),
                ": it is a broadcast view");
    }
    device_ = outputs[0].device();
    context_ = {device_, nullptr, nullptr, options.seed};
    if (options.workspace_bytes > 0) {
      workspace_ = PoolBlock(device_, MemoryKind::kNormal, options.workspace_bytes);
      context_.workspace = workspace_.data();
    }
  }

  std::span<const Tensor> inputs() const { return std::span(tensors_).first(input_count_); }
  std::span<const Tensor> outputs() const { return std::span(tensors_).subspan(input_count_); }

  template <class Function>
  void run(void* native_stream, Function& function) {
    context_.native_stream = native_stream;
    for (const Operand& operand : operands_)
      if (operand.old_contents_matter) operand.storage->throw_failure();
    function(context_, inputs(), outputs());
    for (const Operand& operand : operands_)
      if (operand.storage->failure()) operand.storage->set_failure(nullptr);
  }

  // Runs where the engine no longer sees a failure, so the arrays carry it themselves.
  template <class Function>
  void run_on_stream(Function& function) noexcept {
    try {
      run(nullptr, function);
    } catch (...) {
      for (std::size_t i = input_count_; i < operands_.size(); ++i)
        operands_[i].storage->set_failure(std::current_exception());
    }
  }

 private:
  struct Operand {
    std::shared_ptr<Storage> storage;
    bool old_contents_matter;
  };

  void add(const NDArray& array, const char* name, bool old_contents_matter) {
    require(!array.is_none(), "[", name, "] got a none array");
    operands_.push_back({ArrayBuilder::storage(array), old_contents_matter});
    tensors_.push_back({ArrayBuilder::data(array), array.shape(), array.strides(), array.dtype()});
  }

  Device device_;
  std::size_t input_count_;
  std::vector<Operand> operands_;
  std::vector<Tensor> tensors_;
  PoolBlock workspace_;
  KernelContext context_{};
};

// Pushes work(call, task) with the read and write sets of the arrays.
template <class Work>
void push_call(const char* name, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
               const LaunchOptions& options, Work work) {
  auto call = std::make_unique<Call>(name, inputs, outputs, options);
  std::vector<Variable> reads;
  std::vector<Variable> writes;
  reads.reserve(inputs.size() + outputs.size());
  writes.reserve(outputs.size());
  for (const NDArray& array : inputs) reads.push_back(array.variable());
  for (const NDArray& array : outputs) {
    if (!covers_storage(array)) reads.push_back(array.variable());
    writes.push_back(array.variable());
  }
  const TaskInfo info{name, outputs[0].device(), Lane::kCompute, options.priority};
  outputs[0].engine().push(
      info, reads, writes,
      [call = std::move(call), work = std::move(work)](TaskContext& task) mutable { work(*call, task); });
}

void check_arrays(const char* name, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
                  bool any_cpu_input) {
  require(!outputs.empty(), "[", name, "] has no output");
  const Device device = outputs[0].device();
  const auto check = [&](const NDArray& array, bool any_cpu) {
    require(array.device() == device || (any_cpu && array.device().is_cpu() && device.is_cpu()), "[", name,
            "] needs all arrays on one device, got ", device.name(), " and ", array.device().name());
    require(&array.engine() == &outputs[0].engine(), "[", name, "] needs all arrays in one engine");
  };
  for (const NDArray& array : inputs) check(array, any_cpu_input);
  for (const NDArray& array : outputs) check(array, false);
}

void launch_checked(const Kernel& kernel, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
                    std::shared_ptr<const void> attributes, const LaunchOptions& options) {
  const bool on_cuda = outputs[0].device().kind == DeviceKind::kCuda;
  const KernelFunction function = on_cuda ? kernel.cuda : kernel.cpu;
  if (!function)
    throw NotAvailable(str("[", kernel.name, "] has no kernel for ", outputs[0].device().name(), " in this build"));
  if (CaptureListener* const listener = CaptureListener::current())
    listener->launched(kernel, function, inputs, outputs, attributes, options);
  push_call(kernel.name, inputs, outputs, options,
            [function, attributes = std::move(attributes)](Call& call, TaskContext& task) {
              const auto run = [function, a = attributes.get()](
                                   const KernelContext& context, std::span<const Tensor> in,
                                   std::span<const Tensor> out) { function(context, in, out, a); };
              if (task.device.kind == DeviceKind::kSim) {
                task.stream->enqueue([&call, run] { call.run_on_stream(run); });
              } else {
                call.run(task.stream->native(), run);
              }
            });
}

}  // namespace

bool covers_storage(const NDArray& array) {
  return array.bytes() == ArrayBuilder::storage(array)->bytes() && is_dense(array.shape(), array.strides());
}

void launch_anywhere(const Kernel& kernel, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
                     const LaunchOptions& options) {
  check_arrays(kernel.name, inputs, outputs, true);
  launch_checked(kernel, inputs, outputs, nullptr, options);
}

}  // namespace detail

void launch(const Kernel& kernel, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
            std::shared_ptr<const void> attributes, const LaunchOptions& options) {
  detail::check_arrays(kernel.name, inputs, outputs, false);
  detail::launch_checked(kernel, inputs, outputs, std::move(attributes), options);
}

void launch_host(const char* name, std::span<const NDArray> inputs, std::span<const NDArray> outputs, HostKernel work,
                 const LaunchOptions& options) {
  detail::check_arrays(name, inputs, outputs, false);
  if (outputs[0].device().kind == DeviceKind::kCuda)
    throw NotAvailable(str("[", name, "] is host code and cannot run on ", outputs[0].device().name()));
  if (detail::CaptureListener* const listener = detail::CaptureListener::current())
    listener->refuse("it runs host code as a task");
  detail::push_call(name, inputs, outputs, options,
                    [work = std::make_unique<HostKernel>(std::move(work))](detail::Call& call, TaskContext& task) {
                      if (task.device.kind == DeviceKind::kSim) {
                        task.stream->enqueue([&call, host = work.get()] { call.run_on_stream(*host); });
                      } else {
                        call.run(nullptr, *work);
                      }
                    });
}

}  // namespace paceline
