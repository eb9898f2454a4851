#pragma once
// Mode ring: all-reduce among the workers, no servers.

#include <paceline/aggregate.h>
#include <paceline/backend.h>
#include <paceline/cluster.h>
#include <paceline/kvstore.h>

#include <memory>

#include "send/compression_setting.h"

namespace paceline {

// The options in the mode's text, except the transport.
struct RingSetting {
  Aggregate aggregate = Aggregate::kMean;
  CompressionSetting compression;
};

// Reads the options of mode ring. Throws InvalidArgument for options that `ring` does not have, and for a job with
// servers. The text may name codecs of `own`.
RingSetting check_ring(const Spec& mode, const ClusterConfig& config, const Extensions& own);
// Joins the job. Blocks and throws as Node::join() does.
std::unique_ptr<Backend> make_ring_backend(const ClusterConfig& config, const Spec& mode, const StoreOptions& options);

}  // namespace paceline
