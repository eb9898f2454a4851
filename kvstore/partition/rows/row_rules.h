#pragma once
// What becomes of a gradient at a row: staleness policy, then optimizer. Never changed once made.
//
// Updates are counted by row, as its version does: Adam's bias correction and the average of gap_aware follow the row's
// own updates, however often the table was pushed; refused pushes count for nothing, and checkpoints hold the count.
// Where state begins in mid-run (other rules, a checkpoint without it) earlier updates of the row count, too, unlike
// with a key: the first steps of Adam are larger then.

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
  // rows, for a worker would have to keep one for every row of the table. `own`: the user's policy instead, may be
  // null. Throws InvalidArgument.
  static std::shared_ptr<const RowRules> make(const Spec& optimizer, const std::string& policy, const Options& options,
                                              std::shared_ptr<const Staleness> own);
  std::shared_ptr<const RowRules> with_rate(double rate) const;
};

}  // namespace paceline
