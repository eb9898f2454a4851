#pragma once
// What the users of oneDNN share. Only for builds with oneDNN.

#include <paceline/error.h>

#include <dnnl.hpp>

#include <list>
#include <optional>
#include <utility>

namespace paceline::detail {

inline const dnnl::engine& cpu_engine() {
  // Never destroyed: tasks may still run when a program ends.
  static const auto& engine = *new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return engine;
}

// Keeps the primitives of one thread with their arguments. Each is made from a Key. A primitive that exists is found
// without creating or locking anything. The primitive used last is at the front.
template <class Key, class Primitive>
class PrimitiveCache {
 public:
  // The primitive of the key, which is made where it does not exist. Null where oneDNN has no code for the key. `name`
  // is for errors.
  Primitive* find(const char* name, const Key& key) {
    for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
      if (!(entry->first == key)) continue;
      entries_.splice(entries_.begin(), entries_, entry);
      return first();
    }
    if (entries_.size() == kLimit) entries_.pop_back();
    entries_.emplace_front(key, std::nullopt);
    try {
      entries_.front().second.emplace(key);
    } catch (const dnnl::error& error) {
      if (error.status != dnnl_unimplemented) {
        entries_.pop_front();
        throw Error(str("[", name, "] oneDNN failed: ", error.what()));
      }
    }
    return first();
  }

  dnnl::stream& stream() { return stream_; }

 private:
  static constexpr std::size_t kLimit = 256;  // shapes; a deep network has about 100

  Primitive* first() { return entries_.front().second ? &*entries_.front().second : nullptr; }

  dnnl::stream stream_{cpu_engine()};
  std::list<std::pair<Key, std::optional<Primitive>>> entries_;
};

}  // namespace paceline::detail
