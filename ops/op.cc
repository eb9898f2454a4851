#include "shared/channels.h"
#include "shared/like.h"

#include <paceline/array_recorder.h>
#include <paceline/detail/array_builder.h>
#include <paceline/detail/layout.h>
#include <paceline/log.h>
#include <paceline/op.h>
#include <paceline/recorder.h>

#include <algorithm>
#include <cassert>

namespace paceline {

OpDef OpDef::input(std::string name) && {
  inputs_.push_back({std::move(name)});
  return std::move(*this);
}

OpDef OpDef::optional_input(std::string name) && {
  inputs_.push_back({.name = std::move(name), .optional = true});
  return std::move(*this);
}

OpDef OpDef::mutated_input(std::string name) && {
  inputs_.push_back({.name = std::move(name), .mutated = true});
  return std::move(*this);
}

OpDef OpDef::variadic(std::string name) && {
  inputs_.push_back({std::move(name)});
  variadic_ = true;
  return std::move(*this);
}

OpDef OpDef::output(std::string name) && {
  outputs_.push_back(std::move(name));
  return std::move(*this);
}

OpDef OpDef::auxiliary_output(std::string name) && {
  auxiliary_.push_back(std::move(name));
  return std::move(*this);
}

OpDef OpDef::saves_inputs(std::vector<int> which) && {
  saved_inputs_ = std::move(which);
  return std::move(*this);
}

OpDef OpDef::saves_outputs(std::vector<int> which) && {
  saved_outputs_ = std::move(which);
  return std::move(*this);
}

OpDef OpDef::infer(InferRule rule) && {
  infer_ = std::move(rule);
  return std::move(*this);
}

OpDef OpDef::cpu(KernelFunction function) && {
  kernel_.cpu = function;
  return std::move(*this);
}

OpDef OpDef::cuda(KernelFunction function) && {
  kernel_.cuda = function;
  return std::move(*this);
}

OpDef OpDef::workspace(WorkspaceRule bytes) && {
  workspace_ = std::move(bytes);
  return std::move(*this);
}

OpDef OpDef::elementwise() && {
  kernel_.elementwise = true;
  return std::move(*this);
}

OpDef OpDef::channels_last() && {
  channels_last_ = true;
  return std::move(*this);
}

OpDef OpDef::forward(Forward function) && {
  forward_ = std::move(function);
  return std::move(*this);
}

OpDef OpDef::composed_of(Forward function) && {
  composed_ = true;
  forward_ = std::move(function);
  return std::move(*this);
}

OpDef OpDef::gradient(GradientRule rule) && {
  gradient_ = std::move(rule);
  return std::move(*this);
}

OpDef OpDef::text(TextRule rule) && {
  text_ = std::move(rule);
  return std::move(*this);
}

bool OpDef::has_kernel(DeviceKind kind) const {
  if (forward_) return true;
  return (kind == DeviceKind::kCuda ? kernel_.cuda : kernel_.cpu) != nullptr;
}

AttributeText OpDef::attribute_text(const void* attributes) const {
  if (!attributes) attributes = default_attributes_.get();
  return text_ && attributes ? text_(attributes) : AttributeText{};
}

namespace {

void check_inputs(const OpDef& op, const std::vector<NDArray>& inputs) {
  const auto& declared = op.inputs();
  if (op.is_variadic())
    require(!inputs.empty(), "[", op.name(), "] got no ", declared[0].name, ", expected at least one");
  else
    require(inputs.size() == declared.size(), "[", op.name(), "] got ", inputs.size(), " inputs, expected ",
            declared.size());
  const NDArray* first = nullptr;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const OpDef::Input& input = declared[op.is_variadic() ? 0 : i];
    if (inputs[i].is_none()) {
      require(input.optional, "[", op.name(), "] ", input.name, " is none, expected an array");
      continue;
    }
    require(!input.mutated || inputs[i].is_contiguous(), "[", op.name(), "] ", input.name,
            " is written in place and must be contiguous");
    if (!first) {
      first = &inputs[i];
      continue;
    }
    // Names are made only for the message.
    if (inputs[i].device() != first->device())
      throw InvalidArgument(str("[", op.name(), "] ", input.name, " is on ", inputs[i].device().name(),
                                ", other inputs are on ", first->device().name()));
    require(&inputs[i].engine() == &first->engine(), "[", op.name(), "] ", input.name,
            " belongs to another engine than the other inputs");
  }
}

// One of the inputs that have the result's shape, where all of them lie alike, densely and not row-major. Something may
// be broadcast beside them where the channels are last, and those of images may be last beside another order: that of
// one gradient would else go on through all layers before.
const NDArray* find_other_order(const std::vector<NDArray>& inputs, const Shape& shape) {
  for (const NDArray& x : inputs)
    if (x.ndim() > 3 && x.shape() == shape && have_channels_last(std::span(&x, 1))) return &x;
  const NDArray* found = nullptr;
  bool broadcast = false;
  for (const NDArray& x : inputs) {
    if (x.shape() != shape) {
      broadcast = true;
      continue;
    }
    const bool alike = !found || x.strides() == found->strides();
    if (x.is_contiguous() || !is_dense(shape, x.strides()) || !alike) return nullptr;
    found = &x;
  }
  return found && broadcast && !have_channels_last(std::span(found, 1)) ? nullptr : found;
}

// What is wrong with a call names the operator and all that it was given, whichever of its parts found it. Where that
// is another operator, its own inputs tell more.
[[noreturn]] void rethrow_explained(const OpDef& op, const std::vector<NDArray>& inputs, const InvalidArgument& error) {
  std::string text = error.what();
  const std::string name = "[" + op.name() + "] ";
  if (!text.starts_with(name)) text.insert(0, name);
  constexpr char kGiven[] = "; called with ";
  const bool told = text.find(kGiven) != std::string::npos;
  for (std::size_t i = 0; i < inputs.size() && !told; ++i) text += (i ? ", " : kGiven) + inputs[i].describe();
  throw InvalidArgument(text);
}

// What the recorder is to keep of a call.
OpCall call_of(const OpDef& op, const std::vector<NDArray>& inputs, const std::vector<NDArray>& outputs,
               const std::shared_ptr<const void>& attributes) {
  OpCall call;
  call.op = &op;
  call.inputs.resize(inputs.size());
  call.outputs.resize(outputs.size());
  for (const int i : op.saved_inputs()) call.inputs[static_cast<std::size_t>(i)] = inputs[static_cast<std::size_t>(i)];
  for (const int i : op.saved_outputs())
    call.outputs[static_cast<std::size_t>(i)] = outputs[static_cast<std::size_t>(i)];
  call.input_specs.reserve(inputs.size());
  for (const NDArray& input : inputs) call.input_specs.push_back({input.shape(), input.dtype()});
  call.attribute_data = attributes;
  return call;
}

bool overlap(const NDArray& a, const NDArray& b) {
  return a.shares_memory_with(b) && detail::may_overlap(detail::Layout::of(a), detail::Layout::of(b));
}

// An output that is an input, unchanged, is another value in the same memory: it needs memory of its own. So does one
// that is an earlier output, that shows elements more than once, or that stop_gradient() made.
void give_own_memory(std::vector<NDArray>& outputs, const std::vector<NDArray>& inputs, const Recorder::Seen& seen) {
  const RecordingScope off(nullptr);
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    bool shared = ArrayBuilder::is_stopped(outputs[o]) || detail::repeats_elements(outputs[o]);
    for (std::size_t i = 0; i < inputs.size() && !shared; ++i)
      shared = !inputs[i].is_none() && overlap(outputs[o], inputs[i]) && detail::writes_to(inputs[i]) == seen.writes[i];
    for (std::size_t other = 0; other < o && !shared; ++other) shared = overlap(outputs[o], outputs[other]);
    if (shared) outputs[o] = outputs[o].clone();
  }
}

}  // namespace

