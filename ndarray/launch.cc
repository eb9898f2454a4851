#include "launch.h"

#include "capture/listener.h"
#include "storage.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/run_ahead.h>
#include <paceline/detail/slab.h>

#include <algorithm>
#include <memory>
#include <utility>

namespace paceline {
namespace detail {
namespace {

// Objects that are made one by one and never destroyed; a few of them, and most calls have few, need no allocation.
template <class T>
class Room {
 public:
  explicit Room(std::size_t most) : at_(most <= kFew ? few_ : new std::byte[most * sizeof(T)]) {}
  ~Room() {
    if (at_ != few_) delete[] at_;
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  template <class... Parts>
  void add(Parts&&... parts) {
    new (at_ + size_++ * sizeof(T)) T{std::forward<Parts>(parts)...};
  }
  std::span<T> all() { return {reinterpret_cast<T*>(at_), size_}; }
  std::span<const T> all() const { return {reinterpret_cast<const T*>(at_), size_}; }

 private:
  static constexpr std::size_t kFew = 4;
  alignas(T) std::byte few_[kFew * sizeof(T)];
  std::byte* const at_;
  std::size_t size_ = 0;
};

// A kernel call on its way: everything its task needs, kept until the task is complete.
class Call {
 public:
  Call(std::size_t operands, Device device, const LaunchOptions& options, RunAhead ahead)
      : ahead_(std::move(ahead)), tensors_(operands), held_(operands) {
    context_ = {device, nullptr, nullptr, options.seed};
    if (options.workspace_bytes > 0) {
      workspace_ = PoolBlock(device, MemoryKind::kNormal, options.workspace_bytes);
      context_.workspace = workspace_.data();
    }
  }
  ~Call() { std::destroy(held_.all().begin(), held_.all().end()); }

  static void* operator new(std::size_t) { return Slab<Call>::take(); }
  static void operator delete(void* memory) { Slab<Call>::give(memory); }

  // Inputs first.
  void add_input(const NDArray& array) {
    add(array, true, false);
    ++inputs_;
  }
  void add_output(const NDArray& array, bool keeps_old_contents) { add(array, keeps_old_contents, true); }

  std::span<const Tensor> inputs() const { return tensors_.all().first(inputs_); }
  std::span<const Tensor> outputs() const { return tensors_.all().subspan(inputs_); }

  template <class Function>
  void run(void* native_stream, Function& function) {
    context_.native_stream = native_stream;
    for (const Held& held : held_.all())
      if (held.is_read) held.storage->throw_failure();
    function(context_, inputs(), outputs());
    for (const Held& held : held_.all())
      if (held.storage->failure()) held.storage->set_failure(nullptr);
  }

  // Runs where the engine no longer sees a failure, so the arrays carry it themselves.
  template <class Function>
  void run_on_stream(Function& function) noexcept {
    try {
      run(nullptr, function);
    } catch (...) {
      for (const Held& held : held_.all())
        if (held.is_written) held.storage->set_failure(std::current_exception());
    }
  }

 private:
  // Memory of one operand or several.
  struct Held {
    std::shared_ptr<Storage> storage;
    bool is_read;
    bool is_written;
  };

  void add(const NDArray& array, bool is_read, bool is_written) {
    tensors_.add(ArrayBuilder::data(array), array.shape(), array.strides(), array.dtype());
    const auto& storage = ArrayBuilder::storage(array);
    for (Held& held : held_.all())
      if (held.storage == storage) {
        held.is_read |= is_read;
        held.is_written |= is_written;
        return;
      }
    held_.add(storage, is_read, is_written);
  }

