#pragma once
// What threads that wait for a threaded engine do meanwhile. A transport lets such a thread receive packets, because
// the result that it waits for arrives in one. The packet then wakes the thread, and no other thread has to.

#include <functional>
#include <memory>

namespace paceline::detail {

class WaitingWork {
 public:
  virtual ~WaitingWork() = default;
  // Works until `done` holds. Returns false where another thread is inside work_until(), or where the work has ended.
  virtual bool work_until(const std::function<bool()>& done) = 0;
  // Makes the thread inside work_until() call `done` again.
  virtual void look_again() = 0;
};

// Sets the work for the threads that wait for any engine. It replaces the work that was offered before.
void offer_waiting_work(std::weak_ptr<WaitingWork> work);
std::shared_ptr<WaitingWork> waiting_work();

}  // namespace paceline::detail
