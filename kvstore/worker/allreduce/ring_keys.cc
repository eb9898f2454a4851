#include "allreduce/ring_keys.h"

#include <paceline/error.h>

namespace paceline {

RingKey& find_key(const RingKeys& keys, const std::string& name, const NDArray& array, const char* use) {
  const auto found = keys.find(name);
  require(found != keys.end(), "key '", name, "' was not initialised");
  RingKey& key = *found->second;
  // The text of the error is made only when it is needed, because a call may hold ten thousand keys.
  if (array.size() != key.info.shape.size() || array.dtype() != key.info.dtype)
    throw InvalidArgument(str(use, " of key '", name, "' is ", array.describe(), ", expected ", key.info.describe()));
  return key;
}

void expect_unwritten(const RingKey& key) {
  if (!key.shared || key.shared->variable().version() == key.shared_version) return;
  throw InvalidArgument(
      str("the array of key '", key.info.name, "' was written by something else than a pull since it ",
          "was shared with the store, and the workers of mode ring would come to differ; set weights ",
          "before init() or by load()"));
}

}  // namespace paceline
