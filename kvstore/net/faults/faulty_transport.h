#pragma once
// A transport that brings about the faults of a plan, as far as they concern this process: it loses, repeats, delays
// and reorders what the process sends, and it freezes or kills the process.

#include <paceline/transport.h>

#include <memory>
#include <string>

#include "faults/fault_plan.h"

namespace paceline {

// Functions are thread-safe.
class FaultyTransport : public Transport {
 public:
  // The names that the plan knows this process and the process behind a link by: "worker3". A link without a name is
  // matched by "*" alone.
  virtual void name_self(const std::string& name) = 0;
  virtual void name_link(LinkId link, const std::string& name) = 0;
  // The process knows that training has come to `step`.
  virtual void reached(std::uint64_t step) = 0;
};

// `own_process`: freezes and kills strike the whole process, by signals. Else the transport falls silent, as if it had
// been the process. The log says loudly what is planned and what happens.
std::unique_ptr<FaultyTransport> make_faulty_transport(std::unique_ptr<Transport> inner, FaultPlan plan,
                                                       const std::string& self, bool own_process);

}  // namespace paceline
