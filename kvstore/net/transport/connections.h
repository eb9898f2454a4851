#pragma once
// ZeroMQ connections over TCP, which carry whole packets. The tcp transport of a job uses one such object, or two with
// keys.

#include <paceline/transport.h>

#include <memory>

#include "transport/door.h"

namespace paceline {

class Connections : public Transport {
 public:
  // Only peers that the door admits may connect. Call use_door() before bind() and connect(). The `key` of connect()
  // then goes to Door::equip_caller().
  virtual void use_door(std::shared_ptr<Door> door) = 0;
};

// Takes the options of the tcp transport.
std::unique_ptr<Connections> make_connections(const Options& options);

}  // namespace paceline
