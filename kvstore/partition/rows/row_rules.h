#pragma once
// The rules that apply a gradient to a row: a staleness policy, then an optimizer. Immutable.
//
// The version of a row counts its updates. Adam's bias correction and the average of gap_aware use this count, however
// often the table was pushed. Refused pushes do not count. Checkpoints hold the count. If state begins in mid-run,
// after new rules or a checkpoint without it, earlier updates of the row still count. This differs from dense keys: the
// first steps of Adam are then larger.

#include <paceline/optimizer.h>
#include <paceline/staleness.h>

#include <memory>
#include <string>
#include <vector>

namespace paceline {

struct RowRules {
  std::shared_ptr<const Optimizer> optimizer;
  std::shared_ptr<const Staleness> staleness;
  Preparation preparation;
  LearningRate rate;
  Multipliers multipliers;
  std::vector<std::string> state_names;  // the optimizer's, then the policy's
  std::size_t optimizer_states = 0;
  bool needs_pulled = false;

  // The same rules as for keys, save that a policy's worker's half is left out: under `dana` momentum stays with the
  // rows, for a worker would have to keep one for every row of the table. The policy may be one of `own`. Throws
  // InvalidArgument.
  static std::shared_ptr<const RowRules> make(const Spec& optimizer, const std::string& policy, const Options& options,
                                              const Extensions& own = {});
  std::shared_ptr<const RowRules> with_rate(double rate) const;
};

}  // namespace paceline
