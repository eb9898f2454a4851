#pragma once
#include <paceline/exchange.h>
#include <paceline/kvstore.h>
#include <paceline/updater.h>

#include <memory>
#include <string>

namespace paceline {

// Modes `local` and `device`: this process holds the weights, and engine tasks update them. Made again from the same
// program, results are the same bits, whatever the engine. Gradients of several devices are summed on the CPU, or on the
// first of the devices; the weights and their rules are on the CPU in both.
class LocalExchange : public Exchange {
 public:
  // For an exchange that wraps this one.

  struct Weights {
    std::string key;
    int slice = 0;  // in the updater
    Shape shape;
    DType dtype = DType::kFloat32;
    Variable variable;  // stands for them
  };
  virtual Weights weights_of(const std::string& key) const = 0;
  virtual Updater& updater() = 0;
};

std::unique_ptr<LocalExchange> make_local_exchange(const StoreOptions& options, bool sums_on_device);

}  // namespace paceline
