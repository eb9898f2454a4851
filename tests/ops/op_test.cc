// invoke(), recorders and operators of one's own.
#include <paceline/ops.h>
#include <paceline/recorder.h>

#include <gtest/gtest.h>

#include <thread>

namespace paceline {
namespace {

void scale_kernel(const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out,
                  const void* attributes) {
  const float factor = *static_cast<const float*>(attributes);
  for (std::int64_t i = 0; i < in[0].size(); ++i) out[0].as<float>()[i] = factor * in[0].as<const float>()[i];
  if (in.size() > 1) out[0].as<float>()[0] += in[1].as<const float>()[0];
}

OpDef scale_op() {
  return OpDef("scale")
      .input("x")
      .optional_input("shift")
      .saves_inputs({1})
      .infer([](const std::vector<NDArray>& inputs, const void*) {
        return std::vector<ArraySpec>{{inputs[0].shape(), inputs[0].dtype()}};
      })
      .cpu(scale_kernel)
      .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
        return {gradients[0] * call.attributes<float>(), Gradient()};
      });
}

struct CountingRecorder : Recorder {
  Seen see(const OpDef&, const std::vector<NDArray>& inputs, const NDArray*) override {
    return wanted ? Seen{.reads = {{0, 0}}, .writes = std::vector<std::uint64_t>(inputs.size())} : Seen{};
  }
  void record(OpCall call, Seen, const std::vector<NDArray>& inputs, const std::vector<NDArray>& outputs) override {
    calls.push_back(std::move(call));
    input_count = inputs.size();
    output_count = outputs.size();
  }
  bool wanted = true;
  std::vector<OpCall> calls;
  std::size_t input_count = 0, output_count = 0;
};

