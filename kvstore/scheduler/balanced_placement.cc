#include <paceline/updater.h>

#include <algorithm>
#include <numeric>

#include "placement_policy.h"

namespace paceline {
namespace {

class BalancedPlacement final : public PlacementPolicy {
 public:
  explicit BalancedPlacement(int servers) : loads_(static_cast<std::size_t>(servers)) {}

  // Places large partitions first, each on the server with the fewest bytes.
  std::vector<int> place_keys(std::span<const std::int64_t> bytes) override {
    std::vector<std::size_t> order(bytes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::ranges::stable_sort(order, [&](std::size_t a, std::size_t b) { return bytes[a] > bytes[b]; });
    std::vector<int> servers(bytes.size());
    for (const std::size_t p : order) {
      const auto lightest = std::ranges::min_element(loads_);
      servers[p] = static_cast<int>(lightest - loads_.begin());
      *lightest += bytes[p];
    }
    return servers;
  }

  std::vector<int> place_table(const TableSpec& table, int partitions) override {
    const std::uint64_t first = hash_key(table.name) % loads_.size();
    std::vector<int> servers;
    for (int p = 0; p < partitions; ++p)
      servers.push_back(static_cast<int>((first + static_cast<std::uint64_t>(p)) % loads_.size()));
    return servers;
  }

 private:
  std::vector<std::int64_t> loads_;  // bytes of dense keys on each server
};

}  // namespace

std::unique_ptr<PlacementPolicy> make_balanced_placement(int servers) {
  return std::make_unique<BalancedPlacement>(servers);
}

}  // namespace paceline
