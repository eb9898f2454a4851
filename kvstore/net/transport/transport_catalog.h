#pragma once
// Every transport that can be chosen by name; the table is generated from kvstore/CMakeLists.txt.

#include <paceline/catalog.h>
#include <paceline/transport.h>

#include <memory>

namespace paceline {

using TransportFactory = std::unique_ptr<Transport> (*)(const Options&);
const Catalog<TransportFactory>& transport_catalog();

}  // namespace paceline
