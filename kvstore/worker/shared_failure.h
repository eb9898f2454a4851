#pragma once
// The failure of a collective call, which meets the other workers several times. A worker at which a part of the call
// throws goes on to the next meeting, and tells the others there. Otherwise they would wait for it.

#include <paceline/backend.h>
#include <paceline/error.h>

#include <exception>
#include <string>

namespace paceline {

// Comes before the reason where a load has failed after its first change. The next load changes all weights and states.
inline constexpr const char* kLoadedInPart = "the state is loaded in part, until a load succeeds: ";

class SharedFailure {
 public:
  explicit SharedFailure(int rank) : rank_(rank) {}

  // Runs a part of the call, and keeps what it throws. The first failure counts. The text of the others' errors begins
  // with the name of this worker.
  template <class Part>
  void run(const Part& part) {
    run(part, str("worker ", rank_, ": "));
  }
  // As run(), for a part that one worker does for all. All get the same text.
  template <class Part>
  void run_for_all(const Part& part) {
    run(part, {});
  }
  // Has a part failed, here or at a worker that hear() has heard?
  explicit operator bool() const { return error_ != nullptr; }
  // The value that this worker passes to the next meeting: its own failure, or nothing.
  const std::string& told() const { return told_; }
  // Takes the values that the workers passed.
  void hear(const GatheredValues& values);
  // As hear(). Fails if worker `leader` was lost before it came.
  void hear(const GatheredValues& values, int leader);
  // Throws the failure, if there is one, with the text `before` in front. Where it happened, it is thrown as it was.
  // The other workers throw the class of Error that error_of() in refusal.h makes of it.
  void rethrow(const std::string& before = {}) const;

 private:
  template <class Part>
  void run(const Part& part, const std::string& who) {
    try {
      part();
    } catch (const std::exception& error) {
      note(error, who);
    } catch (...) {
      note(Error("something else than a std::exception was thrown"), who);
    }
  }
  // Only within the handler that has caught `error`. Does not throw.
  void note(const std::exception& error, const std::string& who);

  const int rank_;
  std::exception_ptr error_;
  std::string told_;
};

}  // namespace paceline
