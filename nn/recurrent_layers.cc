#include <paceline/layers.h>
#include <paceline/ops.h>

#include <cmath>

namespace paceline::nn {
namespace {

struct Cell {
  const char* kind;
  std::int64_t gates;
  NDArray (*run)(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse);
};

class RecurrentLayer final : public Layer {
 public:
  RecurrentLayer(const Cell& cell, std::int64_t hidden, const RecurrentOptions& options)
      : cell_(cell), hidden_(hidden), options_(options) {
    require(hidden > 0 && options.layers > 0, "[", cell.kind, "] hidden is ", hidden, " and layers is ", options.layers,
            ", expected positive numbers");
  }
  NDArray forward(const NDArray& x, const Context& context) override {
    require(x.ndim() == 3, "[", cell_.kind, "] the input has shape ", x.shape(), ", expected (steps, examples, width)");
    NDArray result = in_compute_type(x, context);
    for (int layer = 0; layer < options_.layers; ++layer) {
      const std::string number = std::to_string(layer);
      std::vector<NDArray> directions{run(result, number, false, context)};
      if (options_.bidirectional) directions.push_back(run(result, number + "_reverse", true, context));
      result = directions.size() == 1 ? directions[0] : concat(directions, 2);
    }
    return result;
  }
  std::string kind() const override { return cell_.kind; }

 private:
  NDArray run(const NDArray& x, const std::string& suffix, bool reverse, const Context& context) {
    const auto made = [&](const std::string& name, const Shape& shape) {
      const double scale = 1 / std::sqrt(static_cast<double>(hidden_));
      return weight(name + suffix, shape, uniform(scale), context, x.dtype());
    };
    const std::int64_t width = cell_.gates * hidden_;
    RecurrentWeights weights{made("weight_x", {width, x.size(2)}), made("weight_state", {width, hidden_})};
    if (options_.bias) weights.bias_x = made("bias_x", {width});
    if (options_.bias) weights.bias_state = made("bias_state", {width});
    const NDArray state = NDArray::zeros({x.size(1), hidden_}, x.dtype(), x.device(), x.engine());
    return cell_.run(x, state, weights, reverse);
  }

  Cell cell_;
  std::int64_t hidden_;
  RecurrentOptions options_;
};

NDArray run_rnn(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse) {
  return rnn(x, state, weights, reverse).states;
}
NDArray run_gru(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse) {
  return gru(x, state, weights, reverse).states;
}
NDArray run_lstm(const NDArray& x, const NDArray& state, const RecurrentWeights& weights, bool reverse) {
  return lstm(x, state, state, weights, reverse).states;  // the memory begins with zeros too
}

Module recurrent(const Cell& cell, std::int64_t hidden, const RecurrentOptions& options) {
  return Module(std::make_shared<RecurrentLayer>(cell, hidden, options));
}

}  // namespace

Rnn::Rnn(std::int64_t hidden, const RecurrentOptions& options)
    : Module(recurrent({"Rnn", 1, run_rnn}, hidden, options)) {}
Gru::Gru(std::int64_t hidden, const RecurrentOptions& options)
    : Module(recurrent({"Gru", 3, run_gru}, hidden, options)) {}
Lstm::Lstm(std::int64_t hidden, const RecurrentOptions& options)
    : Module(recurrent({"Lstm", 4, run_lstm}, hidden, options)) {}

}  // namespace paceline::nn
