#pragma once
// Connections of ZeroMQ over TCP, by which whole packets travel. The tcp transport of a job consists of them.

#include <paceline/transport.h>

#include <memory>

#include "transport/door.h"

namespace paceline {

class Connections : public Transport {
 public:
  // Only whom the door admits may connect. Call it before bind() and connect(). The `key` of connect() is what the door
  // needs to connect to the peer.
  virtual void use_door(std::shared_ptr<Door> door) = 0;
};

// `options` as those of the tcp transport.
std::unique_ptr<Connections> make_connections(const Options& options);

}  // namespace paceline
