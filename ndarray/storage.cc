#include "storage.h"

#include <utility>

namespace paceline::detail {

Storage::Storage(Engine& engine, Device device, MemoryKind kind, std::size_t bytes)
    : engine_(engine),
      device_(device),
      variable_(engine.new_variable()),
      block_(device, kind, bytes),
      memory_(block_.data()),
      bytes_(bytes) {}

Storage::Storage(Engine& engine, Device device, void* memory, std::size_t bytes, std::shared_ptr<void> owner)
    : engine_(engine),
      device_(device),
      variable_(engine.new_variable()),
      owner_(std::move(owner)),
      memory_(memory),
      bytes_(bytes) {}

void Storage::set_failure(std::exception_ptr failure) { failure_ = std::move(failure); }

void Storage::throw_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace paceline::detail