std::vector<NDArray> invoke(const OpDef& op, std::vector<NDArray> inputs, std::shared_ptr<const void> attributes) try {
  check_inputs(op, inputs);
  if (!attributes) attributes = op.default_attributes_;
  Recorder* const recorder = op.gradient_ ? Recorder::current() : nullptr;
  Recorder::Seen seen;
  if (recorder) seen = recorder->see(op, inputs, nullptr);

  std::vector<ArraySpec> specs;
  if (op.infer_) specs = op.infer_(inputs, attributes.get());
  std::vector<NDArray> outputs;
  if (op.composed_) {
    outputs = op.forward_(inputs, attributes.get());
  } else if (op.forward_) {
    const RecordingScope off(nullptr);
    outputs = op.forward_(inputs, attributes.get());
  } else {
    const detail::Unrecorded off;
    assert(op.infer_ && specs.size() == std::max<std::size_t>(1, op.outputs_.size()) + op.auxiliary_.size());
    std::vector<NDArray> given;
    given.reserve(inputs.size());
    for (const NDArray& input : inputs)
      if (!input.is_none()) given.push_back(input);
    require(!given.empty(), "[", op.name(), "] has no input");
    const NDArray* const reordered = op.kernel_.elementwise ? find_other_order(given, specs[0].shape) : nullptr;
    const bool channels_last = op.channels_last_ && have_channels_last(given);
    if (!op.kernel_.elementwise)
      for (NDArray& input : given)
        input = channels_last && may_have_channels_last(input.shape()) ? as_channels_last(input) : input.contiguous();

    std::vector<NDArray> written;
    written.reserve(specs.size() + op.inputs_.size());
    for (const ArraySpec& spec : specs) {
      if (reordered)
        written.push_back(in_order_of(*reordered, spec.shape, spec.dtype));
      else if (channels_last && may_have_channels_last(spec.shape))
        written.push_back(new_channels_last(spec.shape, spec.dtype, given[0]));
      else
        written.push_back(NDArray(spec.shape, spec.dtype, given[0].device(), given[0].engine()));
    }
    outputs = written;
    for (std::size_t i = 0; i < op.inputs_.size() && !op.variadic_; ++i)
      if (op.inputs_[i].mutated) written.push_back(inputs[i]);
    LaunchOptions options;
    if (op.workspace_) options.workspace_bytes = op.workspace_(inputs, attributes.get());
    launch(op.kernel_, given, written, attributes, options);
    if (Recorder* const follower = Recorder::current())
      for (std::size_t i = specs.size(); i < written.size(); ++i) follower->wrote_constants(written[i]);
  }

  if (!seen.is_none()) {
    give_own_memory(outputs, inputs, seen);
    recorder->record(call_of(op, inputs, outputs, attributes), std::move(seen), inputs, outputs);
  }
  outputs.resize(outputs.size() - op.auxiliary_.size());
  return outputs;
} catch (const InvalidArgument& error) {
  rethrow_explained(op, inputs, error);
}

