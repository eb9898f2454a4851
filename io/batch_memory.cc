#include "batch_memory.h"

#include <paceline/detail/array_builder.h>

#include <new>

namespace paceline::io {
namespace {

constexpr std::align_val_t kAlignment{64};
constexpr std::size_t kMostFree = 8;

}  // namespace

BatchMemory::~BatchMemory() {
  for (const Block& block : free_) ::operator delete(block.memory, kAlignment);
}

std::shared_ptr<void> BatchMemory::allocate(std::size_t bytes) {
  if (!device_.is_cpu()) {
    // Of a pool of its own, which hands it out again.
    const auto pinned = std::make_shared<NDArray>(ArrayBuilder::allocate(
        {static_cast<std::int64_t>(bytes)}, DType::kUint8, device_, detail::MemoryKind::kPinned));
    return {pinned, ArrayBuilder::data(*pinned)};
  }
  Block block{nullptr, bytes};
  {
    Lock lock(mutex_);
    for (std::size_t i = 0; i < free_.size(); ++i) {
      if (free_[i].bytes != bytes) continue;
      block = free_[i];
      free_[i] = free_.back();
      free_.pop_back();
      break;
    }
  }
  if (!block.memory) block.memory = ::operator new(bytes, kAlignment);
  return {block.memory, [owner = shared_from_this(), block](void*) { owner->release(block); }};
}

void BatchMemory::release(Block block) {
  {
    Lock lock(mutex_);
    if (free_.size() < kMostFree) {
      free_.push_back(block);
      return;
    }
  }
  ::operator delete(block.memory, kAlignment);
}

}  // namespace paceline::io
