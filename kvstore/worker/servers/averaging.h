#pragma once
// Mode dist_local. Every worker trains alone with its own Updater, as in mode `local`. Every `steps` steps, workers and
// servers exchange weights, in one of the forms of AveragingOptions.

#include <paceline/backend.h>
#include <paceline/kvstore.h>

#include <memory>

#include "mode/averaging_options.h"
#include "servers/servers.h"

namespace paceline {

// Throws InvalidArgument for options that local training does not have.
void check_averaging(const ModeSetting& setting, const AveragingOptions& averaging);

// Makes a backend that owns `servers`, a backend of mode dist_local. A step of `servers` is a round of the result.
std::unique_ptr<Backend> make_averaging_backend(std::unique_ptr<ServersBackend> servers,
                                                const AveragingOptions& averaging, const StoreOptions& options);

}  // namespace paceline
