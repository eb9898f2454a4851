#pragma once
// The rules that apply a gradient to a row: a staleness policy, then an optimizer. Immutable.
//
// The version of a row counts its updates. Adam's bias correction and the average of gap_aware use this count. Pushes
// of other rows and refused pushes do not count. Checkpoints hold the count. State may begin in mid-run, because of new
// rules or a checkpoint without this state. Earlier updates of the row still count then. Dense keys begin a new count
// instead. The first steps of Adam are therefore larger for rows.

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

  // Makes the same rules as for dense keys, but no policy leaves a part of its work to the workers. Under `dana` the
  // momentum stays with the rows, because a worker would have to keep a momentum for every row of the table. The policy
  // may be one of `own`. Throws InvalidArgument.
  static std::shared_ptr<const RowRules> make(const Spec& optimizer, const std::string& policy, const Options& options,
                                              const Extensions& own = {});
  // The rules of a table for which none were set: `sgd` without correction of delays.
  static std::shared_ptr<const RowRules> initial() { return make(Spec{"sgd", {}}, "none", {}); }
  // The same rules with another learning rate. Throws InvalidArgument for a negative one.
  std::shared_ptr<const RowRules> with_rate(double rate) const;
};

}  // namespace paceline
