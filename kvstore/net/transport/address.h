#pragma once
// Addresses: "host:port" and "[host]:port", and the resolution of host names.

#include <string>
#include <vector>

namespace paceline {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};

// Throws InvalidArgument naming `address`.
HostPort parse_host_port(const std::string& address);
std::string join_host_port(const std::string& host, int port);  // with brackets around an IPv6 address

bool is_numeric_host(const std::string& host);
// The numeric address of a host, IPv4 before IPv6. Empty if the name cannot be resolved now. Blocks on the resolver.
std::string resolve_host(const std::string& host);
// The numeric address of this host on the route to `host`. Empty if `host` cannot be resolved or there is no route.
std::string local_host_towards(const std::string& host);

struct Interface {
  std::string name, number;
};
// The interfaces of this host that are up, IPv4 before IPv6.
std::vector<Interface> network_interfaces();

// The address that this host announces to its peers. It is `local`, this host's address on the route to the host
// `scheduler`, with one exception. If the scheduler runs here, its name may resolve to a loopback address such as
// 127.0.1.1, which other hosts cannot use. The result is then the address of another network interface, if there is
// one. The exception does not apply if `scheduler` is "localhost" or a numeric address.
std::string announced_host(const std::string& local, const std::string& scheduler);

}  // namespace paceline
