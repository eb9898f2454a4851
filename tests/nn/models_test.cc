// Networks of the literature: their published sizes, the shapes they make, and that every weight is trained.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <paceline/nn.h>
#include <paceline/ops.h>

#include <cmath>
#include <ostream>

namespace paceline {
namespace {

using nn::Module;

NDArray noise(const Shape& shape, std::uint64_t seed = 1) {
  const NDArray x(shape);
  kernels::fill_normal(x, 0, 1, seed);
  return x;
}

// The trained parameters whose gradient is 0 everywhere or not finite.
std::vector<std::string> untrained(const Module& net, const NDArray& x, const Shape& scores_shape) {
  net.initialize(x.shape(), 3, {}, x.dtype());
  Tape tape;
  for (const auto& parameter : net.parameters())
    if (!parameter->statistic) tape.watch(parameter->value, parameter->gradient);
  const NDArray scores = net(x, {.training = true, .seed = 5});
  EXPECT_EQ(scores.shape(), scores_shape);
  tape.backward(nn::softmax_ce(scores, argmax(noise(scores_shape, 7))));
  std::vector<std::string> names;
  for (const auto& parameter : net.parameters()) {
    if (parameter->statistic) continue;
    const float size = sum(abs(parameter->gradient)).item<float>();
    if (!(size > 0) || !std::isfinite(size)) names.push_back(parameter->name);
  }
  return names;
}

std::int64_t parameters_of(const Module& net, const Shape& image) {
  net.initialize(image, 1);
  return net.parameter_count();
}

TEST(Models, HaveThePublishedNumbersOfParameters) {
  EXPECT_EQ(parameters_of(nn::models::mlp(), {1, 1, 28, 28}), 784 * 512 + 512 + 512 * 512 + 512 + 512 * 10 + 10);
  EXPECT_EQ(parameters_of(nn::models::lenet(), {1, 1, 28, 28}), 61'706);
  EXPECT_EQ(parameters_of(nn::models::resnet20(), {1, 3, 32, 32}), 269'722);
  EXPECT_EQ(parameters_of(nn::models::resnet50(), {1, 3, 32, 32}), 25'557'032);
  EXPECT_EQ(parameters_of(nn::models::mobilenet_v2(), {1, 3, 32, 32}), 3'504'872);
}

// The first dense layer looks at 512 x 7 x 7 places of an image of 224 x 224, and at 512 here.
TEST(Models, Vgg16HasThePublishedNumberOfParameters) {
  EXPECT_EQ(parameters_of(nn::models::vgg16(), {1, 3, 32, 32}) + 4096 * 512 * (7 * 7 - 1), 138'357'544);
}

struct Small {
  const char* name;
  Shape images;
};
void PrintTo(const Small& small, std::ostream* out) { *out << small.name; }

class EachModel : public testing::TestWithParam<Small> {};

TEST_P(EachModel, TrainsEveryWeight) {
  const Module net = nn::models::catalog().at(GetParam().name)(10);
  EXPECT_THAT(untrained(net, noise(GetParam().images), {GetParam().images[0], 10}), testing::IsEmpty());
}

TEST(Models, LanguageModelsTrainEveryWeight) {
  const nn::models::LanguageModel how{.symbols = 11, .width = 16, .layers = 2, .heads = 2, .dropout = 0.1};
  const NDArray text = argmax(noise({3, 7, 11})).cast(DType::kInt32);
  for (const auto& make : {nn::models::causal_transformer, nn::models::lstm_language_model})
    EXPECT_THAT(untrained(make(how), text, {3, 7, 11}), testing::IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(Models, EachModel,
                         testing::Values(Small{"mlp", {4, 1, 28, 28}}, Small{"lenet", {4, 1, 28, 28}},
                                         Small{"resnet20", {4, 3, 16, 16}}, Small{"resnet50", {3, 3, 33, 33}},
                                         Small{"vgg16", {2, 3, 32, 32}}, Small{"mobilenet_v2", {3, 3, 33, 33}}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Models, TakeImagesOfOtherSizes) {
  for (const char* name : {"resnet20", "mobilenet_v2"}) {
    const Module net = nn::models::catalog().at(name)(7);
    EXPECT_EQ(net(noise({2, 3, 40, 24})).shape(), (Shape{2, 7})) << name;
    EXPECT_EQ(net(noise({1, 3, 33, 65})).shape(), (Shape{1, 7})) << name;
  }
}

TEST(Models, AreFoundByName) {
  EXPECT_EQ(parameters_of(nn::models::catalog().at("lenet")(10), {1, 1, 28, 28}), 61'706);
  EXPECT_THROW(
      {
        try {
          nn::models::catalog().at("resnet");
        } catch (const InvalidArgument& error) {
          EXPECT_THAT(error.what(), testing::HasSubstr("known: mlp lenet resnet20 resnet50 vgg16 mobilenet_v2"));
          throw;
        }
      },
      InvalidArgument);
}

}  // namespace
}  // namespace paceline
