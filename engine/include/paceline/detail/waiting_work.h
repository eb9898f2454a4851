#pragma once
// What threads that wait for a threaded engine do meanwhile. A transport has them receive, for what they wait for comes
// through it: woken by the packet itself, they need nobody who wakes them.

#include <functional>
#include <memory>

namespace paceline::detail {

class WaitingWork {
 public:
  virtual ~WaitingWork() = default;
  // Works until `done` holds. False: another thread is at it, or there is nothing to be done any more.
  virtual bool work_until(const std::function<bool()>& done) = 0;
  // Has who is at it look at `done` again.
  virtual void look_again() = 0;
};

// For all engines, in the place of what was offered before.
void offer_waiting_work(std::weak_ptr<WaitingWork> work);
std::shared_ptr<WaitingWork> waiting_work();

}  // namespace paceline::detail
