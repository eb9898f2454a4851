#pragma once
// Reads a data set (a manifest and its shards) as batches, decoded ahead by threads of its own.

#include <paceline/data_iterator.h>
#include <paceline/recordio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// How records are dealt to parts. Either way every record is delivered once per epoch over all parts, and a position
// names the same record whatever the number of parts.
enum class Partition {
  // Part r of n has the positions [N r / n, N (r+1) / n) and opens only the shards that these lie in. A position is a
  // place in the data set, shuffled within its shard; the shards of a part are drawn from at random, so a data set that
  // was shuffled when it was packed is shuffled well.
  kShards,
  // One permutation of the whole data set, dealt out step by step: the batches of all parts together are, in step k,
  // the positions [k n b, (k+1) n b), b = `batch`. So 1, 2 and 4 workers with the same n b see the same global batches.
  // Every part opens every shard.
  kRecords,
};

// Where images are decoded that deliver_to() sends to a CUDA device. There nvJPEG, which is opened at run time, decodes
// JPEGs; the CPU decodes what nvJPEG refuses, and other images; and the device makes the values of all. They equal the
// CPU's, but for JPEGs by the rounding of the decoder: by a few of 255 levels, and by more at sharp edges of colour
// with an nvJPEG older than 12.1, which does not interpolate colours. Codes of a JPEG that were wrong when it was
// packed are not always found: they are what nvJPEG makes of them.
enum class Decoding {
  kAuto,  // on the device, unless the manifest knows of no JPEG, or there is no nvJPEG, which a line in the log says
  kCpu,
  kDevice,  // start() throws NotAvailable where that cannot be
};

// "auto", "cpu" or "device"; throws InvalidArgument listing them.
Decoding parse_decoding(std::string_view name);

// From stored pixels to the numbers of a batch: value = (pixel * scale - mean[channel]) / deviation[channel].
struct ImageOptions {
  int channels = 0;  // 1 or 3; 0: as the manifest says
  int height = 0;    // images of another size are resized; 0: as the manifest says
  int width = 0;
  float scale = 1.0f / 255;
  std::vector<float> mean = {};       // one number, or one for each channel; empty: 0
  std::vector<float> deviation = {};  // likewise; empty: 1
  // Augmentation, decided by seed, epoch and position alone.
  int random_crop = 0;       // pads by so many pixels (of value 0 before scaling), then cuts the size out anywhere
  bool random_flip = false;  // left to right, every other image
};

struct RecordLoaderOptions {
  std::int64_t batch = 64;                    // examples in a batch of this process
  std::optional<std::uint64_t> shuffle = {};  // seed of the order; none: in the order of the shards
  std::shared_ptr<Source> source = {};        // none: the whole data set
  Partition partition = Partition::kShards;
  int decode_threads = 0;  // 0: half the core budget, at least one
  Decoding decoding = Decoding::kAuto;
  int prefetch = 4;                      // batches decoded ahead; the bound of the memory, of the device's too
  OnDamage on_damage = OnDamage::kFail;  // kSkip: damaged records and images are left out, counted and listed
  ImageOptions image = {};
};

// data: (examples, channels, height, width) float32. label: (examples) int32 class numbers where the manifest says so,
// else (examples, label_width) float32. Within a batch examples stand in the order of their positions. `data` is an
// array of the CUDA device that decoded it, else of the CPU.
class RecordLoader final : public DataIterator {
 public:
  // Reads the manifest only. Throws IoError, Corrupt, InvalidArgument.
  explicit RecordLoader(const std::string& manifest, RecordLoaderOptions options = {});
  ~RecordLoader() override;

  bool has_source() const override;
  void deliver_to(Device device) override;
  // Opens the shards of this process's part; throws IoError naming host and path where one is missing.
  void start(std::int64_t epoch, const RangeSet& done = {}) override;
  // After an error, throws the same error again until the next start().
  bool next(Batch& batch) override;
  bool take_over() override;
  std::int64_t size() const override;
  Shape batch_shape() const override;
  void commit(const Batch& batch) override;  // thread-safe
  RangeSet committed() const override;       // thread-safe

  // Names of the classes, as packed; may be empty.
  const std::vector<std::string>& labels() const;
  // Full paths of the shards that are open.
  std::vector<std::string> open_shards() const;
  // What kSkip left out since construction: at most 1,000 are listed, all are counted. Thread-safe.
  std::vector<RecordDamage> damage() const;
  std::int64_t damaged() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline
