#pragma once
// What an operator is: a name, inputs, a shape rule, kernels and a gradient. Users call typed functions, which are in
// <paceline/ops.h>. An operator of your own needs no registration: build an OpDef and call invoke().

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
  Shape shape;                    // its sizes
  DType dtype = DType::kFloat32;  // its type
};

// A call of an operator, as its gradient sees it. Arrays that the OpDef does not save are none.
struct OpCall {
  const OpDef* op = nullptr;                   // the operator
  std::vector<NDArray> inputs;                 // an optional input that was not given is none
  std::vector<NDArray> outputs;                // visible outputs, then auxiliary ones
  std::vector<ArraySpec> input_specs;          // of every input, saved or not
  std::vector<bool> wants;                     // by input: which gradients the recorder uses; empty: all
  std::shared_ptr<const void> attribute_data;  // attributes() of the call

  // Is the gradient of that input used? A gradient rule may give none for others.
  bool wants_gradient(std::size_t input) const { return wants.empty() || wants[input]; }

  // The attributes, whose type must be that of the OpDef.
  template <class Attributes>
  const Attributes& attributes() const {
    return *static_cast<const Attributes*>(attribute_data.get());
  }
};

// Attributes as names and values, for catalogues and export.
using AttributeText = std::vector<std::pair<std::string, std::string>>;

// The definition of an operator: built once by the functions that end with &&, then constant and shared between
// threads.
class OpDef {
 public:
  // The types of the rules. The functions below that take the rules explain them.
  using InferRule = std::function<std::vector<ArraySpec>(const std::vector<NDArray>& inputs, const void* attributes)>;
  using Forward = std::function<std::vector<NDArray>(const std::vector<NDArray>& inputs, const void* attributes)>;
  using GradientRule =
      std::function<std::vector<Gradient>(const OpCall& call, const std::vector<NDArray>& output_gradients)>;
  using WorkspaceRule = std::function<std::size_t(const std::vector<NDArray>& inputs, const void* attributes)>;
  using TextRule = std::function<AttributeText(const void* attributes)>;

  // The name must be a literal.
  explicit OpDef(const char* name) : name_(name), kernel_{.name = name} {}

  // Names the struct of the attributes. A call without attributes uses its default values.
  template <class Attributes>
  OpDef attributes() && {
    default_attributes_ = std::make_shared<Attributes>();
    return std::move(*this);
  }
  // Add an input, in order. An optional input may be none; the kernel then gets the other inputs only. The kernel
  // writes into a mutated input, for instance the running statistics of batch norm. It gets this input once more as an
  // output, after the auxiliary outputs. A mutated input must be contiguous.
  OpDef input(std::string name) &&;
  OpDef optional_input(std::string name) &&;
  OpDef mutated_input(std::string name) &&;
  OpDef variadic(std::string name) &&;             // takes any number of inputs, at least one
  OpDef output(std::string name) &&;               // adds an output; without any there is one, which has no name
  OpDef auxiliary_output(std::string name) &&;     // adds an output for the gradient, which invoke() does not return
  OpDef saves_inputs(std::vector<int> which) &&;   // keeps these inputs for the gradient, by index
  OpDef saves_outputs(std::vector<int> which) &&;  // keeps these outputs, the visible ones first
  // Shapes and types of visible, then of auxiliary outputs. The rule throws InvalidArgument "[name] ..." on wrong
  // inputs.
  OpDef infer(InferRule rule) &&;
  // The computation has one of three forms. First, a kernel over inputs and outputs, with a workspace of so many bytes.
  // All arrays are row-major (invoke() copies others), unless elementwise() or channels_last() was called.
  OpDef cpu(KernelFunction function) &&;
  OpDef cuda(KernelFunction function) &&;
  OpDef workspace(WorkspaceRule bytes) &&;
  // The kernel works place by place (Kernel::elementwise), and takes inputs of any strides. Where all inputs have the
  // result's shape and are dense in one order of axes, the outputs have this order. Otherwise they are row-major. On
  // CUDA devices the order of channels_last() is kept in two more cases: beside broadcast inputs, and where one input
  // of the result's shape and of at least four axes has it.
  OpDef elementwise() &&;
  // On CUDA devices the kernel also takes arrays (n, channels, sizes...) whose channels are last in memory. Where one
  // input has this order, the kernel gets all inputs and outputs of at least three axes in it. Others are row-major.
  OpDef channels_last() &&;
  // Second, a function over arrays, which is not recorded. It may return an input or write into it.
  OpDef forward(Forward function) &&;
  // Third, a function over arrays that is recorded call by call, so it needs no gradient: views and compositions.
  OpDef composed_of(Forward function) &&;
  // The rule returns a gradient with respect to each input, in order. An input without a gradient gets none. The rule
  // calls operators, so one rule serves every device. `output_gradients` has an entry for each visible output; none
  // means zero. Outputs of an operator have no gradient if it has neither a rule nor composed_of().
  OpDef gradient(GradientRule rule) &&;
  OpDef text(TextRule rule) &&;  // how attributes are shown

