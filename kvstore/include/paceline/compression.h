#pragma once
// Codecs: how gradients (and, for bf16 and fp16, weights) travel in fewer bytes. Chosen in the mode:
// `dist_async:compression=2bit,threshold=0.5`, and, but in mode ring, for keys by their names:
// `dist_async:compression=bf16,rules=embedding*:top_k:ratio=0.01+*norm*:none`, where the first pattern that fits counts
// and `except` and `only` say what the others do. Only float32 keys are encoded; sources stand in compression/*.cc.

#include <paceline/catalog.h>
#include <paceline/options.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace paceline {

using EncodedBytes = std::span<const std::byte>;
class TwoRounds;

// What a codec knows of one push of one slice besides its values.
struct EncodeContext {
  std::uint64_t slice = 0;  // names the slice, alike at every worker
  std::int64_t push = 0;    // pushes of the slice by this worker before this one
  int worker = 0;           // rank
  int workers = 1;
  std::int64_t columns = 0;  // of the key seen as a matrix, its first extent the rows; 0: a vector
};

// Thread-safe (constant): what changes from push to push is in the state arrays, which the caller owns.
class Codec {
 public:
  virtual ~Codec() = default;

  // The most bytes that encode() writes for `count` elements.
  virtual std::size_t max_bytes(std::int64_t count) const = 0;
  // Writes the encoded values to `out` and returns their bytes. `state` holds an array of values.size() elements for
  // each of state_names(); at most 2^32 - 1 values. The same input gives the same bytes.
  virtual std::size_t encode(std::span<const float> values, const EncodeContext& context, std::span<float* const> state,
                             std::byte* out) const = 0;
  // Throws Corrupt unless `bytes` are what encode() could have written for `count` elements. Reads no further.
  virtual void check(EncodedBytes bytes, std::int64_t count) const = 0;
  // Elements [begin, begin + out.size()) of the `count` that were encoded. The bytes passed check().
  virtual void decode(EncodedBytes bytes, std::int64_t count, std::int64_t begin, std::span<float> out) const = 0;

  // Per-element state at the worker, one array per slice and name; zero at first, checkpointed with the worker.
  virtual std::vector<std::string> state_names() const { return {}; }
  // True: what is lost by encoding does not average out, so error feedback has to keep it for the next push.
  virtual bool biased() const { return true; }
  // True: exact enough for weights, too; pulls use it as well.
  virtual bool suits_weights() const { return false; }
  // True: a round applies the sign of the sum of what its workers sent (0 for a tie), not their mean.
  virtual bool votes() const { return false; }
  // True: the codec keeps the optimizer's momentum (options `momentum`, `nesterov`), the server runs SGD without, its
  // weight_decay outside of it. Raw keys' momentum is the worker's likewise; row-sparse tables' is the server's.
  virtual bool takes_momentum() const { return false; }
  // Options that suit a mode whose every round waits for all workers, where the user named none of them.
  virtual Options in_lockstep() const { return {}; }
  // Not null: encode() writes what a worker proposes, and decode() takes what the workers of a round make of their
  // proposals (two_rounds.h).
  virtual const TwoRounds* two_rounds() const { return nullptr; }
  // True: a matrix is best encoded in whole rows and few slices.
  virtual bool by_rows() const { return false; }
};

// `2bit:threshold=0.5`. Biased codecs come wrapped in error feedback, which remembers at the worker, as state
// `residual`, what a push did not deliver, and adds it to the next gradient (Seide et al. 2014, Karimireddy et al.
// 2019); option error_feedback=0 leaves it out, error_feedback=1 adds it to bf16 and fp16. nullptr for `none`. Throws
// InvalidArgument listing what is known.
std::shared_ptr<const Codec> make_codec(const Spec& spec);
// Error feedback around any codec.
std::unique_ptr<Codec> with_error_feedback(std::unique_ptr<Codec> codec);

const Catalog<std::unique_ptr<Codec> (*)(const Options&)>& compression_catalog();

// What was measured of one key: is the time to encode and decode less than the time that the saved bytes would take?
struct CompressionCost {
  double raw_bytes = 0;
  double encoded_bytes = 0;
  double encode_seconds = 0;
  double decode_seconds = 0;
};
bool worth_compressing(const CompressionCost& cost, double link_bytes_per_second);

}  // namespace paceline
