#pragma once
// What an operator is: a name, inputs, a shape rule, kernels and a gradient. Each operator lives in its own folder,
// ops/<name>/; users call the typed function declared there. An operator of one's own needs no registration: build an
// OpDef and call invoke().

#include <paceline/kernel.h>
#include <paceline/row_sparse.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

class OpDef;

// Shape and type of an array that does not exist yet.
struct ArraySpec {
  Shape shape;
  DType dtype = DType::kFloat32;
};

// One call of an operator, as a gradient sees it. Arrays that the OpDef does not save are none here.
struct OpCall {
  const OpDef* op = nullptr;
  std::vector<NDArray> inputs;         // an optional input that was not given is none
  std::vector<NDArray> outputs;        // visible outputs, then auxiliary ones
  std::vector<ArraySpec> input_specs;  // of every input, saved or not
  std::vector<bool> wants;             // by input, filled by the recorder: which gradients it uses; empty: all
  std::shared_ptr<const void> attribute_data;

  // A gradient rule may leave out (as none) what is not wanted.
  bool wants_gradient(std::size_t input) const { return wants.empty() || wants[input]; }

  template <class Attributes>
  const Attributes& attributes() const {
    return *static_cast<const Attributes*>(attribute_data.get());
  }
};

// Text form of attributes, only for the catalogue, export and import.
using AttributeText = std::vector<std::pair<std::string, std::string>>;

// An operator's definition. Built once with the functions below, then constant and shared.
class OpDef {
 public:
  using InferRule = std::function<std::vector<ArraySpec>(const std::vector<NDArray>& inputs, const void* attributes)>;
  using Forward = std::function<std::vector<NDArray>(const std::vector<NDArray>& inputs, const void* attributes)>;
  using GradientRule =
      std::function<std::vector<Gradient>(const OpCall& call, const std::vector<NDArray>& output_gradients)>;
  using WorkspaceRule = std::function<std::size_t(const std::vector<NDArray>& inputs, const void* attributes)>;
  using TextRule = std::function<AttributeText(const void* attributes)>;

  // `name` is kept as it is: a literal.
  explicit OpDef(const char* name) : name_(name), kernel_{.name = name} {}

  // The attribute struct; a call without attributes uses its default values.
  template <class Attributes>
  OpDef attributes() && {
    default_attributes_ = std::make_shared<Attributes>();
    return std::move(*this);
  }
  // Inputs in order. `optional` ones may be none (the kernel gets the others only); `mutated` ones are written by the
  // kernel (batch norm's running statistics): they are passed to it as further outputs, after the auxiliary ones.
  OpDef input(std::string name) &&;
  OpDef optional_input(std::string name) &&;
  OpDef mutated_input(std::string name) &&;
  OpDef variadic(std::string name) &&;             // any number of inputs, at least one
  OpDef output(std::string name) &&;               // default: one output "out"
  OpDef auxiliary_output(std::string name) &&;     // kept for the gradient, not returned by invoke()
  OpDef saves_inputs(std::vector<int> which) &&;   // default: none are kept for the gradient
  OpDef saves_outputs(std::vector<int> which) &&;  // visible and auxiliary ones, by index
  // Shapes and types of visible, then auxiliary outputs; throws InvalidArgument "[name] ..." on wrong inputs.
  OpDef infer(InferRule rule) &&;
  // The computation: one kernel over inputs and outputs, all row-major unless elementwise() or channels_last()
  // (invoke() copies others first) ...
  OpDef cpu(KernelFunction function) &&;
  OpDef cuda(KernelFunction function) &&;
  OpDef workspace(WorkspaceRule bytes) &&;
  // The kernel works place by place and takes inputs of any strides; dense inputs of one shape and one order of axes
  // give outputs in that order, beside what is broadcast only where the order is that of channels_last().
  OpDef elementwise() &&;
  // On CUDA devices the kernel also takes arrays (n, channels, sizes...) whose channels are last in memory: where an
  // input lies so, all inputs and outputs of at least three axes do. The rest are row-major, and so are all elsewhere.
  OpDef channels_last() &&;
  // ... or a function over arrays, called with recording off. It may return an input or write into it.
  OpDef forward(Forward function) &&;
  // ... or one that is recorded call by call, so it needs no gradient of its own: views and compositions.
  OpDef composed_of(Forward function) &&;
  // Gradients with respect to each input, in order; none where there is none. Written with operators, so one gradient
  // serves every device. `output_gradients` has one entry per visible output; none means zero. Without a rule the
  // operator is not differentiable and its outputs carry no gradient.
  OpDef gradient(GradientRule rule) &&;
  OpDef text(TextRule rule) &&;

