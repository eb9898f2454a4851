#include "placement.h"

#include <paceline/error.h>

#include <limits>
#include <string>

#include "store.pb.h"

namespace paceline {
namespace {

std::string describe(PartitionGroup group, std::size_t partition) {
  return group == kDenseKeys ? str("partition ", partition) : str("partition ", partition, " of table number ", group);
}

}  // namespace

const std::vector<int>& Placement::places_of(PartitionGroup group) const {
  static const std::vector<int> none;
  if (group == kDenseKeys) return keys_;
  const auto found = tables_.find(group);
  return found == tables_.end() ? none : found->second;
}

void Placement::add(PartitionGroup group, int first, std::span<const int> servers) {
  const std::vector<int>& known = places_of(group);
  const auto begin = static_cast<std::size_t>(first);
  if (first < 0 || begin > known.size())
    throw Corrupt(str(describe(group, begin), " is placed, but only ", known.size(), " before it are"));
  for (std::size_t i = 0; i < servers.size(); ++i) {
    const std::size_t p = begin + i;
    if (servers[i] < 0 || servers[i] >= servers_)
      throw InvalidArgument(
          str(describe(group, p), " is placed on server ", servers[i], "; the job has ", servers_, " servers"));
    if (p < known.size() && known[p] != servers[i])
      throw InvalidArgument(
          str(describe(group, p), " is placed on server ", servers[i], ", but it is on server ", known[p]));
  }
  if (begin + servers.size() <= known.size()) return;
  const std::span<const int> more = servers.subspan(known.size() - begin);
  std::vector<int>& places = group == kDenseKeys ? keys_ : tables_[group];
  places.insert(places.end(), more.begin(), more.end());
}

std::optional<int> Placement::find(PartitionGroup group, int partition) const {
  const std::vector<int>& places = places_of(group);
  if (partition < 0 || static_cast<std::size_t>(partition) >= places.size()) return std::nullopt;
  return places[static_cast<std::size_t>(partition)];
}

int Placement::server_of(PartitionGroup group, int partition) const {
  const std::optional<int> server = find(group, partition);
  if (!server) throw InvalidArgument(describe(group, static_cast<std::size_t>(partition)) + " has no place");
  return *server;
}

void Placement::write(PartitionGroup group, int first, int count, wire::Placement* message) const {
  message->set_group(group);
  message->set_first(static_cast<std::uint32_t>(first));
  for (int p = first; p < first + count; ++p) message->add_servers(static_cast<std::uint32_t>(server_of(group, p)));
}

void Placement::add(const wire::Placement& message) {
  constexpr std::uint32_t kLargest = std::numeric_limits<int>::max();
  std::vector<int> servers;
  for (const std::uint32_t server : message.servers()) {
    if (server > kLargest) throw Corrupt(str("a partition is placed on server ", server));
    servers.push_back(static_cast<int>(server));
  }
  if (message.first() > kLargest - servers.size()) throw Corrupt("a partition's number is too large");
  add(message.group(), static_cast<int>(message.first()), servers);
}

}  // namespace paceline
