#pragma once
// Mode ring: all-reduce among the workers, no servers.

#include <paceline/aggregate.h>
#include <paceline/backend.h>
#include <paceline/cluster.h>
#include <paceline/kvstore.h>

#include <memory>

#include "send/compression_setting.h"

namespace paceline {

// What the mode's text says, but for the transport.
struct RingSetting {
  Aggregate aggregate = Aggregate::kMean;
  CompressionSetting compression;
};

// Throws InvalidArgument on options that `ring` does not have and on a job with servers. The codecs may be of `own`.
RingSetting check_ring(const Spec& mode, const ClusterConfig& config, const Extensions& own);
// Joins the job; blocks as Node::join() does, and throws the same.
std::unique_ptr<Backend> make_ring_backend(const ClusterConfig& config, const Spec& mode, const StoreOptions& options);

}  // namespace paceline
