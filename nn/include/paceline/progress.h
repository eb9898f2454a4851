#pragma once
// How far a job has trained. A Trainer has a Progress; a loop of your own, over tables for example, makes one:
//
//   nn::Progress progress(kv, optim::Adam{.lr = 0.01});
//   progress.resume_if_present("ckpt");
//   kv->init_table(table);
//   progress.load();
//   while (progress.epoch() < epochs) {
//     data.start(progress.epoch(), progress.begin_epoch(data.order()));
//     ...
//     progress.finish_epoch();
//     progress.checkpoint("ckpt");
//   }

#include <paceline/data_iterator.h>
#include <paceline/kvstore.h>
#include <paceline/module.h>

#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>

namespace paceline::nn {

// What a program wants to find again in its checkpoints, by names of its own: the size of its images, for example.
using Notes = std::map<std::string, std::string>;
// Sees a checkpoint's notes, and throws where the program cannot go on from it.
using CheckNotes = std::function<void(const Notes& notes)>;

struct Checkpoint;  // private
// For the Trainer: takes the network's part of a checkpoint.
using TakeCheckpoint = std::function<void(const Checkpoint& checkpoint, const std::string& path)>;

// The epoch of a job, the steps of this worker, and what a checkpoint holds of them. The store's facts carry it, so
// that a worker that joins learns it. "Collective": every live worker calls the function. Not thread-safe.
class Progress {
 public:
  // Sets the optimizer on the store. `notes` go into each checkpoint, as TrainerOptions::notes.
  Progress(std::shared_ptr<KVStore> store, const Spec& optimizer, const Notes& notes = {});

  std::int64_t epoch() const { return epoch_; }  // the current one, from 0
  std::int64_t steps() const { return steps_; }  // of this worker, those before a resumed checkpoint included
  void count_step() { ++steps_; }                // this worker has made a step
  // For the Trainer: the text of a loss scale, which goes into checkpoints and out of them; empty: none.
  const std::string& loss_scale() const { return loss_scale_; }
  // The positions of `epoch` that any worker committed.
  RangeSet committed(std::int64_t epoch) const;

  // The positions of the current epoch that are committed, for start() of an iterator with this order(), which
  // checkpoints keep beside the positions. Throws InvalidArgument where the epoch began in another order, here or in a
  // resumed checkpoint: the positions would be those of other records.
  RangeSet begin_epoch(const std::string& order);

  // Do all workers give the same text about `what`? Each tells its own. Each asks after a collective call that all make
  // once they have told. Neither waits for others. A worker that joins a running job only asks.
  void tell_alike(const std::string& what, const std::string& text);
  bool is_alike(const std::string& what, const std::string& text) const;

  // Collective, once the worker's own positions are committed. Blocks until all are here; then epoch() is one more.
  void finish_epoch();
  // Collective. The worker that leads writes the store's state and the network's weights, as Trainer::checkpoint()
  // does.
  std::string checkpoint(const std::string& directory, const std::vector<std::shared_ptr<Parameter>>& parameters = {},
                         const std::string& loss_scale = "", const std::string& input = "");
  // Collective, before the first step, as Trainer::resume_if_present(). The worker that reads the checkpoint hands it
  // to `take` behind `check`. Where one of them throws, all workers throw.
  bool resume_if_present(const std::string& directory, const CheckNotes& check = nullptr,
                         const TakeCheckpoint& take = nullptr);
  bool resumes() const {
    return resumed_.has_value();
  }  // was a checkpoint read that load() has yet to put into the store?
  // Collective, once keys and tables exist. The store goes on from the checkpoint. False where there is none.
  bool load();

 private:
  void take_up();
  std::string agree(const std::string& what, const std::string& outcome, const std::exception_ptr& failed,
                    const std::string& complaint);

  std::shared_ptr<KVStore> store_;
  Spec optimizer_;
  Notes notes_;
  std::int64_t epoch_ = 0, steps_ = 0;
  std::string loss_scale_;
  std::string order_;  // of the records in the current epoch; empty: not known
  std::optional<StoreState> resumed_;
};

// The path of the file that checkpoint(directory) writes.
std::string checkpoint_path(const std::string& directory);
// The store's part of a checkpoint; `place` is the file or its folder. Throws IoError, Corrupt.
StoreState load_store_state(const std::string& place);
// The notes in a checkpoint; `place` is that of load_weights(), which names what this throws. Empty where the program
// wrote none, and for weights that are no checkpoint. Reads and checks the file's header alone.
Notes checkpoint_notes(const std::string& place);

}  // namespace paceline::nn
