// Runs the blocks of a kernel one after the other. A fiber takes one thread after the other; where a thread stops at a
// barrier, the fiber stays behind with it and another one takes the threads that are left.
#include "block.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

namespace cuda_emulation {

Position position;

namespace {

constexpr int kMostThreads = 1024;
constexpr std::size_t kStackBytes = 256 << 10;

enum class State { kIdle, kRuns, kAtBlockBarrier, kAtWarpBarrier };

struct Fiber {
  ucontext_t start;
  jmp_buf at;
  bool started = false;
  State state = State::kIdle;
  int thread = 0;
  unsigned mask = 0;
  std::source_location where;
};

// One kernel at a time: all of this belongs to the thread that runs the operations of streams.
std::vector<std::unique_ptr<Fiber>> fibers;
std::vector<bool> ended;  // by thread
Fiber* current = nullptr;
jmp_buf scheduler;
const char* kernel_name = "";
const std::function<void()>* kernel = nullptr;
int threads = 0, taken = 0;
// Thread number k to run is first + step * k, around the end.
int first = 0, step = 1;
std::vector<const void*> shared;  // by this block
alignas(kSlotBytes) char slots[kMostThreads][kSlotBytes];

void become(int thread) {
  const dim3& size = position.block_size;
  const auto t = static_cast<unsigned>(thread);
  position.thread = dim3(t % size.x, t / size.x % size.y, t / (size.x * size.y));
}

int in_order(int k) { return ((first + step * k) % threads + threads) % threads; }

void switch_to_scheduler() {
  if (_setjmp(current->at) == 0) _longjmp(scheduler, 1);
}

void fiber_main() {
  for (;;) {
    while (taken < threads) {
      current->thread = in_order(taken++);
      become(current->thread);
      (*kernel)();
      ended[static_cast<std::size_t>(current->thread)] = true;
    }
    current->state = State::kIdle;
    switch_to_scheduler();
  }
}

void resume(Fiber& fiber) {
  current = &fiber;
  const bool goes_on = fiber.state != State::kIdle;
  fiber.state = State::kRuns;
  if (goes_on) become(fiber.thread);
  if (_setjmp(scheduler) != 0) return;
  if (fiber.started) _longjmp(fiber.at, 1);
  fiber.started = true;
  setcontext(&fiber.start);
}

Fiber& idle_fiber() {
  for (const auto& fiber : fibers)
    if (fiber->state == State::kIdle) return *fiber;
  auto fiber = std::make_unique<Fiber>();
  getcontext(&fiber->start);
  void* const stack =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) fail("the host has no memory left for a thread of a kernel");
  fiber->start.uc_stack = {.ss_sp = stack, .ss_flags = 0, .ss_size = kStackBytes};
  fiber->start.uc_link = nullptr;
  makecontext(&fiber->start, fiber_main, 0);
  fibers.push_back(std::move(fiber));
  return *fibers.back();
}

// The fibers whose barrier all have reached that it waits for.
std::vector<Fiber*> released() {
  std::vector<Fiber*> by_thread(static_cast<std::size_t>(threads), nullptr), result;
  bool whole_block = true;
  for (const auto& fiber : fibers)
    if (fiber->state != State::kIdle) by_thread[static_cast<std::size_t>(fiber->thread)] = fiber.get();
  for (int t = 0; t < threads; ++t) {
    const Fiber* const fiber = by_thread[static_cast<std::size_t>(t)];
    whole_block = whole_block && (!fiber || fiber->state == State::kAtBlockBarrier);
    if (!fiber || fiber->state != State::kAtWarpBarrier) continue;
    bool all = true;
    for (int lane = 0; lane < kWarp; ++lane) {
      const int other = t / kWarp * kWarp + lane;
      if ((fiber->mask >> lane & 1) == 0) continue;
      if (other >= threads || ended[static_cast<std::size_t>(other)])
        fail("lanes wait in a warp for one that is not there");
      const Fiber* const its = by_thread[static_cast<std::size_t>(other)];
      all = all && its && its->state == State::kAtWarpBarrier && its->mask == fiber->mask;
    }
    if (all) result.push_back(by_thread[static_cast<std::size_t>(t)]);
  }
  if (!result.empty() || !whole_block) return result;
  for (Fiber* fiber : by_thread) {
    if (!fiber) continue;
    if (!result.empty() && fiber->where.line() != result[0]->where.line())
      fail("threads of a block wait at different __syncthreads()");
    result.push_back(fiber);
  }
  return result;
}

void run_block(std::mt19937_64& random) {
  taken = 0;
  shared.clear();
  ended.assign(static_cast<std::size_t>(threads), false);
  step = random() % 2 ? 1 : -1;
  first = static_cast<int>(random() % static_cast<unsigned>(threads));
  while (taken < threads) resume(idle_fiber());
  for (;;) {
    std::vector<Fiber*> next = released();
    if (next.empty()) break;
    const std::size_t offset = random() % next.size();
    const bool backwards = random() % 2 != 0;
    for (std::size_t k = 0; k < next.size(); ++k)
      resume(*next[(offset + (backwards ? next.size() - k : k)) % next.size()]);
  }
  for (const bool has_ended : ended)
    if (!has_ended) fail("threads wait at a barrier that others do not come to");
}

}  // namespace

void sync_block(const std::source_location& where) {
  current->state = State::kAtBlockBarrier;
  current->where = where;
  switch_to_scheduler();
}

void sync_warp(unsigned mask) {
  if ((mask >> (current->thread % kWarp) & 1) == 0) fail("a lane calls for a mask that it is not in");
  current->state = State::kAtWarpBarrier;
  current->mask = mask;
  switch_to_scheduler();
}

void share(void* memory, std::size_t bytes) {
  if (std::find(shared.begin(), shared.end(), memory) != shared.end()) return;
  std::memset(memory, 0xff, bytes);
  shared.push_back(memory);
}

void* slot_of(int thread) { return slots[thread]; }
int linear_thread() { return current->thread; }

void fail(const char* text) {
  std::fprintf(stderr, "cuda emulation: kernel %s, block (%u, %u, %u): %s\n", kernel_name, position.block.x,
               position.block.y, position.block.z, text);
  std::abort();
}

void run_kernel(const char* name, dim3 grid, dim3 block, const std::function<void()>& thread, std::mt19937_64& random) {
  kernel_name = name;
  kernel = &thread;
  threads = static_cast<int>(block.x * block.y * block.z);
  position.block_size = block;
  position.grid_size = grid;
  const std::uint64_t blocks = std::uint64_t{grid.x} * grid.y * grid.z, from = random() % blocks;
  for (std::uint64_t k = 0; k < blocks; ++k) {
    const std::uint64_t b = (from + k) % blocks;
    position.block = dim3(static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                          static_cast<unsigned>(b / grid.x / grid.y));
    run_block(random);
  }
}

}  // namespace cuda_emulation
