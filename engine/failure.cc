#include "failure.h"

#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>

namespace paceline::detail {
namespace {

// A program that never waits must not fill the memory with the failures of its loop.
constexpr std::size_t kMostFailures = 1024;

std::string with_task(const char* task_name, const char* message) {
  const std::string prefix = str("[", task_name, "]");
  return std::string(message).starts_with(prefix) ? message : prefix + " " + message;
}

}  // namespace

FailurePointer make_failure(const char* task_name, std::uint64_t task, const std::exception_ptr& error) {
  using Kind = Failure::Kind;
  const auto made = [&](Kind kind, const char* message) {
    auto failure = std::make_shared<Failure>();
    failure->task = task;
    failure->kind = kind;
    failure->message = with_task(task_name, message);
    return failure;
  };
  try {
    std::rethrow_exception(error);
  } catch (const InvalidArgument& thrown) {
    return made(Kind::kInvalidArgument, thrown.what());
  } catch (const NotAvailable& thrown) {
    return made(Kind::kNotAvailable, thrown.what());
  } catch (const OutOfMemory& thrown) {
    return made(Kind::kOutOfMemory, thrown.what());
  } catch (const DeviceError& thrown) {
    return made(Kind::kDeviceError, thrown.what());
  } catch (const Timeout& thrown) {
    return made(Kind::kTimeout, thrown.what());
  } catch (const NetworkError& thrown) {
    return made(Kind::kNetworkError, thrown.what());
  } catch (const IoError& thrown) {
    return made(Kind::kIoError, thrown.what());
  } catch (const Corrupt& thrown) {
    return made(Kind::kCorrupt, thrown.what());
  } catch (const std::bad_alloc&) {
    return made(Kind::kOutOfMemory, "the host has no memory left");
  } catch (const std::exception& thrown) {
    return made(Kind::kError, thrown.what());
  } catch (...) {
    return made(Kind::kError, "threw something that is not a std::exception");
  }
}

void throw_failure(Failure& failure) {
  using Kind = Failure::Kind;
  failure.thrown = true;
  switch (failure.kind) {
    case Kind::kInvalidArgument: throw InvalidArgument(failure.message);
    case Kind::kNotAvailable: throw NotAvailable(failure.message);
    case Kind::kOutOfMemory: throw OutOfMemory(failure.message);
    case Kind::kDeviceError: throw DeviceError(failure.message);
    case Kind::kNetworkError: throw NetworkError(failure.message);
    case Kind::kTimeout: throw Timeout(failure.message);
    case Kind::kIoError: throw IoError(failure.message);
    case Kind::kCorrupt: throw Corrupt(failure.message);
    case Kind::kError: break;
  }
  throw Error(failure.message);
}

void FailureLog::add(FailurePointer failure) {
  const Lock lock(mutex_);
  if (failures_.size() == kMostFailures)
    std::erase_if(failures_, [](const FailurePointer& known) { return known->thrown.load(); });
  if (failures_.size() < kMostFailures) failures_.push_back(std::move(failure));
}

std::vector<FailurePointer> FailureLog::take_all() {
  std::vector<FailurePointer> taken;
  const Lock lock(mutex_);
  taken.swap(failures_);
  return taken;
}

FailurePointer FailureLog::take_first() {
  FailurePointer first;
  for (FailurePointer& failure : take_all())
    if (!failure->thrown && (!first || failure->task < first->task)) first = std::move(failure);
  return first;
}

void FailureLog::report() {
  for (const FailurePointer& failure : take_all())
    if (!failure->thrown) LOG(ERROR) << "nobody waited for a task that failed: " << failure->message;
}

}  // namespace paceline::detail