namespace {

bool is_same_view(const NDArray& a, const NDArray& b) {
  return ArrayBuilder::offset(a) == ArrayBuilder::offset(b) && a.shape() == b.shape() && a.strides() == b.strides() &&
         a.dtype() == b.dtype();
}

}  // namespace

NDArray invoke_in_place(const OpDef& op, std::vector<NDArray> inputs, std::shared_ptr<const void> attributes) try {
  require(op.works_in_place(), "[", op.name(), "] cannot work in place: it is not element-wise with one output");
  check_inputs(op, inputs);
  if (!attributes) attributes = op.default_attributes_;
  require(!inputs[0].is_none(), "[", op.name(), "] has nothing to write: its first input is none");
  const NDArray target = inputs[0];
  const ArraySpec result = op.infer_(inputs, attributes.get())[0];
  if (result.shape != target.shape() || result.dtype != target.dtype())
    throw InvalidArgument(str("[", op.name(), "] gives ", name_of(result.dtype), " ", result.shape,
                              ", which cannot overwrite ", target.describe()));
  Recorder* const recorder = Recorder::current();
  Recorder::Seen seen;
  if (recorder) seen = recorder->see(op, inputs, &target);
  OpCall call;
  if (!seen.is_none()) {
    call = call_of(op, inputs, {target}, attributes);
    const RecordingScope off(nullptr);
    for (NDArray& saved : call.inputs)
      if (!saved.is_none() && saved.shares_memory_with(target)) saved = saved.clone();
  }
  LaunchOptions options;
  if (op.workspace_) options.workspace_bytes = op.workspace_(inputs, attributes.get());
  std::vector<NDArray> read;
  for (const NDArray& input : inputs) {
    if (input.is_none()) continue;
    const RecordingScope off(nullptr);
    read.push_back(input.shares_memory_with(target) && !is_same_view(input, target) ? input.clone() : input);
  }
  launch(op.kernel_, read, std::span(&target, 1), attributes, options);
  if (!seen.is_none()) recorder->record(std::move(call), std::move(seen), inputs, {target});
  return target;
} catch (const InvalidArgument& error) {
  rethrow_explained(op, inputs, error);
}

const OpDef& find_operator(std::string_view name) {
  std::string known;
  for (const OpDef* op : all_operators()) {
    if (op->name() == name) return *op;
    known += " " + op->name();
  }
  throw InvalidArgument(str("unknown operator '", name, "'; known:", known));
}

namespace {
thread_local RecordingScope* latest_scope = nullptr;
}  // namespace

// A task that the recording thread runs itself is recorded as little as one of another thread.
Recorder* Recorder::current() {
  return latest_scope && latest_scope->recorder_ && latest_scope->task_ == detail::current_task()
             ? latest_scope->recorder_
             : nullptr;
}

void Recorder::copy(const NDArray& source, const NDArray& to, int priority) {
  const RecordingScope off(nullptr);
  to.copy_from(source, priority);
}

void Recorder::fill(const NDArray& array, double value) {
  const RecordingScope off(nullptr);
  array.fill(value);
}

RecordingScope::RecordingScope(Recorder* recorder)
    : recorder_(recorder),
      task_(detail::current_task()),
      latest_(latest_scope),
      previous_(std::exchange(latest_scope, this)) {
  detail::array_recording() = {recorder_, task_};
}

RecordingScope::~RecordingScope() {
  if (&latest_ != &latest_scope) LOG(FATAL) << "recording was begun on another thread than the one that ends it";
  // An outer scope may end before an inner one.
  if (latest_scope == this) {
    latest_scope = previous_;
    detail::array_recording() = {};
    if (latest_scope) detail::array_recording() = {latest_scope->recorder_, latest_scope->task_};
    return;
  }
  RecordingScope** place = &latest_scope;
  while (*place != this) place = &(*place)->previous_;
  *place = previous_;
}

bool RecordingScope::is_of_this_thread() const { return &latest_ == &latest_scope; }

}  // namespace paceline
