#include "allreduce/ring_keys.h"

#include <paceline/error.h>

#include <map>

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

void take_arrays(const RingKeys& keys, const std::vector<InitValue>& values) {
  // The number of keys in each block of memory. If a block holds several keys, the store does not share their arrays.
  std::map<detail::VariableState*, int> keys_in;
  for (const InitValue& value : values) ++keys_in[value.value.variable().state()];
  for (const InitValue& value : values) {
    RingKey& key = *keys.at(value.key);
    const NDArray& array = key.weight = value.value;
    if (!value.shared || value.average || keys_in.at(array.variable().state()) > 1) continue;
    if (array.device() != Device{} || !array.is_contiguous()) continue;
    key.shared = std::make_shared<NDArray>(array);
    key.shared_version = array.variable().version();
  }
}

void expect_unwritten(const RingKey& key) {
  if (!key.shared || key.shared->variable().version() == key.shared_version) return;
  throw InvalidArgument(
      str("the array of key '", key.info.name, "' was written by something else than a pull since it ",
          "was shared with the store, and the workers of mode ring would come to differ; set weights ",
          "before init() or by load()"));
}

}  // namespace paceline
