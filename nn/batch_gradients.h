#pragma once
// What a step of a Trainer computes: forward and backward of one batch, in parts where wanted.

#include <paceline/trainer.h>

#include <set>

namespace paceline::nn {

class BatchGradients {
 public:
  // Of a network that has its parameters.
  BatchGradients(const Module& net, const TrainerOptions& options);

  const std::set<Device>& devices() const { return devices_; }  // where weights lie

  // `inputs`: data, labels, the number of the call and, under float16, the loss scale. Fills the gradients, not scaled
  // and clipped. Gives the loss and, under float16, the norm that the gradients had before they were clipped, which is
  // finite where all of them are. Asynchronous.
  std::vector<NDArray> operator()(const std::vector<NDArray>& inputs, const Loss& loss) const;

 private:
  struct Part {
    NDArray data, label, call;
    double weight = 1;  // of its loss
    bool accumulate = false;
  };
  NDArray run(const Module& module, const Part& part, const NDArray& scale, const std::shared_ptr<CastWeights>& casts,
              const Loss& loss_function) const;

  const Module net_;
  const TrainerOptions options_;
  std::vector<std::shared_ptr<Parameter>> trained_;
  std::vector<NDArray> gradients_;
  std::set<Device> devices_;
};

// Written when all that was pushed so far to write these arrays is done.
Variable done_with(const std::vector<NDArray>& arrays);

}  // namespace paceline::nn
