#pragma once
// Numbers and names of the links of one transport. Thread-safe.

#include <paceline/mutex.h>
#include <paceline/transport.h>

#include <functional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace paceline {

// Describes the peer at the other end of a link.
struct LinkName {
  std::string address;   // for logs
  std::string identity;  // incoming: what the peer has proved to be, or empty; outgoing: the `key` of connect()
  bool incoming = false;
};

class LinkNames {
 public:
  // Returns a number that no other link of the transport has.
  LinkId add(LinkName name) {
    const Lock lock(mutex_);
    names_[++last_] = std::move(name);
    return last_;
  }
  void erase(LinkId link) {
    const Lock lock(mutex_);
    names_.erase(link);
  }
  // Returns an empty name if there is no such link.
  LinkName of(LinkId link) const {
    const Lock lock(mutex_);
    const auto found = names_.find(link);
    return found == names_.end() ? LinkName() : found->second;
  }
  // Returns the incoming links whose identity `admits` refuses.
  std::vector<LinkId> unwelcome(const std::function<bool(const std::string&)>& admits) const {
    const Lock lock(mutex_);
    std::vector<LinkId> found;
    for (const auto& [link, name] : names_)
      if (name.incoming && !admits(name.identity)) found.push_back(link);
    return found;
  }

 private:
  mutable Mutex mutex_;
  LinkId last_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::unordered_map<LinkId, LinkName> names_ PACELINE_GUARDED_BY(mutex_);
};

}  // namespace paceline
