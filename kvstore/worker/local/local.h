#pragma once
#include <paceline/aggregate.h>
#include <paceline/backend.h>
#include <paceline/kvstore.h>
#include <paceline/updater.h>

#include <memory>
#include <string>

namespace paceline {

// Modes `local` and `device`: this process holds the weights, and engine tasks update them. Each run of a program gives
// the same bits, with every kind of engine. A float32 key whose first values are on an accelerator stays there, with
// the optimizer's state. Its gradients are summed and applied on that device. The weights of other keys are on the CPU.
// They are in the caller's array if that is shared, contiguous and float32, and holds no running statistics. Otherwise
// the store keeps a copy. Gradients of several devices are summed on the CPU, or in
// `device` on the first of the devices.
class LocalBackend : public Backend {
 public:
  // The next members are for a backend that wraps this one.

  struct Weights {
    std::string key;
    int slice = 0;  // number in the updater
    Shape shape;
    DType dtype = DType::kFloat32;
    Variable variable;  // orders accesses to the weights
  };
  virtual Weights weights_of(const std::string& key) const = 0;
  virtual Updater& updater() = 0;
};

struct LocalSettings {
  bool sums_on_device = false;
  bool several_devices = false;           // one call may push gradients of several devices for a key
  Aggregate aggregate = Aggregate::kSum;  // how these gradients are combined
  // False for a backend that wraps this one, because it needs all weights in the updater.
  bool updates_in_place = false;
};
std::unique_ptr<LocalBackend> make_local_backend(const StoreOptions& options, const LocalSettings& settings);

}  // namespace paceline