  const std::string& name() const { return name_; }  // as given
  // An input, as it was added.
  struct Input {
    std::string name;       // as given
    bool optional = false;  // may be none
    bool mutated = false;   // is written
  };
  // What the functions above have set. has_kernel() is also true for a function over arrays. works_in_place() is true
  // for element-wise operators with one output.
  const std::vector<Input>& inputs() const { return inputs_; }
  bool is_variadic() const { return variadic_; }
  const std::vector<std::string>& outputs() const { return outputs_; }
  bool has_gradient() const { return gradient_ || composed_; }
  bool works_in_place() const { return kernel_.elementwise && outputs_.size() <= 1 && auxiliary_.empty(); }
  bool has_kernel(DeviceKind kind) const;
  const Kernel& kernel() const { return kernel_; }  // without functions where the operator is a function over arrays
  const GradientRule& gradient_rule() const { return gradient_; }
  const std::vector<int>& saved_inputs() const { return saved_inputs_; }
  const std::vector<int>& saved_outputs() const { return saved_outputs_; }
  AttributeText attribute_text(const void* attributes) const;  // by the rule text(); empty without one

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
// Recorder. Returns the visible outputs at once. Throws InvalidArgument "[name] ...", and NotAvailable where there is
// no kernel for the device. Thread-safe.
std::vector<NDArray> invoke(const OpDef& op, std::vector<NDArray> inputs,
                            std::shared_ptr<const void> attributes = nullptr);

// The same with attributes of that type; gives the first output.
template <class Attributes>
NDArray invoke(const OpDef& op, std::vector<NDArray> inputs, Attributes attributes) {
  return invoke(op, std::move(inputs),
                std::shared_ptr<const void>(std::make_shared<Attributes>(std::move(attributes))))[0];
}

// Overwrites the first input with the result of an element-wise operator, and returns it. The input may be a view of
// any strides without broadcasting. Other inputs are read as they were before, whatever memory they share with it. A
// Tape differentiates through the write. Where the gradient of an earlier call needs the old contents, backward()
// throws InvalidArgument. Throws InvalidArgument "[name] ..." where a Tape watches the first input, and where the
// result has another shape or type. Throws it also where the operator is not element-wise with one output.
NDArray invoke_in_place(const OpDef& op, std::vector<NDArray> inputs, std::shared_ptr<const void> attributes = nullptr);

// The same with attributes of that type.
template <class Attributes>
NDArray invoke_in_place(const OpDef& op, std::vector<NDArray> inputs, Attributes attributes) {
  return invoke_in_place(op, std::move(inputs),
                         std::shared_ptr<const void>(std::make_shared<Attributes>(std::move(attributes))));
}

// Every operator of this build; CMake generates the table.
const std::vector<const OpDef*>& all_operators();
// The operator of that name. Throws InvalidArgument listing the known names where there is none.
const OpDef& find_operator(std::string_view name);

}  // namespace paceline
