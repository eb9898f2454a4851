#pragma once
// The options of mode dist_local, which its workers and its servers read alike.

#include <paceline/options.h>

#include <cstdint>

namespace paceline {

struct AveragingOptions {
  enum class Form {
    kAverage,    // all go on from the mean of their weights, by the examples they have seen
    kElastic,    // each is drawn to a centre, and the centre to it, without waiting (EASGD, Zhang et al. 2015)
    kFederated,  // as average, over a part of the workers that is drawn for each round (FedAvg, McMahan et al. 2017)
  };
  Form form = Form::kAverage;
  std::int64_t steps = 1;
  double alpha = 0;     // elastic: how far each is drawn; 0: 0.9 / workers
  double fraction = 1;  // federated: of the workers
  std::int64_t seed = 0;

  // Throws InvalidArgument.
  static AveragingOptions parse(const Options& options);
  // federated: how many workers take part in a round, and is `rank` one of them?
  int chosen(int workers) const;
  bool takes_part(std::uint64_t round, int rank, int workers) const;
};

}  // namespace paceline
