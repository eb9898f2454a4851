#pragma once
// What a step of a Trainer computes: forward and backward of one batch, in parts where wanted.

#include <paceline/row_sparse.h>
#include <paceline/trainer.h>

#include <set>

namespace paceline::nn {

class BatchGradients {
 public:
  // Of a network that has its parameters. `rows`: see Context.
  BatchGradients(const Module& net, const TrainerOptions& options, std::shared_ptr<const RowSource> rows = nullptr);

  const std::set<Device>& devices() const { return devices_; }  // where weights lie

  // `inputs`: data, labels, the number of the call and, under float16, the loss scale. Fills the gradients, not scaled
  // and clipped, those of tables apart. Gives the loss and, under float16, the norm that the gradients had before they
  // were clipped, which is finite where all of them are. Asynchronous.
  std::vector<NDArray> operator()(const std::vector<NDArray>& inputs, const Loss& loss);
  // The loss; adds to the gradients that the next operator() gives.
  NDArray accumulate(const std::vector<NDArray>& inputs, const Loss& loss);
  // operator() for what was accumulated, whose last loss this is.
  std::vector<NDArray> of_accumulated(const NDArray& loss, const NDArray& scale = NDArray());
  // What was accumulated is dropped.
  void forget();
  // Without those of tables.
  const std::vector<std::shared_ptr<Parameter>>& trained() const { return trained_; }
  // Of the last call, for each row-sparse parameter, in structural order.
  const std::vector<RowSparse>& of_tables() const { return of_tables_; }

 private:
  struct Part {
    NDArray data, label, call;
    double weight = 1;  // of its loss
    bool accumulate = false;
  };
  // Adds to `tables` the part's gradients of each row-sparse parameter.
  NDArray run(const Module& module, const Part& part, const NDArray& scale, const std::shared_ptr<CastWeights>& casts,
              const Loss& loss_function, std::vector<std::vector<Gradient>>& tables) const;

  const Module net_;
  const TrainerOptions options_;
  const std::shared_ptr<const RowSource> rows_;
  std::vector<std::shared_ptr<Parameter>> trained_, tables_;
  std::vector<NDArray> gradients_;
  std::vector<std::vector<Gradient>> table_parts_;  // of each table, since the last operator()
  bool accumulates_ = false;                        // the gradients hold some already
  std::vector<RowSparse> of_tables_;
  std::set<Device> devices_;
};

// Written when all that was pushed so far to write these arrays is done.
Variable done_with(const std::vector<NDArray>& arrays);

}  // namespace paceline::nn
