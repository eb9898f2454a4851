#include "guard.h"

#include <paceline/error.h>
#include <paceline/mutex.h>

#include <omp.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <unordered_map>
#include <vector>

namespace paceline::detail {
namespace {

// Released arrays that stay out of reach, at most.
constexpr std::size_t kReleasedArrays = 256;
constexpr std::size_t kReleasedBytes = std::size_t{64} << 20;

struct Block {
  std::byte* begin;
  std::size_t bytes;  // whole pages
  const Engine* engine;
  const VariableState* variable;
  std::string name;
  int readers = 0, writers = 0;  // running tasks that declared it
  int strangers = 0;             // running tasks that did not, each alone in the engine
  bool unguarded = false;
  bool released = false;
  int protection = PROT_READ | PROT_WRITE;  // of the pages now

  int wanted() const {
    if (unguarded) return PROT_READ | PROT_WRITE;
    if (released) return PROT_NONE;
    if (writers > 0) return PROT_READ | PROT_WRITE;
    if (readers > 0) return PROT_READ;
    return strangers > 0 ? PROT_NONE : PROT_READ | PROT_WRITE;
  }
  void protect(int wanted) {
    if (wanted == protection) return;
    mprotect(begin, bytes, wanted);
    protection = wanted;
  }
};
using BlockPointer = std::shared_ptr<Block>;

enum class Wrong { kUndeclared, kReadOnly, kReleased, kFromOutside };

// The work of one task on one thread.
struct Run {
  const Engine* engine;
  const char* task;
  bool alone;
  std::vector<std::pair<BlockPointer, bool>> declared;  // and whether it is written
  std::vector<BlockPointer> others;                     // put out of reach
  BlockPointer touched = nullptr;                       // against the rules, first of all
  Wrong wrong = Wrong::kUndeclared;
  Run* outer = nullptr;  // of this thread
  Run* next = nullptr;   // of all threads

  bool declares(const Block* block) const {
    return std::any_of(declared.begin(), declared.end(), [block](const auto& one) { return one.first.get() == block; });
  }
  void note(const BlockPointer& block, Wrong what) {
    if (touched) return;
    touched = block;
    wrong = what;
  }
  std::string message() const {
    if (!touched) return {};
    switch (wrong) {
      case Wrong::kUndeclared:
        return str("the task '", task, "' touches ", touched->name, ", which it did not declare");
      case Wrong::kReadOnly:
        return str("the task '", task, "' writes ", touched->name, ", which it declared only to read");
      case Wrong::kReleased: return str("the task '", task, "' touches ", touched->name, ", whose memory was released");
      case Wrong::kFromOutside: break;
    }
    return str("something outside the engine writes ", touched->name, " while the task '", task, "' reads it");
  }
};

thread_local Run* this_run = nullptr;

class Guard final : public TaskGuard {
 public:
  Guard() {
    struct sigaction action = {};
    action.sa_sigaction = [](int, siginfo_t* info, void*) { instance().fault(info->si_addr); };
    action.sa_flags = SA_SIGINFO;
    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &before_);
    set_task_guard(this);
  }

  static Guard& instance() {
    static Guard& guard = *new Guard;
    return guard;
  }

  void enter(const Engine* engine, const char* task, std::span<const Declaration> declared, bool alone) override {
    auto* run = new Run{engine, task, alone, {}, {}};
    const Lock lock(mutex_);
    for (const auto& [variable, writes] : declared)
      if (const auto found = by_variable_.find(variable); found != by_variable_.end()) {
        run->declared.emplace_back(found->second, writes);
        ++(writes ? found->second->writers : found->second->readers);
      }
    if (alone)
      for (const auto& [variable, block] : by_variable_)
        if (block->engine == engine && !run->declares(block.get())) {
          run->others.push_back(block);
          ++block->strangers;
        }
    protect(*run);
    run->outer = this_run;
    run->next = runs_;
    this_run = runs_ = run;
  }

  std::string leave() override {
    const std::unique_ptr<Run> run(this_run);
    const Lock lock(mutex_);
    this_run = run->outer;
    Run** at = &runs_;
    while (*at != run.get()) at = &(*at)->next;
    *at = run->next;
    for (const auto& [block, writes] : run->declared) --(writes ? block->writers : block->readers);
    for (const BlockPointer& block : run->others) --block->strangers;
    protect(*run);
    return run->message();
  }

  std::shared_ptr<void> allocate(Engine& engine, const Variable& variable, std::size_t bytes) {
    const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    constexpr std::size_t kAddressable = std::size_t{1} << 47;
    const std::size_t pages = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
    void* memory = bytes < kAddressable
                       ? mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
                       : MAP_FAILED;
    if (memory == MAP_FAILED) throw OutOfMemory(str("the host has no ", bytes, " bytes left"));
    std::memset(memory, 0xff, pages);
    const auto block = std::make_shared<Block>(
        Block{static_cast<std::byte*>(memory), pages, &engine, variable.state(), str(bytes, " bytes")});
    const Lock lock(mutex_);
    block->name = str("array ", ++arrays_, ", ", bytes, " bytes on cpu");
    by_variable_[block->variable] = block;
    by_address_[block->begin] = block;
    return {memory, [this, block](void*) { release(block); }};
  }

