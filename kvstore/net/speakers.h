#pragma once
// Records on which link each process speaks. The first message that a process sends binds the process to its link.
// may_speak() then refuses the process on every other link. Only bind(), forget() and closed() change a binding. Links
// outlive connections (transport.h), so a process that reconnects keeps its link. Thread-safe.

#include <paceline/mutex.h>
#include <paceline/transport.h>

#include <cstdint>
#include <optional>
#include <set>
#include <unordered_map>

namespace paceline {

class Speakers {
 public:
  enum class Speaks { kNo, kHere, kHereFromNow };

  // Says whether `sender` speaks on `link`. Binds `sender` to `link` if it is bound to no link yet.
  Speaks may_speak(std::uint64_t sender, LinkId link);
  // Binds `sender` to `link`, even if it was bound to another link. Call it if `sender` has proved that it speaks on
  // `link`.
  Speaks bind(std::uint64_t sender, LinkId link);
  // The link that `sender` is bound to.
  std::optional<LinkId> link_of(std::uint64_t sender) const;
  // Removes the binding of the process `sender`, which was declared lost.
  void forget(std::uint64_t sender);
  // Records that the link was closed. The process that spoke on it may bind to another link. may_speak() refuses what
  // still arrives from the closed link.
  void closed(LinkId link);

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, LinkId> links_ PACELINE_GUARDED_BY(mutex_);
  std::set<LinkId> closed_ PACELINE_GUARDED_BY(mutex_);  // the latest ones; numbers of links ascend
};

}  // namespace paceline
