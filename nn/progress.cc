#include <paceline/crc32c.h>
#include <paceline/detail/remote.h>
#include <paceline/log.h>
#include <paceline/progress.h>
#include <paceline/remote_path.h>

#include <algorithm>
#include <utility>

#include "checkpoint.h"

namespace paceline::nn {
namespace {

// Facts, by which a worker that joins or resumes learns how far the job is.
constexpr const char* kEpoch = "/progress/epoch";           // epochs that are finished
constexpr const char* kSteps = "/progress/steps";           // steps of each worker before a resumed checkpoint
constexpr const char* kLossScale = "/progress/loss_scale";  // of a resumed checkpoint, as text
constexpr const char* kOrder = "/progress/order";           // of the epoch within which a resumed checkpoint ended
constexpr const char* kResuming = "/progress/resuming";     // not empty while a checkpoint is resumed

std::string fact(KVStore& store, const std::string& name) {
  const Facts facts = store.facts(name);
  const auto found = facts.find(name);
  return found == facts.end() ? std::string() : found->second;
}

std::int64_t number(KVStore& store, const std::string& name) {
  const std::string text = fact(store, name);
  return text.empty() ? 0 : std::stoll(text);
}

// What workers tell alike about `what`, by rank. A rank's name ends in it, so that none begins another's.
std::string alike(const std::string& what) { return str("/alike/", crc32c(what), '/'); }

}  // namespace

Progress::Progress(std::shared_ptr<KVStore> store, const Spec& optimizer, const Notes& notes)
    : store_(std::move(store)), optimizer_(optimizer), notes_(notes) {
  store_->set_optimizer(optimizer_);
  epoch_ = number(*store_, kEpoch);
}

RangeSet Progress::committed(std::int64_t epoch) const {
  RangeSet positions;
  for (const auto& [begin, end] : store_->backend().data_committed(epoch)) positions.add(Range{begin, end});
  return positions;
}

RangeSet Progress::begin_epoch(const std::string& order) {
  RangeSet done = committed(epoch_);
  require(done.empty() || order.empty() || order_.empty() || order == order_, "epoch ", epoch_ + 1,
          " began with its records in the order '", order_, "', and cannot go on in the order '", order,
          "', in which the positions that are done are those of other records; use the data set and the options of "
          "before, or a checkpoint from the end of an epoch");
  order_ = order;
  return done;
}

void Progress::tell_alike(const std::string& what, const std::string& text) {
  if (store_->size() == 1 || store_->backend().joined_late()) return;
  store_->put_fact(alike(what) + std::to_string(store_->rank()), text);
}

bool Progress::is_alike(const std::string& what, const std::string& text) const {
  return std::ranges::all_of(store_->facts(alike(what)), [&](const auto& told) { return told.second == text; });
}

void Progress::finish_epoch() {
  store_->put_fact(kEpoch, std::to_string(epoch_ + 1));
  store_->put_fact(kOrder, "");  // the next epoch may have another
  store_->barrier();
  order_.clear();
  ++epoch_;
}

// What a resumed checkpoint says, or the epoch of a running job.
void Progress::take_up() {
  epoch_ = number(*store_, kEpoch);
  steps_ = number(*store_, kSteps);
  loss_scale_ = fact(*store_, kLossScale);
  order_ = fact(*store_, kOrder);
}

// Meets the others after one worker acted for all: it gives the outcome, which all return, and the others give nothing.
// Where it failed or was lost, all throw: none goes on alone.
std::string Progress::agree(const std::string& what, const std::string& outcome, const std::exception_ptr& failed,
                            const std::string& complaint) {
  const GatheredValues outcomes = store_->all_gather(what, failed ? std::string() : outcome);
  if (failed) std::rethrow_exception(failed);
  for (const auto& [rank, given] : outcomes)
    if (!given.empty()) return given;
  // A worker that came late may meet nobody: the others are past this barrier.
  if (store_->backend().joined_late()) return {};
  throw Error(complaint + "; the worker that tried says why, or was lost");
}

std::string Progress::checkpoint(const std::string& directory,
                                 const std::vector<std::shared_ptr<Parameter>>& parameters,
                                 const std::string& loss_scale, const std::string& input) {
  store_->barrier();
  const std::string path = checkpoint_path(directory), name = redacted(path);
  Checkpoint checkpoint;
  checkpoint.epoch = epoch_;
  checkpoint.steps = steps_;
  checkpoint.positions = committed(epoch_);
  if (!checkpoint.positions.empty()) checkpoint.order = order_;
  checkpoint.optimizer = optimizer_.text();
  checkpoint.loss_scale = LossScale::parse(loss_scale);
  checkpoint.input = input;
  checkpoint.notes = notes_;
  checkpoint.store = store_->save();
  std::exception_ptr failed;
  const bool writes = !checkpoint.store.arrays.empty();
  try {
    if (writes) write_checkpoint(path, checkpoint, parameters);
  } catch (const std::exception&) {
    failed = std::current_exception();
  }
  agree("/checkpoint", writes ? "written" : "", failed, "the checkpoint '" + name + "' could not be written");
  return path;
}

bool Progress::resume_if_present(const std::string& directory, const CheckNotes& check, const TakeCheckpoint& take) {
  const std::string path = checkpoint_path(directory), name = redacted(path);
  if (store_->backend().joined_late()) {
    // The others hold newer weights, which come with the first step.
    if (!fact(*store_, kResuming).empty())
      throw NetworkError("the other workers are still resuming from '" + name +
                         "', and a worker cannot join until that is over; start this worker again");
    take_up();
    LOG(INFO) << "joining a running job in epoch " << epoch_ + 1;
    return detail::exists(path);
  }
  const bool reads = store_->rank() == 0;
  if (reads) store_->put_fact(kResuming, "yes");
  store_->barrier();
  Checkpoint checkpoint;
  std::exception_ptr failed;
  std::string outcome = reads ? "none" : "";
  try {
    if (reads && detail::exists(path)) {
      const bool fresh = fact(*store_, kEpoch).empty() && committed(0).empty();
      require(fresh, "'", name, "' cannot be resumed with a store that has trained or resumed already; make a new one");
      checkpoint = read_checkpoint(path);
      require(Spec::parse(checkpoint.optimizer).name == optimizer_.name, "'", name, "' was trained with optimizer ",
              checkpoint.optimizer, ", whose state does not fit ", optimizer_.text(),
              "; resume it with that optimizer, or begin with its weights alone, by load_weights()");
      if (check) check(checkpoint.notes);
      if (take) take(checkpoint, path);
      PositionRanges done;
      for (const Range& range : checkpoint.positions.ranges()) done.emplace_back(range.begin, range.end);
      store_->backend().data_commit(checkpoint.epoch, done);
      store_->put_fact(kEpoch, std::to_string(checkpoint.epoch));
      store_->put_fact(kSteps, std::to_string(checkpoint.steps));
      store_->put_fact(kLossScale, checkpoint.loss_scale ? checkpoint.loss_scale->text() : "");
      store_->put_fact(kOrder, checkpoint.order.value_or(""));
      if (!checkpoint.order && !checkpoint.positions.empty())
        LOG(WARNING) << name << " is of a version that did not keep the order of records, and ended within epoch "
                     << checkpoint.epoch + 1 << ": where the order is another now, some records come twice in it";
      outcome = "found";
      LOG(INFO) << "resuming from " << name
                << (checkpoint.positions.empty() ? str(" after epoch ", checkpoint.epoch)
                                                 : str(" within epoch ", checkpoint.epoch + 1, ", after ",
                                                       checkpoint.positions.count(), " of its records"));
    }
  } catch (const std::exception&) {
    failed = std::current_exception();
  }
  if (reads && outcome != "found") store_->put_fact(kResuming, "");
  const bool resumed =
      agree("/resume", outcome, failed, "the checkpoint '" + name + "' could not be resumed from") == "found";
  take_up();
  if (resumed) resumed_ = std::move(checkpoint.store);
  return resumed;
}

bool Progress::load() {
  if (!resumed_) return false;
  store_->load(*resumed_);
  resumed_.reset();
  store_->put_fact(kResuming, "");
  return true;
}

}  // namespace paceline::nn
