#pragma once
// A run is a contiguous range of elements in the payload of a message. Small runs are copied and share a frame. A large
// run with an owner travels without a copy, in a frame of its own, or in one frame with the run right before it in the
// same array. Every run is within one frame, at an offset that is a multiple of 8 bytes.

#include <paceline/detail/host_memory.h>
#include <paceline/error.h>
#include <paceline/transport.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <memory>
#include <vector>

namespace paceline {

constexpr std::size_t kLargeRun = 32 << 10;

inline std::size_t padded(std::size_t bytes) { return (bytes + 7) / 8 * 8; }

class PayloadWriter {
 public:
  // A hint: the next copied runs have about that many bytes in all.
  void reserve(std::size_t bytes) { next_capacity_ = std::clamp(bytes, kLeastRoom, kMostRoom); }
  // Adds a run. `owner` keeps `data` alive. If `owner` is null, or the run is small, the bytes are copied. `may_change`
  // is as in Frame.
  void add(const void* data, std::size_t bytes, std::shared_ptr<const void> owner, bool may_change = false) {
    if (bytes == 0) return;
    if (bytes >= kLargeRun && owner) {
      if (!room_ && !frames_.empty()) {
        Frame& last = frames_.back();
        if (last.owner == owner && last.may_change == may_change && last.data + last.size == data &&
            last.size % 8 == 0) {
          last.size += bytes;
          return;
        }
      }
      close();
      frames_.push_back({std::move(owner), static_cast<const std::byte*>(data), bytes, may_change});
      return;
    }
    std::memcpy(room(bytes), data, bytes);
  }
  // Returns memory for the next run. The caller writes the run there before finish().
  std::byte* room(std::size_t bytes) {
    if (!room_ || used_ + padded(bytes) > capacity_) {
      close();
      capacity_ = std::max(next_capacity_, padded(bytes));
      // The memory pool keeps free blocks by size. Few different sizes therefore leave few blocks unused.
      if (capacity_ < kMostRoom) capacity_ = std::bit_ceil(capacity_);
      next_capacity_ = std::min(next_capacity_ * 4, kMostRoom);
      room_ = detail::allocate_host(capacity_);
    }
    used_ += padded(bytes);
    return room_.get() + used_ - padded(bytes);
  }

  std::vector<Frame> finish() {
    close();
    return std::move(frames_);
  }

 private:
  static constexpr std::size_t kLeastRoom = 1024, kMostRoom = std::size_t{1} << 20;  // small messages need little room

  void close() {
    if (room_ && used_ > 0) frames_.push_back({room_, room_.get(), used_});
    room_.reset();
    used_ = 0;
  }

  std::vector<Frame> frames_;
  std::shared_ptr<std::byte[]> room_;
  std::size_t used_ = 0, capacity_ = 0, next_capacity_ = kLeastRoom;
};

// Reads the runs of a payload. `frames` must outlive the reader and the pointers that next() returns.
class PayloadReader {
 public:
  explicit PayloadReader(const std::vector<Frame>& frames) : frames_(frames) {}

  // Returns the next run, aligned to 8 bytes. Copies the run if its bytes did not arrive aligned. Throws Corrupt if the
  // payload is too short.
  const std::byte* next(std::size_t bytes) {
    if (bytes == 0) return nullptr;
    if (frame_ < frames_.size() && offset_ >= frames_[frame_].size) {
      ++frame_;
      offset_ = 0;
    }
    if (frame_ >= frames_.size() || frames_[frame_].size - offset_ < bytes)
      throw Corrupt(str("frame ", frame_, " of the payload holds fewer than the ", bytes, " bytes announced"));
    const std::byte* data = frames_[frame_].data + offset_;
    offset_ += padded(bytes);
    if (reinterpret_cast<std::uintptr_t>(data) % 8 == 0) return data;
    copies_.emplace_back(new std::byte[bytes]);
    std::memcpy(copies_.back().get(), data, bytes);
    return copies_.back().get();
  }

  // Throws Corrupt unless every byte was read.
  void expect_end() const {
    if (frames_.size() > frame_ + 1 || (frame_ < frames_.size() && offset_ < frames_[frame_].size))
      throw Corrupt("the payload holds more than was announced");
  }

  // The copies that next() made for alignment. Keep them as long as the pointers that next() returned.
  std::vector<std::unique_ptr<std::byte[]>> take_copies() { return std::move(copies_); }

 private:
  const std::vector<Frame>& frames_;
  std::size_t frame_ = 0, offset_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace paceline
