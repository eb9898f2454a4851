#pragma once
// A job that trains one float64 key, "w".

#include <support/cluster_in_process.h>

#include <string>
#include <vector>

namespace paceline::test {

inline NDArray array_of(const std::vector<double>& values, Engine& engine) {
  return NDArray::from<double>(values, Shape{static_cast<std::int64_t>(values.size())}, {}, engine);
}

// Initialises one float64 key with `values` at every worker and sets the optimizer.
inline std::vector<NDArray> start(ClusterInProcess& cluster, const std::vector<double>& values, const Spec& optimizer) {
  std::vector<NDArray> weights(static_cast<std::size_t>(cluster.workers()));
  cluster.run([&](int worker, KVStore& store) {
    NDArray& weight = weights[static_cast<std::size_t>(worker)];
    weight = array_of(values, cluster.engine(worker));
    store.init({{"w", weight}});
    store.set_optimizer(optimizer);
  });
  return weights;
}

inline void push_pull(ClusterInProcess& cluster, int index, const NDArray& weight, const std::vector<double>& gradient,
                      std::int64_t examples = 1) {
  cluster.worker(index).push_pull({{"w", array_of(gradient, cluster.engine(index))}}, {{"w", weight}}, examples);
  cluster.worker(index).step_end();
}

// One push_pull of worker `index`, done when it returns.
inline double push_pull(ClusterInProcess& cluster, int index, const NDArray& weight, double gradient) {
  push_pull(cluster, index, weight, std::vector<double>{gradient});
  return weight.item<double>();
}

}  // namespace paceline::test
