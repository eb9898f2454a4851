#include <fcntl.h>
#include <paceline/detail/descriptor.h>
#include <paceline/detail/memory_limit.h>
#include <paceline/detail/shared_heap.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace paceline::detail {
namespace {

constexpr std::size_t kPage = 4096, kLargePage = std::size_t{2} << 20;
#ifndef MADV_COLLAPSE
// NOLINTNEXTLINE(readability-identifier-naming): newer headers give it this name
constexpr int MADV_COLLAPSE = 25;  // since Linux 6.1
#endif

std::atomic<SharedHeap*> heap_of_this_process = nullptr;

std::size_t in_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::string failure(const char* what) { return std::string(what) + ": " + std::generic_category().message(errno); }

// Maps the file at an address that is a multiple of the size of large pages. Returns MAP_FAILED where it cannot.
void* map(int file, std::size_t bytes, int protection) {
  void* const room = mmap(nullptr, bytes + kLargePage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) return room;
  std::byte* const first = static_cast<std::byte*>(room);
  const std::size_t skipped = (kLargePage - reinterpret_cast<std::uintptr_t>(room) % kLargePage) % kLargePage;
  if (skipped > 0) munmap(first, skipped);
  munmap(first + skipped + bytes, kLargePage - skipped);
  void* const base = mmap(first + skipped, bytes, protection, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, file, 0);
  if (base == MAP_FAILED) munmap(first + skipped, bytes);
  return base;
}

}  // namespace

SharedHeap::SharedHeap(int descriptor, std::byte* base, std::size_t bytes)
    : descriptor_(descriptor), base_(base), bytes_(bytes), free_({{0, bytes}}) {}

SharedHeap* SharedHeap::enable(std::string& why, std::size_t most) {
  static Mutex& making = *new Mutex;
  const Lock lock(making);
  if (SharedHeap* heap = heap_of_this_process) return heap;
  Descriptor file(memfd_create("paceline", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (file.number() < 0) {
    why = failure("no shared memory can be made");
    return nullptr;
  }
  const std::size_t bytes = std::min(memory_of_process(), most) / kPage * kPage;
  // The system sends a signal that ends the process if a file is made larger than this limit.
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    why = "shared memory cannot be sized: " + std::to_string(bytes) + " bytes are more than the limit on the size of " +
          "files, " + std::to_string(limit.rlim_cur) + " bytes (ulimit -f)";
    return nullptr;
  }
  // Sealed, so that a reader may rely on its size.
  if (ftruncate(file.number(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.number(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    why = failure("shared memory cannot be sized");
    return nullptr;
  }
  void* base = map(file.number(), bytes, PROT_READ | PROT_WRITE);
  if (base == MAP_FAILED) {
    why = failure("shared memory cannot be mapped");
    return nullptr;
  }
  // Never destroyed: arrays with static storage duration give their memory back after main().
  heap_of_this_process = new SharedHeap(file.release(), static_cast<std::byte*>(base), bytes);
  return heap_of_this_process;
}

SharedHeap* SharedHeap::enabled() { return heap_of_this_process.load(std::memory_order_acquire); }

void* SharedHeap::allocate(std::size_t bytes) {
  const std::size_t size = in_pages(bytes);
  const Lock lock(mutex_);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, room] = *range;
    if (room < size) continue;
    free_.erase(range);
    if (room > size) free_.emplace(offset + size, room - size);
    use_large_pages(offset, size);
    return base_ + offset;
  }
  refused_ = std::min<std::size_t>(refused_, bytes);
  return nullptr;
}

// Asks the system for large pages in a block that was just handed out. A large page may hold neighbours of the block,
// but nothing that is free.
void SharedHeap::use_large_pages(std::size_t offset, std::size_t bytes) {
  const auto next = free_.lower_bound(offset);
  const std::size_t free_after = next == free_.end() ? bytes_ : next->first;
  const std::size_t used_from = next == free_.begin() ? 0 : std::prev(next)->first + std::prev(next)->second;
  const std::size_t first = std::max(offset / kLargePage, (used_from + kLargePage - 1) / kLargePage);
  const std::size_t end = std::min((offset + bytes + kLargePage - 1) / kLargePage, free_after / kLargePage);
  if (first >= end) return;
  // The system makes a large page only where at least one of its small pages exists. So a byte of each is written
  // first.
  for (std::size_t page = first; page < end; ++page) base_[std::max(page * kLargePage, offset)] = std::byte{0};
  madvise(base_ + first * kLargePage, (end - first) * kLargePage, MADV_COLLAPSE);
}

void SharedHeap::release(void* memory, std::size_t bytes) {
  std::size_t size = in_pages(bytes);
  madvise(memory, size, MADV_REMOVE);
  std::size_t offset = offset_of(memory);
  const Lock lock(mutex_);
  refused_ = SIZE_MAX;
  auto next = free_.lower_bound(offset);
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == offset) {
      before->second += size;
      return;
    }
  }
  free_.emplace(offset, size);
}

bool SharedHeap::contains(const void* data, std::size_t bytes) const {
  return at(data) >= base_ && at(data) < base_ + bytes_ && bytes <= static_cast<std::size_t>(base_ + bytes_ - at(data));
}

std::shared_ptr<const SharedView> SharedView::open(pid_t process, int descriptor, std::size_t bytes, std::string& why) {
  if (SharedHeap* own = SharedHeap::enabled(); own && process == getpid() && descriptor == own->descriptor())
    return std::shared_ptr<const SharedView>(new SharedView(-1, own->base(), own->bytes()));

  Descriptor owner(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  if (owner.number() < 0) {
    why = failure("its process cannot be seen");
    return nullptr;
  }
  const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(descriptor);
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (file.number() < 0) {
    why = failure("its memory cannot be opened");
    return nullptr;
  }
  struct stat status = {};
  const int seals = fcntl(file.number(), F_GET_SEALS);
  if (fstat(file.number(), &status) != 0 || seals < 0 || (seals & F_SEAL_SHRINK) == 0 || status.st_uid != geteuid() ||
      bytes == 0 || static_cast<std::size_t>(status.st_size) != bytes) {
    why = "its memory is not what it was said to be";
    return nullptr;
  }
  void* data = map(file.number(), bytes, PROT_READ);
  if (data == MAP_FAILED) {
    why = failure("its memory cannot be mapped");
    return nullptr;
  }
  return std::shared_ptr<const SharedView>(new SharedView(owner.release(), static_cast<const std::byte*>(data), bytes));
}

SharedView::~SharedView() {
  if (process_ < 0) return;
  munmap(const_cast<std::byte*>(data_), bytes_);
  ::close(process_);
}

bool SharedView::owner_lives() const {
  if (process_ < 0) return true;
  pollfd end = {process_, POLLIN, 0};
  // poll() may fail because of a signal. The owner counts as alive then.
  return poll(&end, 1, 0) <= 0;
}

}  // namespace paceline::detail
