#pragma once
// Networks of the literature for images (examples, channels, height, width): scores of `classes` classes. Sizes of
// inputs are inferred at the first call, so each takes images of any size that its strides leave something of; counts
// of parameters are for the images and classes of the paper.

#include <paceline/catalog.h>
#include <paceline/module.h>

namespace paceline::nn::models {

Module mlp(std::int64_t classes = 10);    // 784-512-512-10
Module lenet(std::int64_t classes = 10);  // LeNet-5 (LeCun et al. 1998) on 28 x 28: 61,706
// He et al. 2016 for CIFAR-10: 269,722; shortcuts that change shape have no weights (option A).
Module resnet20(std::int64_t classes = 10);
// The same for ImageNet, with the stride of a block in its 3 x 3 convolution: 25,557,032.
Module resnet50(std::int64_t classes = 1000);
// Simonyan & Zisserman 2015, configuration D, on 224 x 224: 138,357,544.
Module vgg16(std::int64_t classes = 1000);
// Sandler et al. 2018: 3,504,872.
Module mobilenet_v2(std::int64_t classes = 1000);

// Language models: numbers of symbols (examples, steps) to scores of the next ones (examples, steps, symbols).
struct LanguageModel {
  std::int64_t symbols;
  std::int64_t width = 128;  // numbers that stand for a symbol; the LSTM's states have as many
  int layers = 4;
  int heads = 4;             // of each attention layer
  double dropout = 0;        // behind each layer
  bool sparse_grad = false;  // of the embedding
};
Module causal_transformer(const LanguageModel& how);  // pre-norm blocks, as in GPT-2 (Radford et al. 2019), with ReLU
Module lstm_language_model(const LanguageModel& how);

// The networks for images by name: at() throws InvalidArgument listing the known ones.
const Catalog<Module (*)(std::int64_t classes)>& catalog();

}  // namespace paceline::nn::models
