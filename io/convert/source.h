#pragma once
// What a converter reads: numbered entries. Several threads encode them as records.

#include <paceline/manifest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "convert/tally.h"

namespace paceline {
namespace io {

// Encodes entries. Only one thread at a time may use an encoder.
class EntryEncoder {
 public:
  virtual ~EntryEncoder() = default;
  // Writes the record of an entry into `record`, which is empty before. Adds the entry's statistics to `tally`. Throws
  // where the entry is bad; the message says why.
  virtual void encode(std::int64_t entry, std::string& record, Tally& tally) = 0;
};

// A number that depends on these bytes alone, the same in every release.
std::uint64_t stable_hash(std::string_view bytes);

// The path, size and time of each file, for RecordSource::identity().
std::string identity_of(const std::vector<std::string>& files);

}  // namespace io

class RecordSource {
 public:
  virtual ~RecordSource() = default;

  virtual std::int64_t size() const = 0;             // number of entries
  virtual const char* unit() const = 0;              // what entries are called, for instance "rows"
  virtual std::int64_t block() const { return 64; }  // entries that a thread encodes at a time
  // Where an entry is, for the list of bad ones.
  virtual std::string place(std::int64_t entry) const = 0;
  // The number that the index gives to the record of an entry.
  virtual std::int64_t id(std::int64_t entry) const { return entry; }
  // The keys of all entries, in order. A key is a stable_hash() of the bytes that decide the split of an entry.
  virtual std::vector<std::uint64_t> keys() const = 0;
  // Makes an encoder for one thread. It calls `wait` again and again while it waits for bytes. What `wait` throws ends
  // the waiting.
  virtual std::unique_ptr<io::EntryEncoder> encoder(const std::function<void()>& wait) const = 0;
  // A manifest that says what the records hold, without shards and statistics.
  virtual Manifest description() const = 0;
  // The names of Tally::numbers.
  virtual std::vector<std::string> number_names() const { return {}; }
  // A text that is different where the source or its encoding is different.
  virtual std::string identity() const = 0;
  // Text files to write beside each set. The key is what follows the set's prefix in the file's name.
  virtual std::map<std::string, std::string> companions() const { return {}; }
};

}  // namespace paceline
