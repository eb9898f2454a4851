#include "shared_failure.h"

#include "refusal.h"

namespace paceline {
namespace {

constexpr char kFailed = '!';  // a refusal follows, which may be empty

}  // namespace

void SharedFailure::note(const std::exception& error, const std::string& who) {
  if (error_) return;
  error_ = std::current_exception();
  told_ = kFailed;  // needs no memory
  try {
    told_ += refusal_of(error, who);
  } catch (const std::exception&) {
    // Out of memory: the others hear that this worker failed, but not why.
  }
}

void SharedFailure::hear(const GatheredValues& values) {
  for (const auto& [rank, value] : values)
    if (!error_ && value.starts_with(kFailed)) error_ = error_of(value.substr(1));
}

void SharedFailure::hear(const GatheredValues& values, int leader) {
  hear(values);
  if (!error_ && values.count(leader) == 0)
    error_ = std::make_exception_ptr(NetworkError(str("worker ", leader, ", which does this for all, was lost")));
}

void SharedFailure::rethrow(const std::string& before) const {
  if (!error_) return;
  if (before.empty()) std::rethrow_exception(error_);
  try {
    std::rethrow_exception(error_);
  } catch (const std::exception& error) {
    std::rethrow_exception(error_of(refusal_of(error, before)));
  }
}

}  // namespace paceline
