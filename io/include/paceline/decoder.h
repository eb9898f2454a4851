#pragma once
// Decoders: what a RecordLoader makes of a record. A loader whose options name none decodes images. Here are decoders
// for other payloads, and what one of your own derives from.

#include <paceline/ndarray.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

struct Manifest;

// An array of a batch: its shape there is (examples, `shape` ...).
struct ExampleArray {
  std::string name;               // "data" and "label" are the members of Batch with these names
  Shape shape;                    // of one example
  DType dtype = DType::kFloat32;  // of its elements
  friend bool operator==(const ExampleArray&, const ExampleArray&) = default;
};

// Makes the arrays of an example of each record. One thread at a time uses a decoder.
class Decoder {
 public:
  virtual ~Decoder() = default;
  // The arrays of every example. The answer is always the same.
  virtual std::vector<ExampleArray> arrays() const = 0;
  // Writes all elements of array i to to[i], row-major. The bytes of `record` are valid until the call ends, and are
  // aligned to 4 bytes at best: copy numbers out of them, as std::memcpy does. `seed` is what random choices may depend
  // on: it follows from the loader's seed, the epoch and the position. Throws Corrupt with the reason alone: the loader
  // adds file, offset and record, and leaves the record out where it was told to.
  virtual void decode(std::string_view record, std::uint64_t seed, std::span<void* const> to) = 0;
};

// Makes a decoder for each thread of a loader. Calls come from several threads at a time.
using DecoderFactory = std::function<std::unique_ptr<Decoder>()>;

// The decoders that come with the library, each as a factory. They throw InvalidArgument for options that cannot be.
namespace decoders {

// A function of yours as a decoder; it is called as Decoder::decode(), from several threads at a time.
DecoderFactory function(
    std::vector<ExampleArray> arrays,
    std::function<void(std::string_view record, std::uint64_t seed, std::span<void* const> to)> body);

// A tensor as its elements, row-major and little-endian, behind MXNet's header (recordio.pack) or alone.
struct TensorOptions {
  Shape shape;                    // of "data"
  DType dtype = DType::kFloat32;  // of "data", as stored
  int labels = 1;                 // numbers in the header; 0: the record is the tensor alone, and there is no "label"
  bool class_labels = true;       // one label is an int32 class number; else "label" is float32 (labels)
};
DecoderFactory tensor(TensorOptions options);

// Several named arrays as the bytes of a safetensors file. Arrays of the file that are not in `arrays` are left out.
DecoderFactory tensors(const std::vector<ExampleArray>& arrays);

// A window of token numbers: int32 "data" (window), and int32 "label" (window) with the number after each.
struct TokenOptions {
  std::int64_t window = 0;     // tokens in a window
  int bytes = 4;               // of a stored number, which is unsigned and little-endian: 1, 2 or 4
  bool random = false;         // a longer record gives a window anywhere in it, else its beginning
  std::int32_t padding = 0;    // fills up "data" behind a shorter record ...
  std::int32_t no_label = -1;  // ... and "label"; CrossEntropyOptions::ignored_label leaves it out of a loss
};
DecoderFactory tokens(TokenOptions options);
// A window of text: the bytes are the tokens.
DecoderFactory text(std::int64_t window, bool random = false);

// A row of numbers with commas between them: float32 "data" (columns), and "label".
struct CsvOptions {
  std::int64_t columns = 0;  // numbers in "data"
  std::int64_t label = 0;    // place of the label among the columns + 1 numbers; -1: there is none
  bool class_labels = true;  // "label" is an int32 class number, else float32
};
DecoderFactory csv_row(CsvOptions options);

// A row in LibSVM's format as a dense one: float32 "data" (features), and "label". Values of the same index are added.
struct LibsvmRowOptions {
  std::int64_t features = 0;  // numbers in "data"
  bool from_zero = false;     // indices count from 0, instead of from 1
  bool class_labels = true;   // "label" is an int32 class number, else float32
};
DecoderFactory libsvm_row(LibsvmRowOptions options);

// The decoder that a manifest names. Throws InvalidArgument where it names none, or one that this release does not
// have.
DecoderFactory named_in(const Manifest& manifest);

}  // namespace decoders

}  // namespace paceline
