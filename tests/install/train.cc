#include <paceline/kvstore.h>
#include <paceline/nn.h>
#include <paceline/ops.h>

int main(int argc, char** argv) {
  const auto store = paceline::KVStore::create(argc > 1 ? argv[1] : "local");
  const auto x = paceline::NDArray::from<float>({1, -2}, {1, 2});
  const auto net = paceline::nn::Sequential(paceline::nn::Dense(3), paceline::nn::Tanh());
  net.initialize(x.shape(), 1);
  return paceline::relu(x).to_vector<float>()[1] == 0 && net(x).size() == 3 && store->size() == (argc > 1 ? 2 : 1) ? 0
                                                                                                                   : 1;
}
