// DANA-Slim (Hakimi et al. 2019): each worker keeps the optimizer's momentum.
#include <paceline/kernel.h>
#include <paceline/optimizer.h>

#include <algorithm>
#include <array>
#include <map>
#include <string_view>

#include "worker_rule/rules.h"

namespace paceline {
namespace {

class Dana final : public WorkerRule {
 public:
  Dana(double momentum, const Preparation& preparation, const Multipliers& multipliers)
      : momentum_(momentum), preparation_(preparation), multipliers_(multipliers) {}

  NDArray prepare(const std::string& key, const NDArray& gradient, const NDArray& weight) override {
    Slot& slot = slots_[key];
    if (slot.update.is_none()) {
      slot.update = NDArray(gradient.shape(), gradient.dtype(), gradient.device(), gradient.engine());
      slot.preparation = preparation_;
      slot.preparation.weight_decay *= multipliers_.of(key).weight_decay;
    }
    if (slot.velocity.is_none()) {
      slot.velocity = NDArray::zeros(gradient.shape(), gradient.dtype(), gradient.device(), gradient.engine());
    }
    require(slot.velocity.shape() == gradient.shape(), "[dana] the gradient of '", key, "' has shape ",
            gradient.shape(), ", expected ", slot.velocity.shape());
    // The task does not name the velocity as read. If a gradient has failed, the velocity stays as it is, and the next
    // gradient goes on from there.
    const std::array inputs{gradient.contiguous(), weight.contiguous()};
    const std::array outputs{slot.velocity, slot.update};
    const auto rule = [momentum = momentum_, preparation = slot.preparation](
                          const KernelContext&, std::span<const Tensor> in, std::span<const Tensor> out) {
      visit_floating(in[0].dtype, "dana", [&](auto tag) {
        using T = typename decltype(tag)::type;
        if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
          run<T>(preparation, static_cast<T>(momentum), in[0].size(), in[0].as<T>(), in[1].as<T>(), out[0].as<T>(),
                 out[1].as<T>());
        } else {
          throw InvalidArgument("[dana] keeps momentum in float32 or float64, got " + name_of(in[0].dtype));
        }
      });
    };
    launch_host("dana", inputs, outputs, rule);
    return slot.update;
  }

  NamedArrays state() const override {
    NamedArrays arrays;
    for (const auto& [key, slot] : slots_) arrays.emplace_back(key + std::string(kVelocity), slot.velocity);
    return arrays;
  }

  void check(const NamedArrays& state) const override {
    for (const auto& [name, array] : state) require(name.ends_with(kVelocity), "[dana] has no state '", name, "'");
  }
  void load(const NamedArrays& state) override {
    check(state);
    slots_.clear();
    // Not copies: that of a velocity which a failed gradient has left as it was would be empty.
    for (const auto& [name, array] : state)
      slots_[name.substr(0, name.size() - kVelocity.size())].velocity = array.contiguous();
  }

 private:
  static constexpr std::string_view kVelocity = "/velocity";

  struct Slot {
    NDArray velocity, update;
    Preparation preparation;  // with the key's weight decay
  };

  template <class T>
  static void run(const Preparation& preparation, T momentum, std::int64_t size, const T* gradient, const T* weight,
                  T* velocity, T* update) {
    for (std::int64_t begin = 0; begin < size; begin += Tile<T>::kElements) {
      const std::int64_t count = std::min(Tile<T>::kElements, size - begin);
      std::copy_n(gradient + begin, count, update + begin);
      preparation.apply(update + begin, weight + begin, count);
      for (std::int64_t i = begin; i < begin + count; ++i) {
        velocity[i] = momentum * velocity[i] + update[i];
        update[i] += momentum * velocity[i];
      }
    }
  }

  double momentum_;
  Preparation preparation_;
  Multipliers multipliers_;
  std::map<std::string, Slot> slots_;
};

}  // namespace

std::unique_ptr<WorkerRule> make_dana_rule(double momentum, const Preparation& preparation,
                                           const Multipliers& multipliers) {
  return std::make_unique<Dana>(momentum, preparation, multipliers);
}

}  // namespace paceline
