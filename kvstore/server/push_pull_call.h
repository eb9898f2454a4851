#pragma once
// A kPushPull request on its way through the shards of a server.

#include <paceline/compression.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dense_partition.h"
#include "payload.h"
#include "served_call.h"
#include "store.pb.h"

namespace paceline {

class ServerShard;
struct ServedPartition;

// A gradient in a request's payload.
struct PushedSlice {
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  const Codec* codec = nullptr;  // null: raw
};

struct PushPullCall final : ServedCall {
  // The request's part for one partition, and the answer of the partition's shard.
  struct Part {
    ServedPartition* partition = nullptr;
    std::vector<PushedSlice> gradients;
    std::vector<std::uint64_t> versions;       // of the pulled slices
    std::vector<std::uint64_t> encoded_bytes;  // of the pulled slices that are encoded
    PayloadWriter payload;
  };

  wire::PushPullRequest body;
  std::vector<Part> parts;
  std::vector<std::shared_ptr<const Codec>> codecs;   // that the request names
  std::vector<std::unique_ptr<std::byte[]>> aligned;  // copies of gradients that a transport did not align

  using ServedCall::ServedCall;
  WorkerIncarnation from() const { return {worker(), request.incarnation()}; }
  // Returns codec `number` of the request, counted from 1; null for 0. Throws Corrupt if the request names fewer
  // codecs.
  std::shared_ptr<const Codec> codec(std::uint32_t number) const;

 protected:
  Message answer() override;
};

}  // namespace paceline
