#pragma once
// What every training program shares: the flags of the store and the optimizer, and how a program begins and ends.

#include <gflags/gflags.h>
#include <paceline/data_iterator.h>
#include <paceline/error.h>
#include <paceline/kvstore.h>
#include <paceline/options.h>
#include <paceline/progress.h>

#include <charconv>
#include <chrono>
#include <functional>
#include <initializer_list>
#include <string>
#include <vector>

DECLARE_string(kvstore);
DECLARE_string(device);
DECLARE_string(optimizer);
DECLARE_double(lr);
DECLARE_int32(batch_size);
DECLARE_int32(epochs);
DECLARE_int32(max_steps);
DECLARE_uint64(seed);
DECLARE_int32(log_every);
DECLARE_string(checkpoint);
DECLARE_string(evaluate);

namespace paceline::examples {

struct Program {
  const char* name;
  const char* usage;
  std::vector<std::string> flags_of;  // source files whose flags --help shows, besides these
  std::vector<std::pair<const char*, const char*>> defaults = {};  // of flags, other than they are defined with
};

// main(): reads the command line, runs `body`, and says what it throws in one sentence. Returns the exit code: 0, 2
// where a flag or what it names is wrong, and 1 where the run failed.
int run(const Program& program, int argc, char** argv, const std::function<void()>& body);

// The value of an environment variable, "" where it is not set.
std::string variable(const char* name);

// Throws InvalidArgument where one of these flags was given. `where` ends the sentence: "with --text".
void refuse_without_effect(std::initializer_list<const char*> flags, const std::string& where);

// Is this process alone or a worker, not one of those that serve a job?
bool trains();

// Throws InvalidArgument unless the file that --`flag` names is there and can be read. A file on another host is not
// looked at.
void require_readable(const char* flag, const std::string& path);
// The same for the checkpoint that --evaluate names by its file or its folder.
void require_checkpoint();
// Throws InvalidArgument unless a checkpoint can be written into the folder of --checkpoint, if there is one. Makes the
// folder. Only the process that leads at first looks.
void require_checkpoint_folder();

// Throws InvalidArgument where `trained`, the notes in a checkpoint, and `notes`, those of this run, differ. Names that
// only one of them has are not compared: older checkpoints lack some. A note about a flag has the flag's name.
void require_as_trained(const std::string& checkpoint, const nn::Notes& trained, const nn::Notes& notes);

// The numbers of a flag that is a list, as in 0.5,0.4,0.4; none where the text is empty. Throws InvalidArgument.
template <class T>
std::vector<T> numbers_of_flag(const char* flag, const std::string& text) {
  std::vector<T> result;
  if (text.empty()) return result;
  for (const char *place = text.data(), *const end = place + text.size();; ++place) {
    const auto [rest, error] = std::from_chars(place, end, result.emplace_back());
    require(error == std::errc() && (rest == end || *rest == ','), "--", flag, " is '", text,
            "', expected numbers with commas between them");
    if (rest == end) return result;
    place = rest;
  }
}

// Whether a run that has made so many steps is to end before its epochs do.
bool enough_steps(std::int64_t steps);

// The store of --kvstore. Refuses one that is a single process' own in a job of several workers.
std::shared_ptr<KVStore> store_of_flags();
// The optimizer as the flags have it; schedules count examples, of which an epoch has so many. Throws InvalidArgument
// where --optimizer and another flag say the same.
Spec optimizer_of_flags(std::int64_t examples_of_epoch);
// What shares an epoch out among the workers, as --balance says.
std::shared_ptr<Source> source_of_flags(std::shared_ptr<KVStore> store);

// How many examples of this epoch have been trained on, also before a resumed checkpoint.
std::int64_t examples_done(KVStore& store, std::int64_t epoch);

using Clock = std::chrono::steady_clock;
inline double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// "epoch 1  step 300  loss 0.0931  9120 images/s": on a terminal over the last such line, else as a line of its own.
void show_progress(const std::string& line);
// A line that stays: "epoch 1 of 3: test accuracy 0.9712, loss 0.0934".
void show_result(const std::string& line);
// That a checkpoint is of the last epoch already, or of a later one.
void show_nothing_left(const std::string& checkpoint, std::int64_t epoch);

}  // namespace paceline::examples
