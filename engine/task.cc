#include "task.h"

#include <paceline/error.h>

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <vector>

namespace paceline::detail {
namespace {

// In the order of the variables' addresses. Where there are many, comparing them would take longer than all else that
// is done for them, so they are counted instead, a few bits of the address at a time.
void sort_by_variable(std::uintptr_t* begin, std::uintptr_t* end) {
  constexpr std::ptrdiff_t kMany = 512;
  constexpr int kBits = 11, kUnused = std::countr_zero(alignof(VariableState));
  if (end - begin < kMany) return std::sort(begin, end);
  const auto [least, most] = std::minmax_element(begin, end);
  const std::uintptr_t base = *least & ~(alignof(VariableState) - 1), range = *most - base;
  std::vector<std::uintptr_t> other(static_cast<std::size_t>(end - begin));
  std::uintptr_t *from = begin, *to = other.data();
  for (int shift = kUnused; shift < static_cast<int>(std::bit_width(range)); shift += kBits) {
    const auto digit = [&](std::uintptr_t tagged) { return (tagged - base) >> shift & ((1u << kBits) - 1); };
    std::array<std::uint32_t, std::size_t{1} << kBits> place = {};
    std::uintptr_t* const stop = from + (end - begin);
    for (const std::uintptr_t* at = from; at < stop; ++at) ++place[digit(*at)];
    std::exclusive_scan(place.begin(), place.end(), place.begin(), 0u);
    for (const std::uintptr_t* at = from; at < stop; ++at) to[place[digit(*at)]++] = *at;
    std::swap(from, to);
  }
  if (from != begin) std::copy_n(from, end - begin, begin);
}

}  // namespace

Task* Task::make(Kind kind, const TaskInfo& info, WorkerPool* pool, std::uint32_t engine,
                 std::span<const Variable> reads, std::span<const Variable> writes) {
  for (const auto variables : {reads, writes})
    for (const Variable& variable : variables) __builtin_prefetch(variable.state(), 1);
  for (const auto variables : {reads, writes})
    for (const Variable& variable : variables)
      if (!variable || variable.state()->engine != engine)
        throw InvalidArgument(
            str("[", info.name, "] was given ", variable ? "a variable of another engine" : "an empty variable"));

  const std::size_t most = reads.size() + writes.size();
  std::array<std::uintptr_t, kInlineAccesses> few;
  std::vector<std::uintptr_t> many(most > kInlineAccesses ? most : 0);
  std::uintptr_t* const begin = many.empty() ? few.data() : many.data();
  std::uintptr_t* end = begin;
  for (const Variable& variable : reads) *end++ = Access::tagged(variable.state(), kRead);
  for (const Variable& variable : writes) *end++ = Access::tagged(variable.state(), kWrite);
  sort_by_variable(begin, end);

  auto* task = new (Slab<Task>::take()) Task(kind, info, pool);
  if (most > kInlineAccesses) task->accesses = new Access[most];
  Access* last = task->accesses;
  for (const std::uintptr_t* at = begin; at < end; ++last) {
    std::uintptr_t tagged = *at++;
    while (at < end && Access::variable(*at) == Access::variable(tagged)) tagged |= *at++;
    last->set(tagged, task);
  }
  task->access_count = static_cast<std::uint32_t>(last - task->accesses);
  return task;
}

bool Task::declares(const VariableState* variable) const {
  return std::any_of(accesses, accesses + access_count,
                     [variable](const Access& access) { return access.variable() == variable; });
}

std::vector<Declaration> Task::declarations() const {
  std::vector<Declaration> all;
  for (const Access& access : std::span(accesses, access_count)) all.push_back({access.variable(), access.writes()});
  return all;
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
