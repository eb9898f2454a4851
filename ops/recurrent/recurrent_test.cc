#include <paceline/ops.h>
#include <support/operator_case.h>

#include <cmath>
#include <string>

namespace paceline::test {
namespace {

// Inputs of the operators in order; `gates` is how many the cell has.
std::vector<CaseArray> inputs_of(const Shape& x, std::int64_t hidden, std::int64_t gates, bool memory, bool biased) {
  const std::int64_t width = gates * hidden;
  return {sample(x, 1),
          sample({x[1], hidden}, 2),
          memory ? sample({x[1], hidden}, 3) : no_array(),
          sample({width, x[2]}, 4, -1, 1),
          sample({width, hidden}, 5, -1, 1),
          biased ? sample({width}, 6) : no_array(),
          biased ? sample({width}, 7) : no_array()};
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

// The equations, unit by unit.
std::vector<CaseArray> direct(const std::string& cell, const std::vector<CaseArray>& in, bool reverse) {
  const std::int64_t steps = in[0].shape[0], n = in[0].shape[1], width = in[0].shape[2], hidden = in[1].shape[1];
  CaseArray states{{steps, n, hidden}, std::vector<double>(static_cast<std::size_t>(steps * n * hidden))};
  CaseArray state = in[1], memory = in[2];
  const auto at = [](const CaseArray& array, std::int64_t i) { return array.values[static_cast<std::size_t>(i)]; };
  for (std::int64_t i = 0; i < steps; ++i) {
    const std::int64_t step = reverse ? steps - 1 - i : i;
    const CaseArray old = state;
    for (std::int64_t e = 0; e < n; ++e)
      for (std::int64_t u = 0; u < hidden; ++u) {
        const auto from_x = [&](std::int64_t gate) {
          const std::int64_t row = gate * hidden + u;
          double sum = in[5].none ? 0 : at(in[5], row);
          for (std::int64_t k = 0; k < width; ++k)
            sum += at(in[3], row * width + k) * at(in[0], (step * n + e) * width + k);
          return sum;
        };
        const auto from_state = [&](std::int64_t gate) {
          const std::int64_t row = gate * hidden + u;
          double sum = in[6].none ? 0 : at(in[6], row);
          for (std::int64_t k = 0; k < hidden; ++k) sum += at(in[4], row * hidden + k) * at(old, e * hidden + k);
          return sum;
        };
        const auto both = [&](std::int64_t gate) { return from_x(gate) + from_state(gate); };
        double& h = state.values[static_cast<std::size_t>(e * hidden + u)];
        if (cell == "rnn") h = std::tanh(both(0));
        if (cell == "rnn_relu") h = std::fmax(0, both(0));
        if (cell == "gru") {
          const double fresh = std::tanh(from_x(2) + logistic(both(0)) * from_state(2)), update = logistic(both(1));
          h = (1 - update) * fresh + update * h;
        }
        if (cell == "lstm") {
          double& c = memory.values[static_cast<std::size_t>(e * hidden + u)];
          c = logistic(both(1)) * c + logistic(both(0)) * std::tanh(both(2));
          h = logistic(both(3)) * std::tanh(c);
        }
        states.values[static_cast<std::size_t>((step * n + e) * hidden + u)] = h;
      }
  }
  if (cell == "lstm") return {states, memory};
  return {states};
}

struct Cases {
  Cases(const std::string& cell, std::int64_t gates) {
    const bool memory = cell == "lstm";
    std::vector<OperatorCase> cases;
    const auto add = [&](const std::string& name, const Shape& x, std::int64_t hidden, bool biased, bool reverse) {
      const std::vector<CaseArray> in = inputs_of(x, hidden, gates, memory, biased);
      cases.push_back({.name = name,
                       .inputs = in,
                       .attributes = with(RecurrentAttributes{reverse}),
                       .expected = direct(cell, in, reverse),
                       .gradient = x[1] > 0,
                       .tolerance = 20});
    };
    add("forward", {4, 2, 3}, 5, true, false);
    add("backward", {3, 2, 4}, 3, true, true);
    add("no biases", {2, 3, 2}, 2, false, false);
    add("one", {1, 1, 1}, 1, true, false);
    add("one step in reverse", {1, 2, 2}, 3, true, true);
    add("no examples", {2, 0, 3}, 2, true, false);
    std::vector<RejectedCall> rejected;
    const auto refuse = [&](const std::string& message, std::size_t input, const CaseArray& wrong) {
      std::vector<CaseArray> in = inputs_of({2, 3, 4}, 5, gates, memory, true);
      in[input] = wrong;
      rejected.push_back({message, in});
    };
    refuse("x is float64 (0, 3, 4)", 0, sample({0, 3, 4}, 1));
    refuse("state is float64 (2, 5)", 1, sample({2, 5}, 1));
    refuse("memory is", 2, memory ? no_array() : sample({3, 5}, 1));
    refuse("the weight of x is", 3, sample({1, 4}, 1));
    refuse("the bias of the state is", 6, sample({1}, 1));
    RegisterCases(cell, cases, rejected);
  }
};

const Cases kRnn("rnn", 1), kRnnRelu("rnn_relu", 1), kLstm("lstm", 4), kGru("gru", 3);

}  // namespace
}  // namespace paceline::test
