// Autograd: fits a line by gradient descent, with nothing but arrays and a tape.
#include <paceline/autograd.h>
#include <paceline/ops.h>

#include <cstdio>

using namespace paceline;

int main() {
  const NDArray x = NDArray::from(std::vector<float>{0, 1, 2, 3}, {4});
  const NDArray y = x * 2.0 + 1.0;
  const NDArray slope = NDArray::zeros({1}), offset = NDArray::zeros({1});
  const NDArray slope_gradient = NDArray::zeros({1}), offset_gradient = NDArray::zeros({1});

  for (int step = 0; step < 400; ++step) {
    Tape tape;
    tape.watch(slope, slope_gradient);
    tape.watch(offset, offset_gradient);
    tape.backward(mean(square(x * slope + offset - y)));
    kernels::axpy(-0.1, slope_gradient, slope);
    kernels::axpy(-0.1, offset_gradient, offset);
  }
  std::printf("y = %.3f x + %.3f\n", slope.item<double>(), offset.item<double>());
}
