#include "device/simulated_memory.h"

#include <paceline/detail/simulated_runtime.h>
#include <paceline/error.h>

#include <sanitizer/asan_interface.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstring>

namespace paceline::detail {
namespace {

constexpr std::size_t kCapacity = std::size_t{16} << 30;
constexpr std::size_t kSmallest = 256;
std::atomic<std::int64_t> bytes_in_use = 0;

std::size_t block_size(std::size_t bytes) { return std::bit_ceil(std::max(bytes, kSmallest)); }

void poison(void* memory, std::size_t block) {
  std::memset(memory, kSimulatedPoison, block);
  ASAN_POISON_MEMORY_REGION(memory, block);
}

bool is_poisoned(const void* memory, std::size_t block) {
  const auto* bytes = static_cast<const unsigned char*>(memory);
  return bytes[0] == kSimulatedPoison && std::memcmp(bytes, bytes + 1, block - 1) == 0;
}

}  // namespace

std::int64_t simulated_bytes_in_use() { return bytes_in_use; }

SimulatedMemory::SimulatedMemory(int index) : index_(index) {
  void* range = mmap(nullptr, kCapacity, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) throw OutOfMemory(str("no address range is left for sim:", index));
  madvise(range, kCapacity, MADV_DONTDUMP);
  begin_ = static_cast<char*>(range);
}

SimulatedMemory::~SimulatedMemory() {
  ASAN_UNPOISON_MEMORY_REGION(begin_, kCapacity);
  munmap(begin_, kCapacity);
}

bool SimulatedMemory::contains(const void* memory, std::size_t bytes) const {
  const char* first = static_cast<const char*>(memory);
  return first >= begin_ && first + bytes <= begin_ + kCapacity;
}

void* SimulatedMemory::grow(std::size_t block, const std::string& who) {
  const std::size_t page = std::max<std::size_t>(block, 4096);
  if (page > kCapacity - used_) throw OutOfMemory(str(who, " has ", kCapacity - used_, " bytes left, not ", block));
  char* memory = begin_ + used_;
  if (mprotect(memory, page, PROT_READ | PROT_WRITE) != 0) throw OutOfMemory("the host has no memory left for " + who);
  used_ += page;
  poison(memory, page);
  auto& list = free_[std::countr_zero(block)];
  for (std::size_t at = block; at + block <= page; at += block)
    list.push_back({memory + at, nullptr, std::make_shared<std::atomic<bool>>(true)});
  return memory;
}

void* SimulatedMemory::allocate(std::size_t bytes, Stream* stream) {
  const std::string who = "sim:" + std::to_string(index_);
  if (bytes > kCapacity) throw OutOfMemory(str(who, " has ", kCapacity, " bytes, not ", bytes));
  const std::size_t block = block_size(bytes);
  void* memory = nullptr;
  bool at_once = true;
  {
    const Lock lock(mutex_);
    auto& list = free_[std::countr_zero(block)];
    for (auto found = list.begin(); found != list.end() && !memory; ++found) {
      at_once = found->released->load();
      if (!at_once && (!stream || found->stream != stream)) continue;
      memory = found->memory;
      list.erase(found);
      break;
    }
    if (!memory) {
      memory = grow(block, who);
      at_once = true;
    }
  }
  bytes_in_use += static_cast<std::int64_t>(bytes);
  if (at_once) {
    ASAN_UNPOISON_MEMORY_REGION(memory, block);
    if (!is_poisoned(memory, block)) throw Error(str("memory of ", who, " was written after its release"));
  } else {
    stream->enqueue([memory, block] { ASAN_UNPOISON_MEMORY_REGION(memory, block); });
  }
  return memory;
}

void SimulatedMemory::release(void* memory, std::size_t bytes, Stream* stream) {
  const std::size_t block = block_size(bytes);
  bytes_in_use -= static_cast<std::int64_t>(bytes);
  auto released = std::make_shared<std::atomic<bool>>(false);
  const auto finish = [memory, block, released] {
    poison(memory, block);
    released->store(true);
  };
  if (stream) {
    stream->enqueue(finish);
  } else {
    finish();
  }
  const Lock lock(mutex_);
  free_[std::countr_zero(block)].push_front({memory, stream, released});
}

}  // namespace paceline::detail