  RunAhead ahead_;  // goes last: the memory is free then
  std::size_t inputs_ = 0;
  Room<Tensor> tensors_;
  Room<Held> held_;
  PoolBlock workspace_;
  KernelContext context_{};
};

// Memory that the call is the first to fill.
std::int64_t new_bytes(References outputs, const LaunchOptions& options) {
  std::size_t bytes = options.workspace_bytes;
  for (const NDArray* array : outputs)
    if (array->variable().version() == 0) bytes += ArrayBuilder::storage(*array)->bytes();
  return static_cast<std::int64_t>(bytes);
}

void note_partial_writes(References outputs) {
  for (const NDArray* array : outputs) {
    const bool whole = std::ranges::any_of(
        outputs, [&](const NDArray* other) { return other->shares_memory_with(*array) && covers_storage(*other); });
    if (!whole) ArrayBuilder::storage(*array)->note_partial_write(Layout::of(*array));
  }
}

// Pushes work(call, task) with the read and write sets of the arrays.
template <class Work>
void push_call(const char* name, References inputs, References outputs, const LaunchOptions& options, Work work,
               bool at_once = false) {
  const Device device = outputs[0]->device();
  std::unique_ptr<Call> call(
      new Call(inputs.size() + outputs.size(), device, options, RunAhead(new_bytes(outputs, options), device)));
  // The arrays hold their variables until the push is over, so nothing is gained by counting further handles.
  Room<Variable> reads(inputs.size() + outputs.size()), writes(outputs.size());
  bool partial = false;
  for (const NDArray* array : inputs) {
    call->add_input(*array);
    reads.add(array->variable().state());
  }
  for (const NDArray* array : outputs) {
    for (int i = 0; i < array->ndim(); ++i)
      if (array->strides()[i] == 0 && array->shape()[i] > 1)
        throw InvalidArgument(str("[", name, "] cannot write ", array->describe(), ": it is a broadcast view"));
    const bool keeps_old_contents = !covers_storage(*array);
    call->add_output(*array, keeps_old_contents);
    if (keeps_old_contents) reads.add(array->variable().state());
    writes.add(array->variable().state());
    partial |= keeps_old_contents;
  }
  outputs[0]->engine().push(
      {name, device, Lane::kCompute, options.priority, at_once}, reads.all(), writes.all(),
      [call = std::move(call), work = std::move(work)](TaskContext& task) mutable { work(*call, task); });
  if (partial) note_partial_writes(outputs);
}

void check_arrays(const char* name, References inputs, References outputs, bool any_cpu_input) {
  require(!outputs.empty(), "[", name, "] has no output");
  for (const References arrays : {inputs, outputs})
    for (const NDArray* array : arrays) require(!array->is_none(), "[", name, "] got a none array");
  const Device device = outputs[0]->device();
  const auto check = [&](const NDArray& array, bool any_cpu) {
    if (array.device() != device && !(any_cpu && array.device().is_cpu() && device.is_cpu()))
      throw InvalidArgument(
          str("[", name, "] needs all arrays on one device, got ", device.name(), " and ", array.device().name()));
    require(&array.engine() == &outputs[0]->engine(), "[", name, "] needs all arrays in one engine");
  };
  for (const NDArray* array : inputs) check(*array, any_cpu_input);
  for (const NDArray* array : outputs) check(*array, false);
}

std::shared_ptr<const void> shared(const std::shared_ptr<const void>& attributes) { return attributes; }
std::shared_ptr<const void> shared(const SmallAttributes& attributes) {
  const auto copy = std::make_shared<const SmallAttributes>(attributes);
  return {copy, copy->get()};
}

// `attributes` is a pointer of some kind.
template <class Attributes>
void launch_checked(const Kernel& kernel, References inputs, References outputs, Attributes attributes,
                    const LaunchOptions& options, bool at_once = false) {
  const bool on_cuda = outputs[0]->device().kind == DeviceKind::kCuda;
  const KernelFunction function = on_cuda ? kernel.cuda : kernel.cpu;
  if (!function)
    throw NotAvailable(str("[", kernel.name, "] has no kernel for ", outputs[0]->device().name(), " in this build"));
  if (CaptureListener* const listener = CaptureListener::current())
    listener->launched(kernel, function, inputs, outputs, shared(attributes), options);
  auto work = [function, attributes = std::move(attributes)](Call& call, TaskContext& task) {
    const auto run = [function, a = attributes.get()](const KernelContext& context, std::span<const Tensor> in,
                                                      std::span<const Tensor> out) { function(context, in, out, a); };
    if (task.device.kind == DeviceKind::kSim) {
      task.stream->enqueue([&call, run] { call.run_on_stream(run); });
    } else {
      call.run(task.stream->native(), run);
    }
  };
  push_call(kernel.name, inputs, outputs, options, std::move(work), at_once);
}

// Calls function(inputs, outputs) with the arrays' addresses.
template <class Function>
void with_references(std::span<const NDArray> inputs, std::span<const NDArray> outputs, const Function& function) {
  Room<const NDArray*> in(inputs.size()), out(outputs.size());
  for (const NDArray& array : inputs) in.add(&array);
  for (const NDArray& array : outputs) out.add(&array);
  function(in.all(), out.all());
}

// Another thread would take longer to hear of so little work than this one takes to do it.
bool is_done_at_once(const NDArray& output) { return output.bytes() <= 4096; }

}  // namespace

bool covers_storage(const NDArray& array) {
  return array.bytes() == ArrayBuilder::storage(array)->bytes() && is_dense(array.shape(), array.strides());
}

void launch_small(const Kernel& kernel, References inputs, const NDArray& output, const SmallAttributes& attributes,
                  int priority) {
  const NDArray* const outputs[] = {&output};
  check_arrays(kernel.name, inputs, outputs, false);
  launch_checked(kernel, inputs, outputs, attributes, {.priority = priority}, is_done_at_once(output));
}

void launch_anywhere(const Kernel& kernel, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
                     const LaunchOptions& options) {
  with_references(inputs, outputs, [&](References in, References out) {
    check_arrays(kernel.name, in, out, true);
    launch_checked(kernel, in, out, SmallAttributes(), options, is_done_at_once(*out[0]));
  });
}

}  // namespace detail

void launch(const Kernel& kernel, std::span<const NDArray> inputs, std::span<const NDArray> outputs,
            std::shared_ptr<const void> attributes, const LaunchOptions& options) {
  detail::with_references(inputs, outputs, [&](detail::References in, detail::References out) {
    detail::check_arrays(kernel.name, in, out, false);
    detail::launch_checked(kernel, in, out, std::move(attributes), options);
  });
}

void launch_host(const char* name, std::span<const NDArray> inputs, std::span<const NDArray> outputs, HostKernel work,
                 const LaunchOptions& options) {
  detail::with_references(inputs, outputs, [&](detail::References in, detail::References out) {
    detail::check_arrays(name, in, out, false);
    if (outputs[0].device().kind == DeviceKind::kCuda)
      throw NotAvailable(str("[", name, "] is host code and cannot run on ", outputs[0].device().name()));
    if (detail::CaptureListener* const listener = detail::CaptureListener::current())
      listener->refuse("it runs host code as a task");
    detail::push_call(name, in, out, options,
                      [work = std::make_unique<HostKernel>(std::move(work))](detail::Call& call, TaskContext& task) {
                        if (task.device.kind == DeviceKind::kSim) {
                          task.stream->enqueue([&call, host = work.get()] { call.run_on_stream(*host); });
                        } else {
                          call.run(nullptr, *work);
                        }
                      });
  });
}

}  // namespace paceline
