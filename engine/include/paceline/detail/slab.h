#pragma once
// Memory for many small objects of one type. A thread takes and gives back through its own list; lists travel between
// threads in whole batches, because tasks are made by one thread and end in another. Memory is kept until the process
// ends: an object may outlive its engine.

#include <paceline/mutex.h>

#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace paceline::detail {

template <class T>
class Slab {
 public:
  // Uninitialised memory for one T.
  static void* take() {
    Cache& cache = local();
    if (!cache.first) refill(cache);
    Node* node = cache.first;
    cache.first = node->next;
    --cache.size;
    return node;
  }

  // The object has been destroyed.
  static void give(void* memory) {
    Cache& cache = local();
    cache.first = new (memory) Node{cache.first};
    if (++cache.size >= 2 * kBatch) hand_over(cache);
  }

 private:
  struct Node {
    Node* next;
  };
  struct Cache {
    Node* first = nullptr;
    std::size_t size = 0;
    ~Cache() {
      while (size >= kBatch) hand_over(*this);
      if (!first) return;
      const Lock lock(shared().mutex);
      shared().batches.push_back(std::exchange(first, nullptr));
      size = 0;
    }
  };
  struct Shared {
    Mutex mutex;
    std::vector<Node*> batches PACELINE_GUARDED_BY(mutex);
    std::vector<void*> chunks PACELINE_GUARDED_BY(mutex);
  };
  static constexpr std::size_t kBatch = 64;

  static Shared& shared() {
    static Shared& instance = *new Shared;
    return instance;
  }

  static Cache& local() {
    static thread_local Cache cache;
    return cache;
  }

  static void refill(Cache& cache) {
    Shared& from = shared();
    {
      const Lock lock(from.mutex);
      if (!from.batches.empty()) {
        cache.first = from.batches.back();
        from.batches.pop_back();
      }
    }
    if (cache.first) {
      for (Node* node = cache.first; node; node = node->next) ++cache.size;
      return;
    }
    auto* chunk = static_cast<std::byte*>(::operator new(kBatch * sizeof(T), std::align_val_t(alignof(T))));
    for (std::size_t i = kBatch; i-- > 0;) cache.first = new (chunk + i * sizeof(T)) Node{cache.first};
    cache.size = kBatch;
    const Lock lock(from.mutex);
    from.chunks.push_back(chunk);
  }

  static void hand_over(Cache& cache) {
    Node* first = cache.first;
    Node* last = first;
    for (std::size_t i = 1; i < kBatch; ++i) last = last->next;
    cache.first = last->next;
    cache.size -= kBatch;
    last->next = nullptr;
    const Lock lock(shared().mutex);
    shared().batches.push_back(first);
  }
};

}  // namespace paceline::detail
