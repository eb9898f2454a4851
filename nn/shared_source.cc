#include <paceline/trainer.h>

namespace paceline::nn {
namespace {

PositionRanges to_positions(const std::vector<Range>& ranges) {
  PositionRanges positions;
  for (const Range& range : ranges) positions.emplace_back(range.begin, range.end);
  return positions;
}

class SharedSource final : public Source {
 public:
  explicit SharedSource(std::shared_ptr<KVStore> store) : store_(std::move(store)) {}
  Part part(std::int64_t epoch) override {
    const auto [index, count] = store_->backend().data_part(epoch);
    return {index, count};
  }
  void begin(std::int64_t epoch, const RangeSet& mine, const RangeSet& all) override {
    store_->backend().data_begin(epoch, to_positions(mine.ranges()), to_positions(all.ranges()));
  }
  void commit(std::int64_t epoch, const std::vector<Range>& positions, const std::string& note) override {
    store_->backend().data_commit(epoch, to_positions(positions), note);
  }
  RangeSet take_over(std::int64_t epoch) override {
    RangeSet taken;
    for (const auto& [begin, end] : store_->backend().data_take_over(epoch, true)) taken.add(Range{begin, end});
    return taken;
  }

 private:
  std::shared_ptr<KVStore> store_;
};

}  // namespace

std::shared_ptr<Source> shared_source(std::shared_ptr<KVStore> store) {
  return std::make_shared<SharedSource>(std::move(store));
}

}  // namespace paceline::nn
