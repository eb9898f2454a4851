#pragma once
// Reads a data set (a manifest and its shards) as batches, decoded ahead by threads of its own.

#include <paceline/augment.h>
#include <paceline/data_iterator.h>
#include <paceline/decoder.h>
#include <paceline/pipeline_iterator.h>
#include <paceline/recordio.h>
#include <paceline/sampling.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// How positions are dealt to parts. Either way all parts together deliver every position once in an epoch. A position
// names the same record for every number of parts.
enum class Partition {
  // Each part has positions that follow each other: part r of n about [N r / n, N (r+1) / n). So it reads few shards at
  // a time, and each shard is read by one part, or by two.
  kShards,
  // Positions are dealt step by step. In step k the batches of all n parts together are the positions [k n b, (k+1) n
  // b), where b is `batch`. So 1, 2 and 4 workers with the same n b see the same global batches. Every part reads every
  // shard. `global_batch` fixes n b for any number of parts.
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
// pixel as it is where they are uint8. `steps` says all that is done to an image, and `random_crop` and `random_flip`
// are the short form of a list: resize(), random_crop() and flip(). What is random depends on seed, epoch and position
// alone. A step whose name says a size makes images of that size; where there is none, images are resized first.
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
  std::vector<augment::Step> steps = {};  // as augment::parse() reads them; instead of random_crop and random_flip
  int classes = 0;                        // that labels of mixed examples span; 0: as the manifest says
  std::optional<bool> boxes = {};         // are several labels boxes of MXNet's form? They move along, if so
  double box_share = 0.3;                 // of a box's area must be left by a step, else the box goes
  bool reduced = false;                   // JPEGs that become smaller by 2 or more are decoded at 1/2, 1/4 or 1/8 of
                                          // their size: faster, but pixels differ by some levels; on the CPU then
};

// How records are read.
//
// With `shuffle`, each epoch puts the shards into another order, and cuts it into windows of `window` shards. The
// records of a window are in a random order. So a loader reads few shards at a time, and a record moves to another
// worker from epoch to epoch. The order depends on seed and epoch, and not on the number of workers.
struct RecordLoaderOptions {
  std::int64_t batch = 64;                    // examples in a batch of this process
  std::optional<std::uint64_t> shuffle = {};  // seed of the order; none: in the order of the shards
  std::shared_ptr<Source> source = {};        // none: the whole data set
  Partition partition = Partition::kShards;   // how positions are dealt to parts
  int window = 16;                            // shards whose records are mixed; 0: all, the uniform shuffle
  // Deals the shards to so many nodes, in the order of the manifest and the same in every epoch. Each node has an order
  // of its own. Where the number of parts divides that of nodes, a part reads the shards of its nodes in every epoch,
  // so that caches stay warm. Parts then differ in records as the nodes do: by a shard, or by less. 0: none.
  int virtual_nodes = 0;
  // Examples in a step of all parts together. Step k is the positions [k G, (k+1) G) for any number of parts. Each part
  // has an equal share of it, which stands for `batch`; only what is taken over is cut by `batch`. The last step of an
  // epoch is what is left, shared alike; where that is less than the parts, some end a step earlier. A multiple of
  // virtual_nodes. 0: not fixed.
  std::int64_t global_batch = 0;
  int decode_threads = 0;                // 0: as PipelineIterator chooses
  Decoding decoding = Decoding::kAuto;   // where images for CUDA devices are decoded
  int prefetch = 0;                      // batches decoded ahead, on the device too; 0: as PipelineIterator says
  OnDamage on_damage = OnDamage::kFail;  // kSkip: damaged records and images are left out, counted and logged
  ImageOptions image = {};               // how pixels become numbers
  DecoderFactory decoder = {};           // none: the one that the manifest names, else of MXNet's images
  Sampling sampling = {};                // draws records by weights, or groups them by a key
};

// Loads batches, whose arrays are those of the decoder. For images they are data (examples, channels, height, width);
// label (examples) int32 class numbers where the manifest says so, else (examples, label_width) float32. Where a record
// has fewer labels than others, -1 fills its row up, as MXNet's iterators for detection do. Within a batch, examples
// stand in the order of their positions. `data` lies on the CUDA device that decoded it, else on the CPU.
//
// start() opens the shards that this process's part needs first, and looks for the others, which are opened when they
// are needed. It throws IoError naming host and path where one is missing, and InvalidArgument where `done` is of
// another data set. Shards at URLs are looked for by next(), which throws then.
//
// At most two windows of shards are open, of each virtual node that a part reads, or of each data set of a mixture. All
// shards are where records are drawn by weights or grouped. An open shard takes 24 bytes for each of its records. Those
// of other hosts are open from the first batch that needs them to the last, and then are all in the cache: next()
// throws IoError where a batch needs more than the cache may hold.
class RecordLoader final : public PipelineIterator {
 public:
  // Reads the manifest only. It and its shards may be at http://, https:// or s3://: then shards are copied into the
  // cache of this host (PACELINE_CACHE) while others are read. Throws IoError, Corrupt, InvalidArgument.
  explicit RecordLoader(const std::string& manifest, RecordLoaderOptions options = {});
  // Mixes data sets, which hold the same kind of records. Each has its share of every 1,000 or so positions, and is
  // gone through again and again: each of its records comes once in a pass, and a pass may take several epochs, or a
  // part of one. Needs `shuffle`. A record's number counts through the data sets in this order.
  explicit RecordLoader(const std::vector<MixedDataSet>& sets, RecordLoaderOptions options);
  ~RecordLoader() override;

  // The names of the classes, as packed; may be empty.
  const std::vector<std::string>& labels() const;
  // What is known of the data set; its `statistics` hold means, deviations and counts of classes. Of a mixture, what
  // all data sets have in common, without statistics.
  const Manifest& manifest() const;
  // The full paths of the shards that are open.
  std::vector<std::string> open_shards() const;
  // What kSkip left out since construction: damage() lists at most 1,000 places, damaged() counts all. Thread-safe.
  std::vector<RecordDamage> damage() const;
  std::int64_t damaged() const;

 private:
  class Impl;
  explicit RecordLoader(const std::shared_ptr<Impl>& impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace paceline
