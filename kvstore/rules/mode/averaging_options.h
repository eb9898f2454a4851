#pragma once
// The options of mode dist_local, for its workers and its servers.

#include <paceline/options.h>

#include <cstdint>

namespace paceline {

struct AveragingOptions {
  enum class Form {
    kAverage,    // all workers go on from the mean of their weights, weighted by examples
    kElastic,    // a worker and the servers' centre move towards each other, without waiting (EASGD, Zhang et al. 2015)
    kFederated,  // as kAverage, but only over workers that are drawn for each round (FedAvg, McMahan et al. 2017)
  };
  Form form = Form::kAverage;
  std::int64_t steps = 1;
  double alpha = 0;     // elastic: worker and centre each move by this share of their difference; 0 means 0.9 / workers
  double fraction = 1;  // federated: the fraction of the workers that take part in a round
  std::int64_t seed = 0;

  // Throws InvalidArgument if a value is out of range, or if an option belongs to another form.
  static AveragingOptions parse(const Options& options);
  // How many workers take part in a federated round.
  int chosen(int workers) const;
  // Does the worker `rank` take part in this round? Always true unless the form is kFederated.
  bool takes_part(std::uint64_t round, int rank, int workers) const;
};

}  // namespace paceline
