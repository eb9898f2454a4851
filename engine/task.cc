#include "task.h"

#include <paceline/error.h>

#include <algorithm>

namespace paceline::detail {

Task* Task::make(Kind kind, const TaskInfo& info, WorkerPool* pool, std::uint32_t engine,
                 std::span<const Variable> reads, std::span<const Variable> writes) {
  for (const auto variables : {reads, writes})
    for (const Variable& variable : variables) __builtin_prefetch(variable.state(), 1);
  for (const auto variables : {reads, writes})
    for (const Variable& variable : variables)
      if (!variable || variable.state()->engine != engine)
        throw InvalidArgument(
            str("[", info.name, "] was given ", variable ? "a variable of another engine" : "an empty variable"));

  auto* task = new (Slab<Task>::take()) Task(kind, info, pool);
  const std::size_t most = reads.size() + writes.size();
  if (most > kInlineAccesses) task->accesses = new Access[most];
  Access* const begin = task->accesses;
  Access* end = begin;
  for (const Variable& variable : reads) (end++)->set(variable.state(), kRead, task);
  for (const Variable& variable : writes) (end++)->set(variable.state(), kWrite, task);

  const auto before = [](const Access& a, const Access& b) { return a.variable() < b.variable(); };
  if (most <= kInlineAccesses) {
    for (Access* next = begin + 1; next < end; ++next)
      for (Access* at = next; at > begin && before(*at, at[-1]); --at) std::swap(*at, at[-1]);
  } else {
    std::sort(begin, end, before);
  }
  Access* last = begin;
  for (Access* at = begin; at < end; ++at) {
    if (last > begin && last[-1].variable() == at->variable()) {
      last[-1].add_modes_of(*at);
    } else {
      *last++ = *at;
    }
  }
  task->access_count = static_cast<std::uint32_t>(last - begin);
  return task;
}

bool Task::declares(const VariableState* variable) const {
  return std::any_of(accesses, accesses + access_count,
                     [variable](const Access& access) { return access.variable() == variable; });
}

void Task::free(Task* task) {
  task->~Task();
  Slab<Task>::give(task);
}

Task::~Task() {
  if (accesses != inline_accesses) delete[] accesses;
  if (kind == Kind::kAsyncWork) {
    async_work.~UniqueFunction();
  } else {
    work.~UniqueFunction();
  }
}

}  // namespace paceline::detail
