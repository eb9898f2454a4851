#pragma once
// Codecs: how gradients travel in fewer bytes, and weights, too, with bf16 and fp16. The mode names the codec:
// `dist_async:compression=2bit,threshold=0.5`. Modes but ring can name codecs for keys by their names, too:
// `dist_async:compression=bf16,rules=embedding*:top_k:ratio=0.01+*norm*:none`. The first pattern that fits a key
// counts; `except` and `only` hold for the other keys. Only float32 keys are encoded. The files of the codecs name
// their papers.

#include <paceline/catalog.h>
#include <paceline/options.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace paceline {

// What encode() wrote.
using EncodedBytes = std::span<const std::byte>;
class TwoRounds;

// What a codec knows of one push of one slice besides its values.
struct EncodeContext {
  std::uint64_t slice = 0;   // a number for the slice, the same at every worker
  std::int64_t push = 0;     // pushes of the slice by this worker before this one
  int worker = 0;            // the worker's rank
  int workers = 1;           // workers at the start of the job
  std::int64_t columns = 0;  // of the key as a matrix, whose rows are its first axis; 0: a vector
};

// A codec is constant, and so thread-safe: what changes from push to push is in state arrays, which the caller owns.
class Codec {
 public:
  virtual ~Codec() = default;

  // The largest number of bytes that encode() writes for `count` elements.
  virtual std::size_t max_bytes(std::int64_t count) const = 0;
  // Writes the encoded values, at most 2^32 - 1 of them, to `out` and returns the number of bytes. `state` holds an
  // array of values.size() elements for each of state_names(). The same input gives the same bytes.
  virtual std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const> state,
                             std::byte* out) const = 0;
  // Throws Corrupt unless encode() could have written `bytes` for `count` elements. Reads nothing behind them.
  virtual void check(EncodedBytes bytes, std::int64_t count) const = 0;
  // Decodes the elements [begin, begin + out.size()) of the `count` that were encoded. The bytes have passed check().
  virtual void decode(EncodedBytes bytes, std::int64_t count, std::int64_t begin, std::span<float> out) const = 0;

  // Names of state arrays at the worker, which have an element for each of a slice's. They begin with zeros, and are
  // checkpointed with the worker.
  virtual std::vector<std::string> state_names() const { return {}; }
  // True: what encoding loses does not average out, so error feedback has to keep it for the next push.
  virtual bool biased() const { return true; }
  // True: the codec is exact enough for weights, so pulls use it as well.
  virtual bool suits_weights() const { return false; }
  // True: a round applies the sign of the sum of what its workers sent, 0 for a tie, instead of the mean.
  virtual bool votes() const { return false; }
  // True: the codec keeps the optimizer's momentum (options `momentum`, `nesterov`), and the server runs SGD without.
  // The server's weight_decay then stays outside of the momentum. The worker also keeps the momentum of keys that
  // travel raw; the server keeps that of row-sparse tables.
  virtual bool takes_momentum() const { return false; }
  // Options for modes whose every round waits for all workers. They hold unless the user names them.
  virtual Options in_lockstep() const { return {}; }
  // Not null: encode() writes what a worker proposes, and decode() reads what the workers of a round make of their
  // proposals. For codecs of the library.
  virtual const TwoRounds* two_rounds() const { return nullptr; }
  // True: a matrix should be encoded in whole rows and few slices.
  virtual bool by_rows() const { return false; }
};

// The codec of a spec such as `2bit:threshold=0.5`; nullptr for `none`. Biased codecs come wrapped in error feedback:
// what a push did not deliver stays at the worker, as state `residual`, and is added to the next gradient (Seide et al.
// 2014, Karimireddy et al. 2019). The option error_feedback=0 leaves it out; error_feedback=1 adds it to bf16 and fp16.
// Throws InvalidArgument listing what is known.
std::shared_ptr<const Codec> make_codec(const Spec& spec);
// Wraps any codec in error feedback.
std::unique_ptr<Codec> with_error_feedback(std::unique_ptr<Codec> codec);

// Every codec by name.
const Catalog<std::unique_ptr<Codec> (*)(const Options&)>& compression_catalog();

// What was measured of one key.
struct CompressionCost {
  double raw_bytes = 0;       // of a push that is not encoded
  double encoded_bytes = 0;   // of an encoded push
  double encode_seconds = 0;  // at the worker
  double decode_seconds = 0;  // at the server
};
// Do encoding and decoding take less time than the saved bytes would take on a link?
bool worth_compressing(const CompressionCost& cost, double link_bytes_per_second);

}  // namespace paceline
