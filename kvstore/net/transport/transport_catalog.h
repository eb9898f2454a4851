#pragma once
// Every transport that can be chosen by name. The build generates the table from kvstore/net/CMakeLists.txt.

#include <paceline/catalog.h>
#include <paceline/transport.h>

#include <memory>

namespace paceline {

using TransportFactory = std::unique_ptr<Transport> (*)(const Options&);
const Catalog<TransportFactory>& transport_catalog();

}  // namespace paceline
