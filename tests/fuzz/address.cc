#include "transport/address.h"

#include "fuzz.h"

namespace paceline::fuzz {

void address(std::string_view input) {
  const std::string text(input);
  const auto read = parsed<InvalidArgument>([&] { return parse_host_port(text); });
  if (!read) return;
  expect(!read->host.empty(), "a host without a name");
  expect(read->port >= 0 && read->port <= 65535, "port ", read->port);
  const HostPort again = parse_host_port(join_host_port(read->host, read->port));
  expect(again.host == read->host && again.port == read->port, "host '", read->host, "' comes back as '", again.host,
         "'");
}

}  // namespace paceline::fuzz
