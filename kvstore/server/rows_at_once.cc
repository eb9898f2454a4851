// Each push of rows is applied as it arrives. The mode may hold pulls back if the worker is too far ahead of the
// others.
#include <optional>
#include <utility>

#include "row_sequencer.h"

namespace paceline {
namespace {

class RowsAtOnce final : public RowSequencer {
 public:
  using RowSequencer::RowSequencer;

  void reconsider() override {
    std::erase_if(waiting_, [this](const Waiting& waiting) { return is_gone(waiting); });
    std::vector<Waiting> waiting;
    waiting.swap(waiting_);
    for (Waiting& entry : waiting) pull(std::move(entry));
  }

 private:
  void push(Waiting& pull, RowPushEntry& entry) override {
    std::optional<RowAnswer> answer;
    if (part_of(pull).same && passes(pull)) answer = answer_to(pull);
    entry.reads = answer.has_value();
    part_of(pull).served->state.apply(entry, answer ? &*answer : nullptr);
    pull.call->refused += entry.refused;
  }

  void pull(Waiting waiting) override {
    if (reads(waiting) && !passes(waiting))
      waiting_.push_back(std::move(waiting));
    else
      answer(waiting);
  }

  bool passes(Waiting& waiting) { return !mode_ || shard_.gate.passes(waiting, need_of(waiting)); }

  std::vector<Waiting> waiting_;
};

}  // namespace

std::unique_ptr<RowSequencer> make_rows_at_once(std::shared_ptr<const Mode> mode, const RowSequencer::Context& shard) {
  return std::make_unique<RowsAtOnce>(std::move(mode), shard);
}

}  // namespace paceline