std::string refusal(const OpDef& op, std::vector<NDArray> inputs) {
  try {
    invoke(op, std::move(inputs));
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "not refused";
}

TEST(Invoke, RunsAnOperatorThatIsInNoTable) {
  const OpDef op = scale_op();
  const NDArray x = NDArray::from<float>({1, 2}, {2});
  EXPECT_EQ(invoke(op, {x, NDArray()}, 3.0f).to_vector<float>(), (std::vector<float>{3, 6}));
  EXPECT_EQ(invoke(op, {x, NDArray::from<float>({10}, {1})}, 3.0f).to_vector<float>(), (std::vector<float>{13, 6}));
}

TEST(Invoke, ChecksTheInputs) {
  const OpDef op = scale_op();
  EXPECT_EQ(refusal(op, {NDArray({1})}), "[scale] got 1 inputs, expected 2; called with float32 (1,) on cpu");
  EXPECT_EQ(refusal(op, {NDArray(), NDArray({1})}),
            "[scale] x is none, expected an array; called with none, float32 (1,) on cpu");
  EXPECT_EQ(
      refusal(op, {NDArray({1}), NDArray({1}, DType::kFloat32, Device("sim:0"))}),
      "[scale] shift is on sim:0, other inputs are on cpu; called with float32 (1,) on cpu, float32 (1,) on sim:0");
  const auto other = make_serial_engine();
  EXPECT_EQ(
      refusal(op, {NDArray({1}), NDArray({1}, DType::kFloat32, Device(), *other)}),
      "[scale] shift belongs to another engine than the other inputs; called with float32 (1,) on cpu, float32 (1,) on "
      "cpu");
}

TEST(Invoke, NamesTheOperatorWithoutAKernel) {
  const OpDef op = OpDef("nothing").input("x").infer([](const std::vector<NDArray>& inputs, const void*) {
    return std::vector<ArraySpec>{{inputs[0].shape(), inputs[0].dtype()}};
  });
  EXPECT_FALSE(op.has_kernel(DeviceKind::kCpu));
  EXPECT_THROW(invoke(op, {NDArray({1})}), NotAvailable);
}

TEST(Invoke, AFailedTaskSurfacesAtTheWait) {
  const NDArray scores = NDArray::zeros({1, 3});
  const NDArray loss = softmax_cross_entropy(scores, NDArray::from<std::int32_t>({7}, {1}));
  EXPECT_THROW((loss + 1).wait(), InvalidArgument);
}

TEST(Recording, GivesTheCallToTheCurrentRecorder) {
  const OpDef op = scale_op();
  CountingRecorder recorder;
  const NDArray x = NDArray::full({2, 3}, 1);
  const NDArray shift = NDArray::full({1}, 1);
  {
    RecordingScope recording(&recorder);
    EXPECT_EQ(Recorder::current(), &recorder);
    invoke(op, {x, shift}, 2.0f);
    RecordingScope paused(nullptr);
    invoke(op, {x, shift}, 2.0f);
  }
  EXPECT_EQ(Recorder::current(), nullptr);
  invoke(op, {x, shift}, 2.0f);
  ASSERT_EQ(recorder.calls.size(), 1u);
  const OpCall& call = recorder.calls[0];
  EXPECT_EQ(call.op, &op);
  EXPECT_TRUE(call.inputs[0].is_none());
  EXPECT_TRUE(call.inputs[1].shares_memory_with(shift));
  EXPECT_EQ(call.input_specs[0].shape, x.shape());
  EXPECT_TRUE(call.outputs[0].is_none());
  EXPECT_EQ(recorder.input_count, 2u);
  EXPECT_EQ(recorder.output_count, 1u);
}

TEST(Recording, AuxiliaryOutputsGoToTheRecorderOnly) {
  CountingRecorder recorder;
  RecordingScope recording(&recorder);
  const std::shared_ptr<const void> pairs = std::make_shared<PoolAttributes>(PoolAttributes{.kernel = {2, 2}});
  const auto outputs = invoke(find_operator("max_pool"), {NDArray::zeros({1, 1, 2, 2})}, pairs);
  EXPECT_EQ(outputs.size(), 1u);
  EXPECT_EQ(recorder.output_count, 2u);
  EXPECT_FALSE(recorder.calls[0].outputs[1].is_none());
}

TEST(Recording, SkipsWhatTheRecorderDoesNotWant) {
  CountingRecorder recorder;
  recorder.wanted = false;
  RecordingScope recording(&recorder);
  relu(NDArray::zeros({1}));
  recorder.wanted = true;
  argmax(NDArray::zeros({1}));  // has no gradient
  EXPECT_TRUE(recorder.calls.empty());
}

TEST(Recording, BelongsToOneThread) {
  CountingRecorder recorder;
  RecordingScope recording(&recorder);
  std::thread([] { EXPECT_EQ(Recorder::current(), nullptr); }).join();
}

TEST(Recording, CompositionsAreRecordedAsOne) {
  CountingRecorder recorder;
  RecordingScope recording(&recorder);
  dense(NDArray::zeros({2, 3}), NDArray::zeros({4, 3}), NDArray::zeros({4}));
  ASSERT_EQ(recorder.calls.size(), 1u);
  EXPECT_EQ(recorder.calls[0].op->name(), "dense");
}

TEST(Catalogue, FindsByName) {
  EXPECT_EQ(find_operator("convolution").name(), "convolution");
  EXPECT_EQ(find_operator("dense").inputs()[2].name, "bias");
  try {
    find_operator("conv7d");
    FAIL() << "was found";
  } catch (const InvalidArgument& error) {
    EXPECT_EQ(std::string(error.what()).find("unknown operator 'conv7d'; known: relu"), 0u) << error.what();
  }
}

TEST(Catalogue, GivesAttributesAsText) {
  const ConvolutionAttributes attributes{.stride = {2, 1}};
  const AttributeText text = find_operator("convolution").attribute_text(&attributes);
  ASSERT_EQ(text.size(), 4u);
  EXPECT_EQ(text[0], (std::pair<std::string, std::string>("stride", "(2, 1)")));
  EXPECT_EQ(find_operator("softmax").attribute_text(nullptr)[0].second, "-1");
  EXPECT_TRUE(find_operator("relu").attribute_text(nullptr).empty());
}

}  // namespace
}  // namespace paceline
