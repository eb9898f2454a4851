#pragma once
// Trains a network with nn::Trainer, alone or as a worker of a job, and evaluates it after each epoch.

#include <paceline/nn.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

namespace paceline::examples {

// What a program trains. `test` is empty where nothing is to be evaluated.
struct Task {
  std::function<nn::Module()> network;
  nn::Loss loss = nn::softmax_ce;
  std::function<std::unique_ptr<DataIterator>(std::shared_ptr<Source>)> data;
  std::function<std::unique_ptr<DataIterator>()> test;
  std::string tested = "test";      // the name of the data of `test` in results: "test_accuracy", "test_loss"
  std::string unit = "images";      // what rates count, as in "images_per_second"
  std::int64_t units = 1;           // number of units in an example
  bool captured = true;             // lets --captured take effect; false for several devices or sparse gradients
  bool tables = false;              // the network wants row-sparse tables, which some modes do not hold
  nlohmann::json description = {};  // further members of the result
  nn::Notes notes = {};             // what --evaluate and a resumed run must have as the checkpoint's training had it
};

// The source file that defines the flags of training.
extern const char* const kTrainingFlags;

// Trains as the flags say and prints the result, a JSON object, on standard output. With --evaluate=CHECKPOINT it
// prints the accuracy and the loss of that checkpoint instead.
void train_or_evaluate(const Task& task);

}  // namespace paceline::examples
