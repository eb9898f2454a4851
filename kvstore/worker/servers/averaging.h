#pragma once
// Mode dist_local: every worker trains by itself with an Updater of its own, as mode `local` does, and every `steps`
// steps the weights of all meet at the servers.

#include <paceline/backend.h>
#include <paceline/kvstore.h>

#include <memory>

#include "mode/averaging_options.h"
#include "servers/servers.h"

namespace paceline {

// Throws InvalidArgument where the mode's text asks for what local training does not have.
void check_averaging(const ModeSetting& setting);

// Owns the backend with the servers, whose mode is dist_local; a step of that one is a round of this.
std::unique_ptr<Backend> make_averaging_backend(std::unique_ptr<ServersBackend> servers, const Spec& mode,
                                                const StoreOptions& options);

}  // namespace paceline
