#pragma once
// Converts data sets of other formats into sharded records: reads a source in parallel, divides it into sets, and
// writes shards, indexes, checksums and a manifest with statistics. paceline/convert_sources.h lists the sources.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace paceline {

// A data set in another format, as the functions in paceline/convert_sources.h make it.
class RecordSource;
// How sources are passed on.
using RecordSourceHandle = std::shared_ptr<const RecordSource>;

// A part of a data set that becomes one of its own.
struct Split {
  std::string name = {};  // "train": the set is PREFIX-train.manifest
  double share = 0;       // the split gets share / (sum of all shares) of the entries, on average
};

// How a source is converted. Shards depend on the source and the first four options alone, byte for byte.
struct ConvertOptions {
  int shards = 1;          // of each set
  bool shuffle = true;     // packs in a random order, so that every shard is a fair sample
  std::uint64_t seed = 0;  // of the random order
  // None: one set, PREFIX.manifest. Otherwise a hash that the source gives each entry chooses its split.
  std::vector<Split> splits = {};

  int threads = 1;             // that read and encode
  bool skip_bad = false;       // leaves out entries that cannot be read, instead of failing at the end
  std::int64_t bad_limit = 0;  // ends the run at once where more entries are bad; 0: there is no limit
  // What the error of a run with bad entries says to do.
  std::string skip_hint = "ConvertOptions::skip_bad leaves them out";
  // Called again and again by the thread that called convert().
  std::function<void(std::int64_t done, std::int64_t entries)> progress = {};
  // Called again and again by all threads. What it throws on the thread of convert() ends the run. On other threads it
  // makes an entry bad, so it must go on throwing there. After an IoError, finished shards are kept.
  std::function<void()> check = {};
  // Called for each bad entry, first for those in shards that an earlier run finished: "rows.csv:17", "its column 3 is
  // 'x', expected a number".
  std::function<void(const std::string& place, const std::string& problem)> on_bad = {};
};

// One set that was written.
struct ConvertedSet {
  std::string manifest = {};  // its path
  std::int64_t records = 0;   // in it
  int shards = 0;             // that hold them
};

// What convert() did.
struct ConvertReport {
  std::vector<ConvertedSet> sets = {};  // in the order of the splits
  std::int64_t bad = 0;                 // entries that were left out; PREFIX.bad.txt lists them
  std::int64_t resumed = 0;             // shards that an earlier run had finished
  std::string unit = {};                // what the entries are: "images", "rows", "lines", ...
};

// Converts the source. Shards and manifests get their names at the end, all together; an older data set of the name is
// replaced. Until then finished shards lie in the folder PREFIX.converting. Where a run was killed, the next one with
// the same source and options goes on from there, and ends with the same bytes. A run with another source, shards,
// shuffle, seed or splits removes what is there and begins anew. With a finished shard in it, the folder stays after a
// kill, an IoError while shards are written, or any error while the data set gets its names. Every other end of a run
// removes it. Throws IoError. Throws InvalidArgument for impossible options and for a shard whose entries are all bad.
// Throws Corrupt for bad entries without skip_bad, or for more than bad_limit.
ConvertReport convert(const std::string& prefix, const RecordSource& source, const ConvertOptions& options = {});

}  // namespace paceline
