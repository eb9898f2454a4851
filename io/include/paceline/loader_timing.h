#pragma once
// Where the time of an iterator goes.

#include <cstdint>
#include <iosfwd>

namespace paceline {

// What an iterator did since the last start(). Seconds of work are sums over the iterator's threads. Stages are
// measured in every fourth batch, after 256 batches in every 16th, and scaled up.
struct LoaderTiming {
  double seconds = 0;  // from start() to now, or to the end of the part
  double waited = 0;   // the time in which next() waited for batches, or made them itself
  double full = 0;     // sum over threads: they waited because enough batches were ready

  double fetch = 0;    // from a network
  double read = 0;     // from files
  double decode = 0;   // from bytes or text to values
  double augment = 0;  // random changes to images
  double copy = 0;     // values to their places in the batch
  double other = 0;    // the rest of the threads' work

  std::int64_t batches = 0;   // made
  std::int64_t examples = 0;  // in them
  std::uint64_t bytes = 0;    // read from files
  int threads = 0;            // at work; 0: next() makes the batches
  int prefetch = 0;           // batches that may be ready

  double work() const { return fetch + read + decode + augment + copy + other; }  // the sum of the stages
};

// What limits how fast batches come.
enum class LoaderBound : std::uint8_t {
  kConsumer,  // who calls next(): it waited at most 5 % of the time
  kNetwork,   // it waited longer, and this stage of the loader took longest: fetch
  kDisk,      // the same for read
  kDecoder,   // the same for decode and augment together
  kCopy,      // the same for copy
};
LoaderBound bound_of(const LoaderTiming& timing);
const char* name_of(LoaderBound bound);  // "consumer", "network", "disk", "decoder" or "copy"

// Prints "waited 0.31 s of 4.20 s (7 %) for data; 2 threads, busy 81 %: read 12 %, decode 80 %, copy 8 %; bound by the
// decoder". Stages without time are left out.
std::ostream& operator<<(std::ostream& out, const LoaderTiming& timing);

}  // namespace paceline