  void describe(const void* memory, const std::string& description) {
    const Lock lock(mutex_);
    if (const BlockPointer block = at(memory))
      block->name.replace(block->name.find(", ") + 2, std::string::npos, description);
  }

  std::string name(const void* memory) {
    const Lock lock(mutex_);
    const BlockPointer block = at(memory);
    return block ? block->name : std::string();
  }

  void leave_unguarded(const void* memory) {
    const Lock lock(mutex_);
    if (const BlockPointer block = at(memory)) {
      block->unguarded = true;
      block->protect(block->wanted());
    }
  }

 private:
  void protect(const Run& run) PACELINE_REQUIRES(mutex_) {
    for (const auto& [block, writes] : run.declared) block->protect(block->wanted());
    for (const BlockPointer& block : run.others) block->protect(block->wanted());
  }

  BlockPointer at(const void* memory) PACELINE_REQUIRES(mutex_) {
    auto next = by_address_.upper_bound(static_cast<const std::byte*>(memory));
    if (next == by_address_.begin()) return nullptr;
    const BlockPointer& block = std::prev(next)->second;
    return memory < block->begin + block->bytes ? block : nullptr;
  }

  void release(const BlockPointer& block) {
    const Lock lock(mutex_);
    block->protect(PROT_READ | PROT_WRITE);
    std::memset(block->begin, 0xff, block->bytes);
    block->released = true;
    block->unguarded = false;
    block->protect(block->wanted());
    by_variable_.erase(block->variable);
    released_.push_back(block);
    released_bytes_ += block->bytes;
    while (released_.size() > kReleasedArrays || released_bytes_ > kReleasedBytes) {
      Block& oldest = *released_.front();
      munmap(oldest.begin, oldest.bytes);
      released_bytes_ -= std::exchange(oldest.bytes, 0);
      by_address_.erase(oldest.begin);
      released_.pop_front();
    }
  }

  // On the thread that touched the memory, which does not hold the lock: the guard itself touches open pages only.
  void fault(void* address) {
    const Lock lock(mutex_);
    const BlockPointer block = at(address);
    if (!block || !judge(block)) {
      sigaction(SIGSEGV, &before_, nullptr);  // touching it again is for whoever was here before
      return;
    }
    block->protect(PROT_READ | PROT_WRITE);
  }

  // Notes who did wrong; false where nobody can be told but by the signal.
  bool judge(const BlockPointer& block) PACELINE_REQUIRES(mutex_) {
    if (this_run) {
      const bool declared = !block->released && this_run->declares(block.get());
      this_run->note(block, block->released ? Wrong::kReleased : declared ? Wrong::kReadOnly : Wrong::kUndeclared);
      return true;
    }
    const bool team = omp_in_parallel();  // of some task
    for (Run* run = runs_; run; run = run->next) {
      const bool declares = run->declares(block.get());
      if (declares && !block->released) {
        run->note(block, team ? Wrong::kReadOnly : Wrong::kFromOutside);
        return true;
      }
      if (!declares && team && (block->released || (run->alone && run->engine == block->engine))) {
        run->note(block, block->released ? Wrong::kReleased : Wrong::kUndeclared);
        return true;
      }
    }
    if (!block->released) return true;  // a thread beside the engine, which may
    static constexpr char kLead[] = "memory was touched outside the engine after its release: ";
    [[maybe_unused]] ssize_t written = write(STDERR_FILENO, kLead, sizeof kLead - 1);
    written = write(STDERR_FILENO, block->name.data(), block->name.size());
    written = write(STDERR_FILENO, "\n", 1);
    return false;
  }

  struct sigaction before_ = {};
  Mutex mutex_;
  std::unordered_map<const VariableState*, BlockPointer> by_variable_ PACELINE_GUARDED_BY(mutex_);
  std::map<const std::byte*, BlockPointer> by_address_ PACELINE_GUARDED_BY(mutex_);  // released ones too
  std::deque<BlockPointer> released_ PACELINE_GUARDED_BY(mutex_);
  std::size_t released_bytes_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::uint64_t arrays_ PACELINE_GUARDED_BY(mutex_) = 0;
  Run* runs_ PACELINE_GUARDED_BY(mutex_) = nullptr;
};

}  // namespace

std::shared_ptr<void> allocate_guarded(Engine& engine, const Variable& variable, std::size_t bytes) {
  return Guard::instance().allocate(engine, variable, bytes);
}

void describe_guarded(const void* memory, const std::string& description) {
  Guard::instance().describe(memory, description);
}

std::string name_of_guarded(const void* memory) { return Guard::instance().name(memory); }

void leave_unguarded(const void* memory) { Guard::instance().leave_unguarded(memory); }

}  // namespace paceline::detail
