#pragma once
// What a converter reads: entries that several threads encode as records, each by its number.

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

// Encodes entries. One thread at a time.
class EntryEncoder {
 public:
  virtual ~EntryEncoder() = default;
  // Writes the record of an entry, which is empty before, and counts it. What it throws says why the entry is bad.
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
  virtual const char* unit() const = 0;              // "rows"
  virtual std::int64_t block() const { return 64; }  // entries that a thread encodes at a time
  // Where an entry is, for the list of bad ones.
  virtual std::string place(std::int64_t entry) const = 0;
  // The number of its record in the index.
  virtual std::int64_t id(std::int64_t entry) const { return entry; }
  // Of every entry a stable_hash() of what decides to which split it belongs.
  virtual std::vector<std::uint64_t> keys() const = 0;
  // `wait` is called again and again while a thread waits for bytes; what it throws ends the wait.
  virtual std::unique_ptr<io::EntryEncoder> encoder(const std::function<void()>& wait) const = 0;
  // What the records hold: all of a manifest but shards and statistics.
  virtual Manifest description() const = 0;
  // The names of Tally::numbers.
  virtual std::vector<std::string> number_names() const { return {}; }
  // Text that changes where the source does, or how it is encoded.
  virtual std::string identity() const = 0;
  // Files beside each set: what follows its prefix in the name, and the text.
  virtual std::map<std::string, std::string> companions() const { return {}; }
};

}  // namespace paceline
