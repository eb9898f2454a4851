// Keeps which functions a process has called (builds with PACELINE_COVERAGE). The compiler calls the two hooks below at
// every function. TEST_COVERAGE_FOLDER says where to write. What was called is kept in a table in a mapped file, so
// that it outlives a process that is killed. tests/runner/coverage.py reads the files.

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

extern "C" {
extern const char __executable_start;
void __cyg_profile_func_enter(void* function, void* caller);
void __cyg_profile_func_exit(void* function, void* caller);
}

namespace {

constexpr std::uint64_t kSlots = 1 << 15;  // twice as many as the functions that any program calls

struct File {
  char program[4096];
  std::atomic<std::uint64_t> functions[kSlots];  // address less that of the program's begin; 0: empty
};

// Where nothing is to be recorded, and until a file is there.
File nothing;
std::atomic<File*> table = nullptr;

[[gnu::no_instrument_function]] File* open_table() {
  const char* folder = std::getenv("TEST_COVERAGE_FOLDER");
  if (!folder) return &nothing;
  char path[4096];
  std::snprintf(path, sizeof path, "%s/%d.XXXXXX", folder, static_cast<int>(getpid()));
  const int file = mkstemp(path);
  if (file < 0 || ftruncate(file, sizeof(File)) != 0) return &nothing;
  void* memory = mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) return &nothing;
  auto* opened = static_cast<File*>(memory);
  if (readlink("/proc/self/exe", opened->program, sizeof opened->program - 1) < 0) opened->program[0] = 0;
  return opened;
}

[[gnu::no_instrument_function]] void note(std::uint64_t address) {
  File* now = table.load(std::memory_order_acquire);
  if (!now) {
    File* opened = open_table();
    now = table.compare_exchange_strong(now, opened) ? opened : table.load();
  }
  for (std::uint64_t i = (address * 0x9e3779b97f4a7c15u) >> 49, tries = 0; tries < kSlots;
       i = (i + 1) % kSlots, ++tries) {
    std::uint64_t seen = now->functions[i].load(std::memory_order_relaxed);
    if (seen == address) return;
    if (seen == 0 && (now->functions[i].compare_exchange_strong(seen, address) || seen == address)) return;
  }
}

}  // namespace

[[gnu::no_instrument_function]] void __cyg_profile_func_enter(void* function, void*) {
  note(reinterpret_cast<std::uint64_t>(function) - reinterpret_cast<std::uint64_t>(&__executable_start));
}
[[gnu::no_instrument_function]] void __cyg_profile_func_exit(void*, void*) {}
