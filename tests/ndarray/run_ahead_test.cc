// Memory that is asked for when work is issued, bounded by what the engine has still to do.
#include <gtest/gtest.h>
#include <paceline/detail/run_ahead.h>
#include <paceline/kernel.h>
#include <paceline/mutex.h>

#include <optional>
#include <thread>
#include <vector>

#include "memory_pool.h"

namespace paceline::detail {
namespace {

constexpr std::int64_t kMegabyte = std::int64_t{1} << 20;

NDArray filled(const NDArray& from, std::int64_t bytes) {
  const NDArray out({bytes}, DType::kUint8);
  launch_host("fill", std::array{from}, std::array{out},
              [](const KernelContext&, std::span<const Tensor>, std::span<const Tensor>) {});
  return out;
}

TEST(RunAheadTest, ChainsOfLargeArraysTakeTheMemoryOfAFew) {
  for (const Device device : {Device("cpu"), Device("sim:0")}) {
    SCOPED_TRACE(device.name());
    MemoryPool& pool = memory_pool(device);
    constexpr std::int64_t kLinks = 400;
    const std::int64_t bytes = runtime(device).run_ahead_bytes() / 64;
    NDArray x = NDArray::full({bytes / 4}, 1, DType::kFloat32, device);
    x.wait();
    pool.restart_peak();
    const std::int64_t before = pool.statistics().bytes_in_use;
    for (std::int64_t i = 0; i < kLinks; ++i) {
      const NDArray next(x.shape(), x.dtype(), device);
      kernels::add(x, x, next);
      x = next;
    }
    x.wait();
    // 64 links and a few; more where a link took so long that the thread went on without room.
    EXPECT_LE(pool.restart_peak() - before, kLinks * bytes / 2);
  }
}

TEST(RunAheadTest, OtherThreadsGoOn) {
  const NDArray x = NDArray::full({16}, 1, DType::kUint8);
  const NDArray gate({16}, DType::kUint8);
  std::optional<Completion> open;
  Mutex mutex;
  default_engine().push_async({"gate"}, {}, std::array{gate.variable()}, [&](TaskContext&, Completion completion) {
    const Lock lock(mutex);
    open.emplace(std::move(completion));
  });
  std::vector<NDArray> blocked;
  while (static_cast<std::int64_t>(blocked.size()) * 16 * kMegabyte <= RunAhead::kMost)
    blocked.push_back(filled(gate, 16 * kMegabyte));
  std::thread([&] { filled(x, 16 * kMegabyte).wait(); }).join();
  // This thread would wait for room now; only it can make some, so it goes on after a while.
  blocked.push_back(filled(gate, 16 * kMegabyte));
  x.wait();
  {
    const Lock lock(mutex);
    open->done();
  }
  for (const NDArray& array : blocked) array.wait();
}

}  // namespace
}  // namespace paceline::detail
