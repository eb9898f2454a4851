#pragma once
// The slices of a worker's keys as its servers know them.

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "store.pb.h"

namespace paceline {

struct RemotePartition {
  std::uint32_t id = 0;
  std::size_t slices = 0;
  std::atomic<std::uint64_t> pushes{0};  // sequence number of the last push
};

struct RemoteSlice {
  RemotePartition* partition = nullptr;
  std::uint32_t number = 0;  // number in the partition
  std::int64_t begin = 0, end = 0;
  // Version of the worker's weights. Only tasks that write RemoteKey::order, or the `order` of the slice's part, use
  // it.
  std::uint64_t base = 0;
};

// Writes the parts of a request. Pass the slices ordered by partition, then by `need`.
class PartWriter {
 public:
  explicit PartWriter(wire::PushPullRequest& body) : body_(body) {}

  wire::Part& part_of(const RemoteSlice& slice, std::uint64_t need) {
    const std::uint32_t id = slice.partition->id;
    if (!part_ || part_->partition() != id || part_->need() != need) {
      part_ = body_.add_parts();
      part_->set_partition(id);
      part_->set_need(need);
    }
    return *part_;
  }
  static void push(wire::Part& part, const RemoteSlice& slice) {
    if (part.sequence() == 0) part.set_sequence(++slice.partition->pushes);
    part.add_push(slice.number);
    part.add_base(slice.base);
  }

 private:
  wire::PushPullRequest& body_;
  wire::Part* part_ = nullptr;
};

}  // namespace paceline
