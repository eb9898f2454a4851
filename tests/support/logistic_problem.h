#pragma once
// Logistic regression of 50 features, condition 100, labels drawn from the model.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <random>
#include <span>
#include <vector>

namespace paceline::test {

class LogisticProblem {
 public:
  static constexpr std::size_t kFeatures = 50, kExamples = 20000;

  LogisticProblem() : inputs_(kExamples * kFeatures), labels_(kExamples) {
    std::mt19937_64 random(1);
    std::normal_distribution<double> normal;
    std::uniform_real_distribution<double> uniform;
    std::vector<double> model(kFeatures);
    for (double& m : model) m = normal(random);
    for (std::size_t e = 0; e < kExamples; ++e) {
      double sum = 0;
      for (std::size_t f = 0; f < kFeatures; ++f) {
        const double spread = std::pow(10, -static_cast<double>(f) / (kFeatures - 1));  // variances from 1 to 0.01
        sum += (inputs_[e * kFeatures + f] = spread * normal(random)) * model[f];
      }
      labels_[e] = uniform(random) < 1 / (1 + std::exp(-sum));
    }
    best_ = minimum();
  }

  double excess(const std::vector<double>& weights) const { return loss(weights) - best_; }

  std::vector<double> gradient(const std::vector<double>& weights, std::span<const std::size_t> batch) const {
    std::vector<double> result(kFeatures);
    for (const std::size_t e : batch) {
      const double error = (1 / (1 + std::exp(-score(weights, e))) - labels_[e]) / static_cast<double>(batch.size());
      for (std::size_t f = 0; f < kFeatures; ++f) result[f] += error * inputs_[e * kFeatures + f];
    }
    return result;
  }

 private:
  double score(const std::vector<double>& weights, std::size_t e) const {
    double sum = 0;
    for (std::size_t f = 0; f < kFeatures; ++f) sum += weights[f] * inputs_[e * kFeatures + f];
    return sum;
  }
  double loss(const std::vector<double>& weights) const {
    double sum = 0;
    for (std::size_t e = 0; e < kExamples; ++e) {
      const double s = score(weights, e);
      sum += std::log1p(std::exp(-std::abs(s))) + std::max(0.0, s) - labels_[e] * s;
    }
    return sum / kExamples;
  }
  // By Newton's method.
  double minimum() const {
    std::vector<double> weights(kFeatures);
    for (int round = 0; round < 8; ++round) {
      std::vector<double> system(kFeatures * (kFeatures + 1));
      for (std::size_t e = 0; e < kExamples; ++e) {
        const double* x = &inputs_[e * kFeatures];
        const double p = 1 / (1 + std::exp(-score(weights, e)));
        for (std::size_t i = 0; i < kFeatures; ++i) {
          double* row = &system[i * (kFeatures + 1)];
          const double scaled = p * (1 - p) * x[i];
          for (std::size_t j = 0; j < kFeatures; ++j) row[j] += scaled * x[j];
          row[kFeatures] += (p - labels_[e]) * x[i];
        }
      }
      for (std::size_t i = 0; i < kFeatures; ++i)
        for (std::size_t r = 0; r < kFeatures; ++r) {
          if (r == i) continue;
          const double factor = system[r * (kFeatures + 1) + i] / system[i * (kFeatures + 1) + i];
          for (std::size_t j = i; j <= kFeatures; ++j)
            system[r * (kFeatures + 1) + j] -= factor * system[i * (kFeatures + 1) + j];
        }
      for (std::size_t i = 0; i < kFeatures; ++i)
        weights[i] -= system[i * (kFeatures + 1) + kFeatures] / system[i * (kFeatures + 1) + i];
    }
    return loss(weights);
  }

  std::vector<double> inputs_, labels_;
  double best_ = 0;
};

}  // namespace paceline::test
