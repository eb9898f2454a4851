#pragma once
#include <paceline/exchange.h>
#include <paceline/kvstore.h>

#include <memory>

namespace paceline {

// Mode `local`: this process holds the weights, and engine tasks update them. Made again from the same program, results
// are the same bits, whatever the engine.
std::unique_ptr<Exchange> make_local_exchange(const StoreOptions& options);

}  // namespace paceline
