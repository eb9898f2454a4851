#pragma once
// Makes an Optimizer from a rule. The rule has kSlots state values for each element, and rate() computes its rate from
// an UpdateStep. bind() makes a functor over one element, `T operator()(T gradient, T* slots, T rate)`, where `slots`
// are the state values of the element. The functor updates the slots and returns the value that is subtracted from the
// weight. It is PACELINE_HOST_DEVICE, so that CUDA kernels run the same mathematics.

#include <paceline/detail/vector_code.h>
#include <paceline/optimizer.h>

#include <array>

namespace paceline {

template <class Rule>
class TileOptimizer : public Optimizer {
 public:
  TileOptimizer(Rule rule, std::vector<std::string> names) : rule_(rule), names_(std::move(names)) {}
  std::vector<std::string> state_names() const override { return names_; }
  void update(const Tile<float>& tile, const UpdateStep& step) const override { run(tile, step); }
  void update(const Tile<double>& tile, const UpdateStep& step) const override { run(tile, step); }
  bool in_one_pass() const override { return true; }
  const Rule& rule() const { return rule_; }

 protected:
  Rule rule_;

 private:
  template <class T>
  void run(const Tile<T>& tile, const UpdateStep& step) const {
    detail::wide_code([&]() PACELINE_INLINE {
      const T rate = static_cast<T>(rule_.rate(step));
      const auto bound = rule_.template bind<T>();
      const T* __restrict gradient = tile.gradient;
      T* __restrict weight = tile.weight;
      std::array<T*, Rule::kSlots + 1> slots{};
      for (int s = 0; s < Rule::kSlots; ++s) slots[s] = tile.state[s];
      const auto subtrahend = [&](std::int64_t i) PACELINE_INLINE {
        std::array<T, Rule::kSlots + 1> values{};
        for (int s = 0; s < Rule::kSlots; ++s) values[s] = slots[s][i];
        const T difference = bound(gradient[i], values.data(), rate);
        for (int s = 0; s < Rule::kSlots; ++s) slots[s][i] = values[s];
        return difference;
      };
      if (const T* __restrict before = tile.before) {
        for (std::int64_t i = 0; i < tile.count; ++i) weight[i] = before[i] - subtrahend(i);
      } else {
        for (std::int64_t i = 0; i < tile.count; ++i) weight[i] -= subtrahend(i);
      }
    });
  }

  std::vector<std::string> names_;
};

}  // namespace paceline
