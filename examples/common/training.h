#pragma once
// Trains a network with nn::Trainer, alone or as a worker of a job, and evaluates it after each epoch.

#include <paceline/nn.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace paceline::examples {

// What a program trains. `test` is none where nothing is to be evaluated.
struct Task {
  std::function<nn::Module()> network;
  nn::Loss loss = nn::softmax_ce;
  std::function<std::unique_ptr<DataIterator>(std::shared_ptr<Source>)> data;
  std::function<std::unique_ptr<DataIterator>()> test;
  std::string tested = "test";      // what results call that: "test_accuracy", "test_loss"
  std::string unit = "images";      // what a second has so many of ...
  std::int64_t units = 1;           // ... and an example
  bool captured = true;             // where --captured says so; not over several devices, or with sparse gradients
  bool tables = false;              // the network wants row-sparse ones, which some modes do not hold
  nlohmann::json description = {};  // further members of the result
};

// The source file that defines this part's flags.
extern const char* const kTrainingFlags;

// Trains as the flags say and prints the result, a JSON object, on standard output; with --evaluate prints the metric
// of that checkpoint instead.
void train_or_evaluate(const Task& task);

}  // namespace paceline::examples
