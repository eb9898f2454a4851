// Arrays: memory with a shape that the engine fills in the background. Nothing here blocks until values are asked for.

#include <paceline/kernel.h>
#include <paceline/ndarray.h>

#include <cstdio>
#include <filesystem>

using paceline::Device;
using paceline::DType;
using paceline::NDArray;
namespace kernels = paceline::kernels;

int main() {
  try {
    // A batch of 4 points in the plane, and a rotation by a quarter turn.
    const NDArray points = NDArray::from<float>({1, 0, 0, 2, -3, 0, 1, 1}, {4, 2});
    const NDArray rotation = NDArray::from<float>({0, 1, -1, 0}, {2, 2});
    const NDArray turned({4, 2});
    kernels::gemm(points, false, rotation, false,
                  turned);  // returns at once; the engine runs it when its inputs are ready

    // Views share memory: this writes into `turned`.
    turned.narrow(0, 3, 4).fill(0);
    turned.permute({1, 0}).at(0).narrow(0, 3, 4).fill(7);

    // Another device, another type, and back. sim:0 behaves like a GPU: its work completes later.
    const NDArray there = turned.to(Device("sim:0")).cast(DType::kInt32);
    kernels::scale(10, there);
    for (const auto value : there.to_vector<int>()) std::printf("%d ", value);  // waits for this array only
    std::printf("\n");

    const std::string path = (std::filesystem::temp_directory_path() / "paceline_example.safetensors").string();
    paceline::save_safetensors(path, {{"points", points}, {"turned", turned}});
    for (const auto& [name, array] : paceline::load_safetensors(path))
      std::printf("%s: %s\n", name.c_str(), array.describe().c_str());
    std::filesystem::remove(path);

    turned.view({3, 3});  // a mistake is an exception that says what was wrong
  } catch (const paceline::Error& error) {
    std::printf("%s\n", error.what());
  }
}
