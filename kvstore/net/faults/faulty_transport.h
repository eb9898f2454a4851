#pragma once
// A transport that causes the faults of a plan that concern this process. It loses, repeats, delays and reorders the
// packets that the process sends, and it freezes or kills the process.

#include <paceline/transport.h>

#include <memory>
#include <string>

#include "faults/fault_plan.h"

namespace paceline {

// Functions are thread-safe.
class FaultyTransport : public Transport {
 public:
  // Set the names by which the plan knows this process and the peer of a link, such as "worker3". Only the pattern "*"
  // matches a link without a name.
  virtual void name_self(const std::string& name) = 0;
  virtual void name_link(LinkId link, const std::string& name) = 0;
  // Tells the transport that training has reached `step`. Faults that begin or end at a step depend on this.
  virtual void reached(std::uint64_t step) = 0;
};

// `self`: the name of this process in the plan. `own_process`: freezes and kills strike the whole process, by signals,
// and the plan is logged. Otherwise a freeze only delays the packets of this transport, and a kill drops them. Each
// freeze, kill and beginning of a cut is logged as a warning.
std::unique_ptr<FaultyTransport> make_faulty_transport(std::unique_ptr<Transport> inner, FaultPlan plan,
                                                       const std::string& self, bool own_process);

}  // namespace paceline
