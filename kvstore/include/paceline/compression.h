#pragma once
// Codecs compress gradients for the network; `bf16` and `fp16` also compress weights. A mode's text names the codec:
// `dist_async:compression=2bit,threshold=0.5`. In the dist modes, the option `rules` names other codecs for groups of
// keys: `dist_async:compression=bf16,rules=embedding*:top_k:ratio=0.01+*norm*:none`. The first pattern that fits a
// key's name counts. The options `except` and `only` hold for keys that fit no pattern of `rules`. Only float32 keys
// are encoded. Users may pass a codec of their own (extensions.h). If a codec comes from a paper, its source file names
// the paper.

#include <paceline/catalog.h>
#include <paceline/extensions.h>
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

// What a codec knows about one push of one slice, besides the values.
struct EncodeContext {
  std::uint64_t slice = 0;   // number that identifies the slice, the same at every worker
  std::int64_t push = 0;     // number of earlier pushes of the slice by this worker
  int worker = 0;            // the worker's rank
  int workers = 1;           // number of workers at the start of the job
  std::int64_t columns = 0;  // columns of the key as a matrix, with the first axis as rows; 0: the key is a vector
};

// A way to encode gradients. A codec never changes, so it is thread-safe. The caller owns the state arrays, which
// change from push to push.
class Codec {
 public:
  virtual ~Codec() = default;

  // The largest number of bytes that encode() writes for `count` elements.
  virtual std::size_t max_bytes(std::int64_t count) const = 0;
  // Encodes `values`, at most 2^32 - 1 elements, into `out`, which has room for max_bytes(). Returns the number of
  // bytes written, at least 1 if there are values. `state` holds an array of values.size() elements for each of
  // state_names(). The same input gives the same bytes.
  virtual std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const> state,
                             std::byte* out) const = 0;
  // Throws Corrupt unless encode() could have written `bytes` for `count` elements. Reads nothing beyond `bytes`.
  virtual void check(EncodedBytes bytes, std::int64_t count) const = 0;
  // Decodes elements [begin, begin + out.size()) of the `count` encoded ones. `bytes` has passed check().
  virtual void decode(EncodedBytes bytes, std::int64_t count, std::int64_t begin, std::span<float> out) const = 0;

  // The names of the state arrays, which the worker keeps. Each array has one element for each element of the slice. It
  // begins with zeros. Checkpoints contain it, except in mode ring.
  virtual std::vector<std::string> state_names() const { return {}; }
  // True: the errors of encoding do not average out, so error feedback must keep them for the next push.
  virtual bool biased() const { return true; }
  // True: the codec is exact enough for weights, so pulls use it as well.
  virtual bool suits_weights() const { return false; }
  // True: workers send signs. A round applies the sign of their sum, or 0 for a tie, instead of the mean.
  virtual bool votes() const { return false; }
  // True: the worker keeps the optimizer's momentum (options `momentum`, `nesterov`), and the server runs plain SGD.
  // The server adds weight_decay, which therefore does not enter the momentum. The worker also keeps the momentum of
  // keys that travel raw. The server keeps the momentum of row-sparse tables.
  virtual bool takes_momentum() const { return false; }
  // Options that are set in modes where every round waits for all workers. They override the user's options, so leave
  // out the options that the user has named.
  virtual Options in_lockstep() const { return {}; }
  // Not null: the codec takes two rounds of messages. encode() then writes a worker's proposal, and decode() reads what
  // the workers of the round have agreed on. Only codecs of the library can do this.
  virtual const TwoRounds* two_rounds() const { return nullptr; }
  // True: a key that is a matrix should be cut into few large slices, each of whole rows.
  virtual bool by_rows() const { return false; }
};

// Makes the codec of a spec such as `2bit:threshold=0.5`, or returns one of `own`; nullptr for `none`. A biased codec
// is wrapped in error feedback: the worker keeps what a push did not deliver, as state `residual`, and adds it to the
// next gradient (Seide et al. 2014, Karimireddy et al. 2019). The option error_feedback=0 turns error feedback off.
// error_feedback=1 turns it on for bf16 and fp16. Throws InvalidArgument listing the known codecs or options.
std::shared_ptr<const Codec> make_codec(const Spec& spec, const Extensions& own = {});
// Wraps any codec in error feedback.
std::unique_ptr<Codec> with_error_feedback(std::shared_ptr<const Codec> codec);

// Every codec by name.
const Catalog<std::unique_ptr<Codec> (*)(const Options&)>& compression_catalog();

// Measured costs of encoding one key.
struct CompressionCost {
  double raw_bytes = 0;       // size of a push that is not encoded
  double encoded_bytes = 0;   // size of an encoded push
  double encode_seconds = 0;  // time to encode the push at the worker
  double decode_seconds = 0;  // time to decode the push at the server
};
// Do encoding and decoding take less time than the saved bytes would take on a link?
bool worth_compressing(const CompressionCost& cost, double link_bytes_per_second);

}  // namespace paceline
