#pragma once
// How far a job has trained: its epoch, the steps of each worker, and what a checkpoint holds of them. The store's book
// of positions carries it, so that a worker that joins learns it without a message of its own. A Trainer has one; a
// loop of one's own, over tables for example, makes one:
//
//   nn::Progress progress(kv, optim::Adam{.lr = 0.01});
//   progress.resume_if_present("ckpt");
//   kv->init_table(table);
//   progress.load();
//   while (progress.epoch() < epochs) {
//     data.start(progress.epoch(), progress.committed(progress.epoch()));
//     ...
//     progress.finish_epoch();
//     progress.checkpoint("ckpt");
//   }

#include <paceline/data_iterator.h>
#include <paceline/kvstore.h>
#include <paceline/module.h>

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace paceline::nn {

struct Checkpoint;  // private
using TakeCheckpoint = std::function<void(const Checkpoint& checkpoint, const std::string& path)>;

class Progress {
 public:
  // Sets the optimizer on the store.
  Progress(std::shared_ptr<KVStore> store, const Spec& optimizer);

  std::int64_t epoch() const { return epoch_; }
  std::int64_t steps() const { return steps_; }  // of this worker, those before a resumed checkpoint included
  void count_step() { ++steps_; }
  // A number that goes with the epoch and the steps into checkpoints and out of them, here a packed loss scale; 0:
  // none.
  std::int64_t loss_scale() const { return loss_scale_; }
  // The positions of `epoch` that any worker committed.
  RangeSet committed(std::int64_t epoch) const;

  // Do all workers give the same text about `what`? Each tells its own, and asks after a collective call that all make
  // once they have told it. Meets nobody. One that joins a running job only asks.
  void tell_alike(const std::string& what, const std::string& text);
  bool is_alike(const std::string& what, const std::string& text) const;

  // Collective, once the worker's own positions are committed: meets the others, and epoch() is one more.
  void finish_epoch();
  // Collective. The worker that leads writes the store's state and the network's weights. See Trainer::checkpoint().
  std::string checkpoint(const std::string& directory, const std::vector<std::shared_ptr<Parameter>>& parameters = {},
                         std::int64_t loss_scale = 0, const std::string& input = "");
  // Collective, before the first step. See Trainer::resume_if_present(). The worker that reads the checkpoint hands it
  // to `take`; what that throws is thrown in every worker.
  bool resume_if_present(const std::string& directory, const TakeCheckpoint& take = nullptr);
  bool resumes() const { return resumed_.has_value(); }  // load() has not come yet
  // Collective, once keys and tables are made: the store goes on from the checkpoint. False where nothing is resumed.
  bool load();

 private:
  std::int64_t acts() const;
  void take_up();
  void commit_and_wait(std::int64_t of_epoch, const RangeSet& positions);
  std::int64_t meet(std::int64_t before, std::int64_t told, const std::exception_ptr& failed, const std::string& what);

  std::shared_ptr<KVStore> store_;
  Spec optimizer_;
  std::int64_t epoch_ = 0, steps_ = 0, loss_scale_ = 0;
  std::optional<StoreState> resumed_;
};

// The file that checkpoint(directory) writes.
std::string checkpoint_path(const std::string& directory);
// What the store kept in a checkpoint, the file or its folder. Throws IoError, Corrupt.
StoreState load_store_state(const std::string& place);

}  // namespace paceline::nn
