#include "task.h"

#include <paceline/error.h>

#include <boost/container/small_vector.hpp>

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

  boost::container::small_vector<std::uintptr_t, kInlineAccesses> all(reads.size() + writes.size(),
                                                                      boost::container::default_init);
  std::uintptr_t* const end = all.data() + all.size();
  std::uintptr_t* next = all.data();
  for (const Variable& variable : reads) *next++ = Access::tagged(variable.state(), kRead);
  for (const Variable& variable : writes) *next++ = Access::tagged(variable.state(), kWrite);
  sort_by_variable(all.data(), end);

  auto* task = new (Slab<Task>::take()) Task(kind, info, pool);
  if (all.size() > kInlineAccesses) task->accesses = new Access[all.size()];
  Access* last = task->accesses;
  for (const std::uintptr_t* at = all.data(); at < end; ++last) {
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
