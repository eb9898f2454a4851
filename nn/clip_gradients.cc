#include <paceline/autograd.h>
#include <paceline/kernel.h>
#include <paceline/ops.h>

namespace paceline {

NDArray global_norm(const std::vector<NDArray>& gradients) {
  require(!gradients.empty(), "[global_norm] needs gradients, got none");
  const RecordingScope no_recording(nullptr);
  const Device device = gradients[0].device();
  std::vector<NDArray> squares;
  for (const NDArray& gradient : gradients) {
    const NDArray square({1}, DType::kFloat64, gradient.device(), gradient.engine());
    kernels::sum_of_squares(gradient, square);
    squares.push_back(square.to(device));
  }
  return sqrt(sum(concat(squares, 0)));
}

NDArray clip_global_norm(const std::vector<NDArray>& gradients, double max_norm) {
  require(!gradients.empty() && max_norm > 0, "[clip_global_norm] needs gradients and a norm above 0, got ",
          gradients.size(), " gradients and ", max_norm);
  const RecordingScope no_recording(nullptr);
  const NDArray norm = global_norm(gradients);
  const NDArray factor = minimum(max_norm / (norm + 1e-6), 1);
  for (const NDArray& gradient : gradients) gradient *= cast(factor, gradient.dtype()).to(gradient.device());
  return norm;
}

}  // namespace paceline
