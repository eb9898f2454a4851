// Modules on different devices.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/memory_iterator.h>
#include <paceline/nn.h>
#include <paceline/ops.h>

#include <filesystem>
#include <optional>

namespace paceline {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const Device kFirst("cpu:1"), kSecond("cpu:2");

NDArray numbers(const Shape& shape, std::uint64_t seed, Device device = {}) {
  const NDArray x(shape, DType::kFloat32, device);
  kernels::fill_normal(x, 0, 1, seed);
  return x;
}

struct Result {
  std::vector<std::vector<float>> values;  // output, gradient of the input, gradients and statistics
  std::vector<Device> devices;             // of the parameters
};

Result run(const nn::Module& net, const NDArray& x) {
  net.initialize(x.shape(), 7);
  const NDArray of_x(x.shape(), x.dtype(), x.device());
  Tape tape;
  tape.watch(x, of_x);
  for (const auto& parameter : net.parameters())
    if (!parameter->statistic) tape.watch(parameter->value, parameter->gradient);
  const NDArray y =
      net(x, {.training = true, .seed = 7, .call = NDArray::full({1}, 3, DType::kInt64), .device = x.device()});
  tape.backward(sum(y * y));
  Result result{{y.to_vector<float>(), of_x.to_vector<float>()}, {}};
  for (const auto& parameter : net.parameters()) {
    result.devices.push_back(parameter->value.device());
    result.values.push_back((parameter->statistic ? parameter->value : parameter->gradient).to_vector<float>());
  }
  return result;
}

// What crosses has its bits, and its gradient's; a layer without a place runs where its input is.
TEST(Placement, GivesTheNumbersOfOneDevice) {
  const auto network = [](std::optional<Device> first, std::optional<Device> second) {
    const nn::Module dense = nn::Dense(6), body = nn::Sequential(nn::Dense(6), nn::BatchNorm()),
                     dropout = nn::Dropout();
    const nn::Module again = nn::Recompute(nn::Sequential(nn::Dense(5), nn::Gelu()));
    if (first) dense.to(*first);
    if (second) body.to(*second);
    if (second) dropout.to(*second);
    if (first) again.to(*first);
    return nn::Sequential(dense, nn::Tanh(), nn::Residual(body), dropout, again, nn::Dense(2));
  };
  const NDArray x = numbers({5, 4}, 1);
  const Result expected = run(network({}, {}), x);
  for (const auto& [first, second] : {std::pair(kFirst, kSecond), std::pair(Device("sim:0"), Device("sim:1")),
                                      std::pair(Device(), Device("sim:2"))}) {
    const Result result = run(network(first, second), x);
    EXPECT_EQ(result.values, expected.values);
    ASSERT_EQ(result.devices.size(), 12u);
    for (const std::size_t of_first : {0, 1, 8, 9, 10, 11}) EXPECT_EQ(result.devices[of_first], first) << of_first;
    for (const std::size_t of_second : {2, 3, 4, 5, 6, 7}) EXPECT_EQ(result.devices[of_second], second) << of_second;
  }
}

TEST(Placement, MovesWhatIsThereAndStaysThere) {
  const NDArray x = numbers({3, 4}, 1);
  const nn::Module inner = nn::Dense(3);
  const nn::Module net = nn::Sequential(nn::Recompute(nn::Dense(5)), nn::Relu(), inner);
  const Result before = run(net, x);
  net.to(kFirst);
  inner.to(kSecond);
  EXPECT_EQ(net.parameters()[0]->value.device(), kFirst);
  EXPECT_EQ(net.parameters()[2]->gradient.device(), kSecond);
  const Result after = run(net, x);
  EXPECT_EQ(after.values, before.values);
  EXPECT_EQ(net(x).device(), kSecond);
  // Where it was initialised, though inputs come from elsewhere.
  const nn::Module dense = nn::Dense(3);
  dense.initialize({1, 4}, 1, kSecond);
  EXPECT_EQ(dense(x).device(), kSecond);
}

TEST(Placement, IsPrintedAndFilesDoNotKnowIt) {
  const std::string path = testing::TempDir() + "paceline_placement.params";
  const auto network = [] { return nn::Sequential(nn::Dense(5), nn::Relu(), nn::Dense(3)); };
  const nn::Module placed = network(), plain = network();
  placed.layer()->children()[2].second->place(kFirst);
  placed.initialize({1, 4}, 1);
  plain.initialize({1, 4}, 2);
  EXPECT_THAT(placed.describe(), HasSubstr("0 Dense weight(5, 4) bias(5,) on cpu\n  1 Relu\n  2 Dense"));
  EXPECT_THAT(placed.describe(), HasSubstr("on cpu:1\n"));
  EXPECT_THAT(plain.describe(), testing::Not(HasSubstr(" on ")));
  placed.save(path);
  plain.load(path);
  const NDArray x = numbers({2, 4}, 1);
  EXPECT_EQ(plain(x).to_vector<float>(), placed(x).to_vector<float>());
  plain.initialize({1, 4}, 1);
  plain.save(path);
  placed.load(path);
  EXPECT_EQ(placed.parameters()[2]->value.device(), kFirst);
  std::filesystem::remove(path);
}

TEST(Placement, SaysWhatIsWrong) {
  const nn::Module net = nn::Dense(3).to(Device("cpu:16"));
  EXPECT_THAT([&] { net.initialize({1, 2}, 1); }, ThrowsMessage<NotAvailable>(HasSubstr("there is no device cpu:16")));
  const nn::Module body = nn::Sequential(nn::Dense(3).to(kFirst), nn::Dense(3).to(kSecond));
  EXPECT_THAT(
      [&] {
        run(nn::Recompute(body), numbers({2, 4}, 1));
      },
      ThrowsMessage<InvalidArgument>(HasSubstr("weights on cpu:1 and on cpu:2")));
}

// Batches, labels and the store's weights find their way; what one device does is refused.
TEST(Placement, TrainsAndEvaluates) {
  const NDArray x = numbers({64, 4}, 1);
  std::vector<std::int32_t> labels;
  for (int i = 0; i < 64; ++i) labels.push_back(x.to_vector<float>()[static_cast<std::size_t>(4 * i)] > 0);
  const NDArray y = NDArray::from(labels, {64});
  const auto train = [&](const std::string& mode, std::optional<Device> place, bool captured = false) {
    auto kv = KVStore::create(mode);
    const nn::Module last = nn::Dense(2);
    if (place) last.to(*place);
    const nn::Module net = nn::Sequential(nn::Dense(8), nn::Tanh(), last);
    nn::Trainer trainer(net, optim::SGD{.lr = 0.2}, kv, {.captured = captured});
    MemoryIterator data(x, y, {.batch = 16, .source = nn::shared_source(kv)});
    while (trainer.epoch() < 4)
      for (Batch& batch : trainer.epoch_of(data)) trainer.step(batch, nn::softmax_ce);
    const double accuracy = trainer.evaluate(data);
    MemoryIterator all(x, y);
    EXPECT_EQ(nn::evaluate(net, all), accuracy);
    EXPECT_GT(accuracy, 0.8);
    return net.parameters()[2]->value.to_vector<float>();
  };
  for (const char* mode : {"local", "device"}) {
    const auto expected = train(mode, {});
    EXPECT_EQ(train(mode, kSecond), expected);
    EXPECT_EQ(train(mode, Device("sim:1")), expected);
  }
  EXPECT_THAT([&] { train("local", kFirst, true); },
              ThrowsMessage<InvalidArgument>(HasSubstr("the network has weights on 2")));
}

}  // namespace
}  // namespace paceline
