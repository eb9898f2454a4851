#pragma once
// Events in the order of (time, number of the event): the same run from the same seed, also where times are equal.

#include <algorithm>
#include <cstdint>
#include <vector>

namespace paceline::sim {

struct Event {
  double time = 0;
  std::uint64_t number = 0;
  double last_byte = 0;  // of a message whose first byte arrives
  std::int32_t kind = 0;
  std::int32_t worker = 0;
  std::int32_t item = 0;  // a slice, a layer, or the attempt of a computation

  bool before(const Event& other) const { return time != other.time ? time < other.time : number < other.number; }
};

// A heap of four children a node: half the levels, and so half the cache misses, of one of two.
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }
  std::uint64_t pushed() const { return pushed_; }

  void push(Event event) {
    event.number = pushed_++;
    std::size_t place = heap_.size();
    heap_.push_back(event);
    while (place > 0) {
      const std::size_t parent = (place - 1) / 4;
      if (!event.before(heap_[parent])) break;
      heap_[place] = heap_[parent];
      place = parent;
    }
    heap_[place] = event;
  }

  Event pop() {
    const Event first = heap_.front();
    const Event last = heap_.back();
    heap_.pop_back();
    const std::size_t size = heap_.size();
    if (size == 0) return first;
    std::size_t place = 0;
    for (;;) {
      const std::size_t begin = 4 * place + 1, end = std::min(begin + 4, size);
      if (begin >= size) break;
      std::size_t smallest = begin;
      for (std::size_t child = begin + 1; child < end; ++child)
        if (heap_[child].before(heap_[smallest])) smallest = child;
      if (!heap_[smallest].before(last)) break;
      heap_[place] = heap_[smallest];
      place = smallest;
    }
    heap_[place] = last;
    return first;
  }

 private:
  std::vector<Event> heap_;
  std::uint64_t pushed_ = 0;
};

}  // namespace paceline::sim
