#include <paceline/crc32c.h>
#include <paceline/log.h>
#include <paceline/progress.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "checkpoint.h"

namespace paceline::nn {
namespace {

// The number of finished epochs travels through the store's book of positions as those of an epoch before the first:
// a joining or resumed worker learns it without a message of its own.
constexpr std::int64_t kEpochsDone = -1;
// Likewise the sum of what workers told the others that had read or written for all.
constexpr std::int64_t kActs = -2;
// Likewise the steps that each worker is taken to have made before a resumed checkpoint: dropout counts them.
constexpr std::int64_t kStepsBefore = -3;
// Likewise the loss scale of a resumed checkpoint, packed.
constexpr std::int64_t kLossScale = -4;
// Likewise what all workers should have in common, as a position that its text gives.
constexpr std::int64_t kAlike = -5;

RangeSet first_of(std::int64_t count) {
  RangeSet set;
  set.add({0, count});
  return set;
}

}  // namespace

Progress::Progress(std::shared_ptr<KVStore> store, const Spec& optimizer)
    : store_(std::move(store)), optimizer_(optimizer) {
  store_->set_optimizer(optimizer_);
  epoch_ = committed(kEpochsDone).count();
}

RangeSet Progress::committed(std::int64_t epoch) const {
  RangeSet positions;
  for (const auto& [begin, end] : store_->backend().data_committed(epoch)) positions.add(Range{begin, end});
  return positions;
}

namespace {

constexpr std::int64_t kTexts = std::int64_t{1} << 30;

// The first position of those that stand for texts about `what`, and that of a text.
std::int64_t texts_about(const std::string& what) { return crc32c(what) * kTexts; }
Range place_of(const std::string& what, const std::string& text) {
  const std::int64_t position = texts_about(what) + crc32c(text) % kTexts;
  return {position, position + 1};
}

}  // namespace

void Progress::tell_alike(const std::string& what, const std::string& text) {
  if (store_->size() == 1 || store_->backend().joined_late()) return;
  const Range mine = place_of(what, text);
  store_->backend().data_commit(kAlike, {{mine.begin, mine.end}});
  while (!committed(kAlike).contains(mine.begin)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

bool Progress::is_alike(const std::string& what, const std::string& text) const {
  if (store_->size() == 1) return true;
  const std::int64_t first = texts_about(what);
  RangeSet others = committed(kAlike);
  others.subtract(place_of(what, text));
  return std::ranges::none_of(others.ranges(),
                              [&](const Range& range) { return range.end > first && range.begin < first + kTexts; });
}

void Progress::finish_epoch() {
  store_->backend().data_commit(kEpochsDone, {{epoch_, epoch_ + 1}});
  store_->barrier();
  ++epoch_;
}

// What a resumed checkpoint says, or the epoch of a running job.
void Progress::take_up() {
  epoch_ = committed(kEpochsDone).count();
  steps_ = committed(kStepsBefore).count();
  loss_scale_ = committed(kLossScale).count();
}

std::int64_t Progress::acts() const { return committed(kActs).count(); }

// Commits return at once; the others may look only when they are in the book.
void Progress::commit_and_wait(std::int64_t of_epoch, const RangeSet& positions) {
  PositionRanges pairs;
  for (const Range& range : positions.ranges()) pairs.emplace_back(range.begin, range.end);
  store_->backend().data_commit(of_epoch, pairs);
  while (committed(of_epoch) != positions) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

// Meets the others after one worker acted for all: it tells them `told`, a number above 0, which all return. Where it
// failed or was lost, all throw: none goes on alone. `before` is acts() ahead of the last barrier.
std::int64_t Progress::meet(std::int64_t before, std::int64_t told, const std::exception_ptr& failed,
                            const std::string& what) {
  if (told > 0 && !failed) commit_and_wait(kActs, first_of(before + told));
  store_->barrier();
  if (failed) std::rethrow_exception(failed);
  const std::int64_t heard = acts() - before;
  if (heard == 0) throw Error(what + "; the worker that tried says why, or was lost");
  return heard;
}

std::string Progress::checkpoint(const std::string& directory,
                                 const std::vector<std::shared_ptr<Parameter>>& parameters, std::int64_t loss_scale,
                                 const std::string& input) {
  const std::int64_t before = acts();
  store_->barrier();
  const std::string path = checkpoint_path(directory);
  Checkpoint checkpoint;
  checkpoint.epoch = epoch_;
  checkpoint.steps = steps_;
  checkpoint.positions = committed(epoch_);
  checkpoint.optimizer = optimizer_.text();
  checkpoint.loss_scale = LossScale::unpacked(loss_scale);
  checkpoint.input = input;
  checkpoint.store = store_->save();
  std::exception_ptr failed;
  const bool writes = !checkpoint.store.arrays.empty();
  try {
    if (writes) write_checkpoint(path, checkpoint, parameters);
  } catch (const std::exception&) {
    failed = std::current_exception();
  }
  meet(before, writes, failed, "the checkpoint '" + path + "' could not be written");
  return path;
}

bool Progress::resume_if_present(const std::string& directory, const TakeCheckpoint& take) {
  const std::string path = checkpoint_path(directory);
  if (store_->backend().joined_late()) {
    // The others hold newer weights, which come with the first step.
    take_up();
    LOG(INFO) << "joining a running job in epoch " << epoch_ + 1;
    return std::filesystem::exists(path);
  }
  const std::int64_t before = acts();
  store_->barrier();
  Checkpoint checkpoint;
  std::exception_ptr failed;
  const bool reads = store_->rank() == 0;
  constexpr std::int64_t kNone = 1, kFound = 2;
  std::int64_t told = reads ? kNone : 0;
  try {
    if (reads && std::filesystem::exists(path)) {
      const bool fresh = committed(kEpochsDone).empty() && committed(0).empty() && committed(kStepsBefore).empty() &&
                         committed(kLossScale).empty();
      require(fresh, "'", path, "' cannot be resumed with a store that has trained or resumed already; make a new one");
      checkpoint = read_checkpoint(path);
      require(Spec::parse(checkpoint.optimizer).name == optimizer_.name, "'", path, "' was trained with optimizer ",
              checkpoint.optimizer, ", whose state does not fit ", optimizer_.text());
      if (take) take(checkpoint, path);
      commit_and_wait(checkpoint.epoch, checkpoint.positions);
      if (checkpoint.epoch > 0) commit_and_wait(kEpochsDone, first_of(checkpoint.epoch));
      if (checkpoint.steps > 0) commit_and_wait(kStepsBefore, first_of(checkpoint.steps));
      if (const auto& scale = checkpoint.loss_scale) commit_and_wait(kLossScale, first_of(scale->packed()));
      told = kFound;
      LOG(INFO) << "resuming from " << path << " after epoch " << checkpoint.epoch;
    }
  } catch (const std::exception&) {
    failed = std::current_exception();
  }
  const bool resumed = meet(before, told, failed, "the checkpoint '" + path + "' could not be resumed from") == kFound;
  take_up();
  if (resumed) resumed_ = std::move(checkpoint.store);
  return resumed;
}

bool Progress::load() {
  if (!resumed_) return false;
  store_->load(*resumed_);
  resumed_.reset();
  return true;
}

}  // namespace paceline::nn
