#pragma once
// Networks of the literature. Those for images take (examples, channels, height, width) and give scores (examples,
// classes). Sizes of inputs are inferred at the first call, so images may have any size that is large enough for the
// network's strides. Numbers of parameters are for the images and classes of the paper.

#include <paceline/catalog.h>
#include <paceline/module.h>

namespace paceline::nn::models {

Module mlp(std::int64_t classes = 10);    // dense layers of 512, 512 and `classes`, with ReLU
Module lenet(std::int64_t classes = 10);  // LeNet-5 (LeCun et al. 1998) on 28 x 28: 61,706 parameters
// He et al. 2016 for CIFAR-10: 269,722 parameters. Shortcuts that change the shape have no weights (option A).
Module resnet20(std::int64_t classes = 10);
// He et al. 2016 for ImageNet, with a block's stride in its 3 x 3 convolution: 25,557,032 parameters.
Module resnet50(std::int64_t classes = 1000);
// Simonyan & Zisserman 2015, configuration D, on 224 x 224: 138,357,544 parameters.
Module vgg16(std::int64_t classes = 1000);
// Sandler et al. 2018: 3,504,872 parameters.
Module mobilenet_v2(std::int64_t classes = 1000);

// The size of a language model.
struct LanguageModel {
  std::int64_t symbols;      // how many there are
  std::int64_t width = 128;  // numbers that stand for a symbol; the LSTM's states have as many
  int layers = 4;            // of attention, or of the LSTM
  int heads = 4;             // of each attention layer
  double dropout = 0;        // the rate behind the attention and the dense part of each layer; behind the whole LSTM
  bool sparse_grad = false;  // EmbeddingOptions::sparse_grad
};
// Language models. They take the numbers of symbols (examples, steps) and give scores of the next symbols (examples,
// steps, symbols). causal_transformer() has pre-norm blocks as in GPT-2 (Radford et al. 2019), with ReLU.
Module causal_transformer(const LanguageModel& how);
Module lstm_language_model(const LanguageModel& how);

// The networks for images by name: at() throws InvalidArgument listing the known ones.
const Catalog<Module (*)(std::int64_t classes)>& catalog();

}  // namespace paceline::nn::models