  const std::string& name() const { return name_; }
  struct Input {
    std::string name;
    bool optional = false;
    bool mutated = false;
  };
  const std::vector<Input>& inputs() const { return inputs_; }
  bool is_variadic() const { return variadic_; }
  const std::vector<std::string>& outputs() const { return outputs_; }
  const std::vector<std::string>& auxiliary_outputs() const { return auxiliary_; }
  bool has_gradient() const { return gradient_ || composed_; }
  bool works_in_place() const { return kernel_.elementwise && outputs_.size() <= 1 && auxiliary_.empty(); }
  bool has_kernel(DeviceKind kind) const;
  const Kernel& kernel() const { return kernel_; }  // without functions where the operator is one over arrays
  const GradientRule& gradient_rule() const { return gradient_; }
  const std::vector<int>& saved_inputs() const { return saved_inputs_; }
  const std::vector<int>& saved_outputs() const { return saved_outputs_; }
  AttributeText attribute_text(const void* attributes) const;

 private:
  friend std::vector<NDArray> invoke(const OpDef&, std::vector<NDArray>, std::shared_ptr<const void>);
  friend NDArray invoke_in_place(const OpDef&, std::vector<NDArray>, std::shared_ptr<const void>);
  std::string name_;
  std::vector<Input> inputs_;
  bool variadic_ = false;
  bool channels_last_ = false;
  std::vector<std::string> outputs_;
  std::vector<std::string> auxiliary_;
  std::vector<int> saved_inputs_, saved_outputs_;
  InferRule infer_;
  Kernel kernel_{};
  WorkspaceRule workspace_;
  Forward forward_;
  bool composed_ = false;
  GradientRule gradient_;
  TextRule text_;
  std::shared_ptr<const void> default_attributes_;
};

// Checks the inputs, infers and allocates the outputs, launches the kernel, and reports the call to the current
// Recorder. Returns the visible outputs at once. Throws InvalidArgument "[name] ...", NotAvailable (device).
std::vector<NDArray> invoke(const OpDef& op, std::vector<NDArray> inputs,
                            std::shared_ptr<const void> attributes = nullptr);

template <class Attributes>
NDArray invoke(const OpDef& op, std::vector<NDArray> inputs, Attributes attributes) {
  return invoke(op, std::move(inputs),
                std::shared_ptr<const void>(std::make_shared<Attributes>(std::move(attributes))))[0];
}

// Overwrites the first input with what an element-wise operator gives, and returns it. The input may be a view of any
// strides without broadcasting; other inputs are read as they were before, whatever memory they share with it. A Tape
// differentiates through the write; where an earlier call needs the old contents, backward() says so. Throws
// InvalidArgument "[name] ..." where a Tape watches the first input, where the result has another shape or type than
// it, and where the operator is not element-wise.
NDArray invoke_in_place(const OpDef& op, std::vector<NDArray> inputs, std::shared_ptr<const void> attributes = nullptr);

template <class Attributes>
NDArray invoke_in_place(const OpDef& op, std::vector<NDArray> inputs, Attributes attributes) {
  return invoke_in_place(op, std::move(inputs),
                         std::shared_ptr<const void>(std::make_shared<Attributes>(std::move(attributes))));
}

// Every operator of this build, by name (the table is generated by CMake).
const std::vector<const OpDef*>& all_operators();
// Throws InvalidArgument listing the known names.
const OpDef& find_operator(std::string_view name);

}  // namespace paceline
