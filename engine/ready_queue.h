#pragma once
// Tasks that may run, the most urgent first: larger priority, then push order. Nearly all tasks have priority 0 and
// arrive in push order; they take the ring, the others a heap.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace paceline::detail {

struct Task;

class ReadyQueue {
 public:
  bool empty() const { return size() == 0; }
  std::size_t size() const { return ring_size_ + heap_.size(); }
  void add(Task* task);
  // Not on an empty queue.
  Task* take();

 private:
  struct Entry {
    std::int64_t priority;
    std::uint64_t id;
    Task* task;
    bool operator<(const Entry& other) const {
      return priority != other.priority ? priority < other.priority : id > other.id;
    }
  };

  void grow();

  std::vector<Entry> ring_ = std::vector<Entry>(64);  // a power of two
  std::size_t ring_first_ = 0;
  std::size_t ring_size_ = 0;
  std::uint64_t ring_last_id_ = 0;
  std::vector<Entry> heap_;
};

}  // namespace paceline::detail
