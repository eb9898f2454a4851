#pragma once
// "host:port" and "[host]:port", and what the resolver makes of them.

#include <string>
#include <vector>

namespace paceline {

struct HostPort {
  std::string host;  // without brackets
  int port = 0;
};

// Throws InvalidArgument naming `address`.
HostPort parse_host_port(const std::string& address);
std::string join_host_port(const std::string& host, int port);  // brackets around an IPv6 number

bool is_numeric_host(const std::string& host);
// The host as a number, IPv4 before IPv6; empty where the name is unknown (now). Blocks on the resolver.
std::string resolve_host(const std::string& host);
// The number of this host's address that faces `host`; empty where there is no way to it.
std::string local_host_towards(const std::string& host);

struct Interface {
  std::string name, number;
};
// Of this host, that are up; IPv4 before IPv6.
std::vector<Interface> network_interfaces();

// What peers are told to reach this host by, where `local` faces the scheduler, named `scheduler`. A name may mean a
// loopback address on its own host (127.0.1.1), which leads others to themselves: then an address of a network
// interface, if there is one.
std::string announced_host(const std::string& local, const std::string& scheduler);

}  // namespace paceline
