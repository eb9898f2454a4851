// How large the shared heap becomes, and when there is none; what it does is in kvstore/shm_test.cc.

#include <gtest/gtest.h>
#include <paceline/detail/device_runtime.h>
#include <paceline/detail/memory_limit.h>
#include <paceline/detail/shared_heap.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>

namespace paceline::detail {
namespace {

// Ends the process with 0 if there is no heap, and prints the reason.
void enable_with_file_limit(rlim_t bytes) {
  const rlimit limit = {bytes, bytes};
  if (setrlimit(RLIMIT_FSIZE, &limit) != 0) std::_Exit(98);
  std::string why;
  const bool none = SharedHeap::enable(why) == nullptr;
  std::cerr << why << '\n';
  std::_Exit(none ? 0 : 99);
}

// A process that exceeds this limit gets SIGXFSZ, which ends it.
TEST(SharedHeap, ALimitOnFilesLeavesTheProcessWithoutOne) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(enable_with_file_limit(1 << 20), testing::ExitedWithCode(0), "limit on the size of files.*ulimit -f");
}

// Ends the process with 0 if memory from elsewhere is used again as soon as the heap is full, and not before.
void fill_the_heap() {
  DeviceRuntime& host = runtime(Device());
  constexpr std::size_t kBytes = kSmallestShared;
  void* const early = host.allocate(kBytes, MemoryKind::kNormal, nullptr);
  std::string why;
  SharedHeap* const heap = SharedHeap::enable(why, 2 * kBytes);
  const auto allocate = [&] { return host.allocate(kBytes, MemoryKind::kNormal, nullptr); };
  void* const first = allocate();
  void* const second = allocate();
  if (!heap->contains(first, kBytes) || !heap->contains(second, kBytes) || host.is_reusable(early, kBytes))
    std::_Exit(97);
  void* const late = allocate();
  if (heap->contains(late, kBytes) || !host.is_reusable(late, kBytes)) std::_Exit(98);
  host.release(first, kBytes, MemoryKind::kNormal, nullptr);
  std::_Exit(host.is_reusable(late, kBytes) ? 99 : 0);
}

TEST(SharedHeap, WhileItIsFullMemoryFromElsewhereIsUsedAgain) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(fill_the_heap(), testing::ExitedWithCode(0), "");
}

// A folder of control groups that is gone at the end of the test.
class Groups {
 public:
  Groups() : folder_(testing::TempDir() + "groups-" + std::to_string(getpid())) {}
  ~Groups() {
    std::error_code none;
    std::filesystem::remove_all(folder_, none);
  }
  Groups(const Groups&) = delete;

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = folder_ + "/" + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  // With the membership that a process would see.
  std::size_t limit(const std::string& membership) const {
    write("membership", membership);
    return memory_of_process(folder_ + "/membership", folder_);
  }

 private:
  const std::string folder_;
};

TEST(SharedHeap, IsNoLargerThanItsControlGroupsAllow) {
  const Groups groups;
  const std::size_t host = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * 4096;
  EXPECT_EQ(groups.limit(""), host);
  EXPECT_EQ(groups.limit("0::/absent\n"), host);

  groups.write("a/memory.max", "max\n");
  EXPECT_EQ(groups.limit("0::/a\n"), host);
  groups.write("a/b/memory.max", "67108864\n");
  EXPECT_EQ(groups.limit("0::/a/b\n"), 67108864);
  groups.write("a/memory.max", "33554432\n");
  EXPECT_EQ(groups.limit("0::/a/b\n"), 33554432) << "a group is within its parent";
  EXPECT_EQ(groups.limit("0::/\n"), host);

  groups.write("memory/c/memory.limit_in_bytes", "9223372036854771712\n");
  EXPECT_EQ(groups.limit("3:cpu:/\n2:memory:/c\n0::/\n"), host);
  groups.write("memory/memory.limit_in_bytes", "16777216\n");
  EXPECT_EQ(groups.limit("2:memory:/c\n"), 16777216);
  EXPECT_EQ(groups.limit("2:memory:/seen/from/outside\n"), 16777216) << "a container mounts its own group as the root";
  groups.write("memory/c/memory.limit_in_bytes", "nonsense");
  EXPECT_EQ(groups.limit("2:memory:/c\n"), 16777216);
}

}  // namespace
}  // namespace paceline::detail
