#pragma once
// The memory of an emulated device: an address range of its own that is closed but for the time in which the device
// works. Each allocation has pages of its own, which hold junk before its first use and after its end.

#include "clock.h"

#include <map>
#include <optional>

namespace cuda_emulation {

class Memory {
 public:
  static constexpr std::size_t kCapacity = std::size_t{16} << 30;

  Memory();

  // ---- when a call is issued

  // Addresses for an allocation that is ordered after `known`, or null.
  void* reserve(std::size_t bytes, const Clock& known);
  // The program no longer knows `memory`, whose pages go at `end`. False where there is no such allocation.
  bool give_up(void* memory, const Point& end);
  // How many bytes there are from `memory` to the end of its allocation; nothing where there is none.
  std::optional<std::size_t> bytes_from(const void* memory) const;
  std::size_t bytes_in_use() const { return in_use_; }

  // ---- when it happens; the memory must be open

  void begin(void* memory, std::size_t bytes, const Point& begin);
  void end(void* memory);

  // Opens what an operation may touch that is ordered after `known`.
  void open(const Clock& known);
  void close();

  bool contains(const void* memory) const {
    return static_cast<const char*>(memory) >= base_ && static_cast<const char*>(memory) < base_ + kCapacity;
  }

 private:
  struct Block {
    std::size_t size;
    std::size_t reserved = 0;  // bytes that were asked for, by who knows the address now
    bool is_reserved = false;
    Point gone;                  // when the one before ends
    std::size_t there = 0;       // bytes of what is there now
    std::optional<Point> began;  // nothing is there now, only junk
  };

  void protect(char* from, std::size_t bytes, bool may_touch) const;

  char* base_ = nullptr;
  std::size_t used_ = 0, in_use_ = 0;
  bool open_ = false;
  std::map<char*, Block> blocks_;
};

}  // namespace cuda_emulation
