#include "transport/address.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <paceline/error.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <memory>

namespace paceline {
namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

Addresses look_up(const std::string& host, const char* port, int flags) {
  addrinfo hints = {};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_DGRAM;
  hints.ai_flags = flags;
  addrinfo* list = nullptr;
  if (getaddrinfo(host.c_str(), port, &hints, &list) != 0) list = nullptr;
  return Addresses(list);
}

std::string number_of(const sockaddr* address, socklen_t size) {
  char text[NI_MAXHOST];
  return getnameinfo(address, size, text, sizeof(text), nullptr, 0, NI_NUMERICHOST) == 0 ? text : "";
}

const addrinfo* preferred(const addrinfo* list) {
  for (const addrinfo* entry = list; entry; entry = entry->ai_next)
    if (entry->ai_family == AF_INET) return entry;
  return list;
}

bool is_loopback(const std::string& number) { return number == "::1" || number.rfind("127.", 0) == 0; }

}  // namespace

HostPort parse_host_port(const std::string& address) {
  const std::size_t colon = address.rfind(':');
  HostPort result;
  const char* end = address.data() + address.size();
  if (colon != std::string::npos && colon > 0) {
    const auto [stop, error] = std::from_chars(address.data() + colon + 1, end, result.port);
    if (error == std::errc() && stop == end && result.port >= 0 && result.port <= 65535) {
      result.host = address.substr(0, colon);
      if (result.host.front() == '[' && result.host.back() == ']')
        result.host = result.host.substr(1, result.host.size() - 2);
      if (!result.host.empty() && result.host.find_first_of("[]") == std::string::npos) return result;
    }
  }
  throw InvalidArgument("[tcp] '" + address + "' is no address; expected host:port with a port from 0 to 65535");
}

std::string join_host_port(const std::string& host, int port) {
  const bool number6 = host.find(':') != std::string::npos;
  return (number6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

bool is_numeric_host(const std::string& host) { return look_up(host, nullptr, AI_NUMERICHOST) != nullptr; }

std::string resolve_host(const std::string& host) {
  const Addresses list = look_up(host, nullptr, 0);
  if (!list) return "";
  const addrinfo* best = preferred(list.get());
  return number_of(best->ai_addr, best->ai_addrlen);
}

std::string local_host_towards(const std::string& host) {
  const Addresses list = look_up(host, "9", AI_NUMERICSERV);  // any port: connect() on a datagram socket sends nothing
  if (!list) return "";
  const addrinfo* best = preferred(list.get());
  const int fd = socket(best->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "";
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  std::string result;
  if (connect(fd, best->ai_addr, best->ai_addrlen) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &size) == 0)
    result = number_of(reinterpret_cast<sockaddr*>(&own), size);
  ::close(fd);
  return result;
}

std::string announced_host(const std::string& local, const std::string& scheduler) {
  if (!is_loopback(local) || is_numeric_host(scheduler) || scheduler == "localhost") return local;
  for (const Interface& interface : network_interfaces())
    if (!is_loopback(interface.number) && interface.number.find('%') == std::string::npos) return interface.number;
  return local;
}

std::vector<Interface> network_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw NetworkError("[cluster] cannot list this host's network interfaces");
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<Interface> interfaces;
  for (const int family : {AF_INET, AF_INET6})
    for (const ifaddrs* entry = list; entry; entry = entry->ifa_next) {
      if (!entry->ifa_addr || entry->ifa_addr->sa_family != family || (entry->ifa_flags & IFF_UP) == 0) continue;
      const std::string number =
          number_of(entry->ifa_addr, family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
      if (!number.empty()) interfaces.push_back({entry->ifa_name, number});
    }
  return interfaces;
}

}  // namespace paceline
