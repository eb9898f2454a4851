// Each push is applied as it arrives. The mode may hold pulls back if the worker is too far ahead of the others.
#include <utility>

#include "sequencer.h"

namespace paceline {
namespace {

class AtOnce final : public Sequencer {
 public:
  using Sequencer::Sequencer;

  void reconsider(const Partitions&) override {
    std::erase_if(waiting_, [this](const Waiting& waiting) { return is_gone(waiting); });
    std::vector<Waiting> waiting;
    waiting.swap(waiting_);
    for (Waiting& entry : waiting) pull(std::move(entry));
  }

 private:
  void push(Pushed& pushed) override {
    pushed.partition.state.apply(pushed.entry);
    pushed.call->refused += pushed.entry.refused;
  }

  void pull(Waiting waiting) override {
    const wire::Part& request = request_of(waiting);
    if (mode_ && request.pull_size() > 0 && !shard_.gate.passes(waiting, request.need()))
      waiting_.push_back(std::move(waiting));
    else
      answer(waiting);
  }

  std::vector<Waiting> waiting_;
};

}  // namespace

std::unique_ptr<Sequencer> make_at_once(std::shared_ptr<const Mode> mode, const Sequencer::Context& shard) {
  return std::make_unique<AtOnce>(std::move(mode), shard);
}

}  // namespace paceline
