#pragma once
// A list whose elements never move, with nothing beside each.

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

namespace paceline {

template <class T>
class Blocks {
 public:
  Blocks() = default;
  ~Blocks() {
    for (std::size_t i = 0; i < size_; ++i) std::destroy_at(&(*this)[i]);
    for (T* const block : blocks_) std::allocator<T>().deallocate(block, kLength);
  }
  Blocks(const Blocks&) = delete;
  Blocks& operator=(const Blocks&) = delete;

  template <class... Arguments>
  T& emplace_back(Arguments&&... arguments) {
    if (size_ == blocks_.size() * kLength) {
      blocks_.reserve(blocks_.size() + 1);
      blocks_.push_back(std::allocator<T>().allocate(kLength));
    }
    T* const element = std::construct_at(&(*this)[size_], std::forward<Arguments>(arguments)...);
    ++size_;
    return *element;
  }
  std::size_t size() const { return size_; }
  const T& operator[](std::size_t i) const { return blocks_[i / kLength][i % kLength]; }
  T& operator[](std::size_t i) { return blocks_[i / kLength][i % kLength]; }

 private:
  static constexpr std::size_t kLength = 1024;

  std::vector<T*> blocks_;
  std::size_t size_ = 0;
};

}  // namespace paceline
