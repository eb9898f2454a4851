#pragma once
// Which link each process speaks on. The first message that a process sends binds it to the link, and nobody else can
// then speak in its name. Links outlive connections (transport.h), so a process keeps its link for life. Thread-safe.

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

  // Does `sender` speak on `link`? It does from now on where it has spoken on none yet.
  Speaks may_speak(std::uint64_t sender, LinkId link);
  // `sender` has proved that it speaks on `link`.
  Speaks bind(std::uint64_t sender, LinkId link);
  // The link that `sender` is bound to.
  std::optional<LinkId> link_of(std::uint64_t sender) const;
  // `sender` is no more.
  void forget(std::uint64_t sender);
  // The link was closed. Who spoke on it may come again on another. What still arrives from it is nobody's.
  void closed(LinkId link);

 private:
  mutable Mutex mutex_;
  std::unordered_map<std::uint64_t, LinkId> links_ PACELINE_GUARDED_BY(mutex_);
  std::set<LinkId> closed_ PACELINE_GUARDED_BY(mutex_);  // the latest ones; numbers of links ascend
};

}  // namespace paceline
