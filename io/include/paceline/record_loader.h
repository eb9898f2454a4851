#pragma once
// Reads a data set (a manifest and its shards) as batches, decoded ahead by threads of its own.

#include <paceline/data_iterator.h>
#include <paceline/decoder.h>
#include <paceline/recordio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// How records are dealt to parts. Either way all parts together deliver every record once in an epoch. A position names
// the same record for every number of parts.
enum class Partition {
  // Part r of n has the positions [N r / n, N (r+1) / n) and opens only the shards that hold them. Positions are
  // shuffled within a shard, and the shards of a part are drawn from at random. So a data set that was shuffled when it
  // was packed is shuffled well.
  kShards,
  // One permutation of the whole data set is dealt out step by step. In step k the batches of all n parts together are
  // the positions [k n b, (k+1) n b), where b is `batch`. So 1, 2 and 4 workers with the same n b see the same global
  // batches. Every part opens every shard.
  kRecords,
};

// Where images are decoded that deliver_to() sends to a CUDA device. On the device nvJPEG, which is opened at run time,
// decodes JPEGs. The CPU decodes other images and what nvJPEG refuses. The device makes the values of all. Values from
// JPEGs differ from the CPU's by the rounding of the decoder: by a few of 255 levels. An nvJPEG older than 12.1 does
// not interpolate colours, and differs by more at sharp edges. nvJPEG does not find every damage of a JPEG.
enum class Decoding {
  kAuto,    // on the device; on the CPU, with a line in the log, where the manifest knows no JPEG or there is no nvJPEG
  kCpu,     // on the CPU
  kDevice,  // on the device; start() throws NotAvailable where that cannot be
};

// The value called "auto", "cpu" or "device". Throws InvalidArgument listing them for other names.
Decoding parse_decoding(std::string_view name);

// How stored pixels become numbers of a batch: value = (pixel * scale - mean[channel]) / deviation[channel], or the
// pixel as it is where they are uint8. What is random depends on seed, epoch and position alone.
struct ImageOptions {
  int channels = 0;                   // 1 or 3; 0: as the manifest says
  int height = 0;                     // in pixels, images of another size are resized; 0: as the manifest says
  int width = 0;                      // likewise
  float scale = 1.0f / 255;           // a factor for pixels, which are 0 to 255
  std::vector<float> mean = {};       // one number, or one for each channel; empty: 0
  std::vector<float> deviation = {};  // likewise; empty: 1
  int random_crop = 0;                // pads each side by so many pixels of value 0, then cuts the size out anywhere
  bool random_flip = false;           // mirrors half of the images from left to right
  DType dtype = DType::kFloat32;      // or kUint8, a quarter of the memory; decoded on the CPU then
};

// How records are read.
struct RecordLoaderOptions {
  std::int64_t batch = 64;                    // examples in a batch of this process
  std::optional<std::uint64_t> shuffle = {};  // seed of the order; none: in the order of the shards
  std::shared_ptr<Source> source = {};        // none: the whole data set
  Partition partition = Partition::kShards;   // how records are dealt to parts
  int decode_threads = 0;                     // 0: half the core budget, at least one
  Decoding decoding = Decoding::kAuto;        // where images for CUDA devices are decoded
  int prefetch = 4;                           // batches decoded ahead; bounds the memory, the device's too
  OnDamage on_damage = OnDamage::kFail;       // kSkip: damaged records and images are left out, counted and logged
  ImageOptions image = {};                    // how pixels become numbers
  DecoderFactory decoder = {};                // none: records of images, as MXNet's
};

// Loads batches, whose arrays are those of the decoder. For images they are data (examples, channels, height, width);
// label (examples) int32 class numbers where the manifest says so, else (examples, label_width) float32. Where a record
// has fewer labels than others, -1 fills its row up, as MXNet's iterators for detection do. Within a batch, examples
// stand in the order of their positions. `data` lies on the CUDA device that decoded it, else on the CPU. One thread
// uses a loader, but for what says otherwise.
class RecordLoader final : public DataIterator {
 public:
  // Reads the manifest only. Throws IoError, Corrupt, InvalidArgument.
  explicit RecordLoader(const std::string& manifest, RecordLoaderOptions options = {});
  ~RecordLoader() override;

  bool has_source() const override;
  void deliver_to(Device device) override;
  // Opens the shards of this process's part. Throws IoError naming host and path where one is missing.
  void start(std::int64_t epoch, const RangeSet& done = {}) override;
  // As DataIterator::next(). After an error it throws the same error again until the next start().
  bool next(Batch& batch) override;
  bool take_over() override;
  std::int64_t size() const override;
  Shape batch_shape() const override;
  void commit(const Batch& batch) override;  // thread-safe
  RangeSet committed() const override;       // thread-safe

  // The names of the classes, as packed; may be empty.
  const std::vector<std::string>& labels() const;
  // The full paths of the shards that are open.
  std::vector<std::string> open_shards() const;
  // What kSkip left out since construction: damage() lists at most 1,000 places, damaged() counts all. Thread-safe.
  std::vector<RecordDamage> damage() const;
  std::int64_t damaged() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace paceline
