#pragma once
#include <paceline/exchange.h>
#include <paceline/kvstore.h>

#include <memory>

namespace paceline {

// Modes `local` and `device`: this process holds the weights, and engine tasks update them. Made again from the same
// program, results are the same bits, whatever the engine. Gradients of several devices are summed on the CPU, or on the
// first of the devices; the weights and their rules are on the CPU in both.
std::unique_ptr<Exchange> make_local_exchange(const StoreOptions& options, bool sums_on_device);

}  // namespace paceline
