#include <paceline/error.h>
#include <paceline/trainer.h>

#include <algorithm>
#include <chrono>
#include <cmath>

namespace paceline::nn {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kGrowth = 8;  // a piece is at most so many times the last one: the first ones show the speed

PositionRanges to_positions(const std::vector<Range>& ranges) {
  PositionRanges positions;
  for (const Range& range : ranges) positions.emplace_back(range.begin, range.end);
  return positions;
}

RangeSet to_set(const PositionRanges& positions) {
  RangeSet set;
  for (const auto& [begin, end] : positions) set.add(Range{begin, end});
  return set;
}

class SharedSource final : public Source {
 public:
  SharedSource(std::shared_ptr<KVStore> store, SharingOptions options) : store_(std::move(store)), options_(options) {}

  bool is_dynamic() const override { return options_.balance == Balance::kDynamic; }
  Part part(std::int64_t epoch) override {
    const auto [index, count] = store_->backend().data_part(epoch);
    return is_dynamic() ? Part{0, 0} : Part{index, count};
  }
  void begin(std::int64_t epoch, const EpochPlan& plan) override {
    store_->backend().data_begin(epoch, {.mine = to_positions(plan.mine.ranges()),
                                         .all = to_positions(plan.all.ranges()),
                                         .on_request = is_dynamic(),
                                         .order = plan.order});
    given_ = 0;
  }
  void commit(std::int64_t epoch, const std::vector<Range>& positions, const std::string& note) override {
    store_->backend().data_commit(epoch, to_positions(positions), note);
  }
  RangeSet take_over(std::int64_t epoch, std::int64_t batch, bool wait) override {
    Backend& backend = store_->backend();
    if (!is_dynamic()) return to_set(backend.data_take_over(epoch, wait));
    const PieceSize size = {.wanted = wanted(batch), .multiple = batch};
    // Without waiting first: who waits leaves the rounds of the others.
    RangeSet piece = to_set(backend.data_take_over(epoch, false, size));
    if (piece.empty() && wait) piece = to_set(backend.data_take_over(epoch, true, size));
    if (!piece.empty()) {
      given_ = piece.count();
      given_at_ = Clock::now();
    }
    return piece;
  }

 private:
  // What gets done in a piece's time, by the speed of the last one.
  std::int64_t wanted(std::int64_t batch) {
    if (given_ > 0) {
      const double took = std::max(1e-6, std::chrono::duration<double>(Clock::now() - given_at_).count());
      const double most = static_cast<double>(kGrowth * given_);
      wanted_ = std::llround(std::min(most, static_cast<double>(given_) * options_.piece_seconds / took));
    }
    return std::max(batch, wanted_);
  }

  const std::shared_ptr<KVStore> store_;
  const SharingOptions options_;
  std::int64_t wanted_ = 0;
  std::int64_t given_ = 0;  // positions of the last piece of this epoch; 0: none
  Clock::time_point given_at_;
};

}  // namespace

Balance parse_balance(std::string_view name) {
  if (name == "even") return Balance::kEven;
  if (name == "dynamic") return Balance::kDynamic;
  throw InvalidArgument(str("unknown balance '", name, "'; known: even dynamic"));
}

std::shared_ptr<Source> shared_source(std::shared_ptr<KVStore> store, SharingOptions options) {
  require(options.piece_seconds > 0, "piece_seconds is a positive number of seconds, not ", options.piece_seconds);
  return std::make_shared<SharedSource>(std::move(store), options);
}

}  // namespace paceline::nn
