#pragma once
// Data sets: a manifest (JSON) that names shards (record files), and the writer of both. The manifest carries counts,
// checksums and the names of the classes. To read a part of a data set takes the manifest and the shards of that part.

#include <paceline/recordio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// One record file of a data set.
struct Shard {
  std::string path;                   // relative to the manifest's folder
  std::int64_t records = 0;           // how many it holds
  std::uint64_t bytes = 0;            // of the record file
  std::uint32_t crc32c = 0;           // of the record file
  std::uint32_t index_crc32c = 0;     // of `x.idx`
  std::uint32_t checksum_crc32c = 0;  // of `x.crc`
  friend bool operator==(const Shard&, const Shard&) = default;
};

// The size of the images where all are equal; 0 where they differ.
struct ImageSize {
  int height = 0;    // in pixels
  int width = 0;     // in pixels
  int channels = 0;  // 1 or 3
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// What is known of a data set.
struct Manifest {
  std::string payload = "image";              // what a record holds: "image" is MXNet's image record; "bytes": anything
  std::string encoding;                       // of the images: "raw", "png", "jpg", "mixed"
  int label_width = 1;                        // numbers per record; the most, where they vary
  bool variable_labels = false;               // a record may have fewer numbers, as those for detection do
  bool class_labels = true;                   // the one label is a class number 0, 1, 2, ...
  std::vector<std::string> labels;            // names of the classes; may be empty
  ImageSize image;                            // of all images
  std::optional<std::uint64_t> shuffle_seed;  // of the order in which records were packed; none: not shuffled
  std::vector<Shard> shards;                  // in the order of their positions
  std::string folder;                         // where it was loaded from; not stored

  // The number of records in all shards.
  std::int64_t records() const;
  // The full path of a shard's record file.
  std::string path_of(const Shard& shard) const;

  // Reads a manifest. Throws IoError, and Corrupt, which says what is wrong; the manifest has a checksum of its own.
  static Manifest load(const std::string& path);
  // Writes to a temporary file and renames it. Throws IoError, and InvalidArgument for names that are not UTF-8.
  void save(const std::string& path) const;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Writes a data set: `PREFIX-00000-of-00002.rec` and so on, their `.idx` and `.crc`, and `PREFIX.manifest` last. All
// files have temporary names until finish(). A data set that is not finished leaves nothing behind. Not thread-safe,
// but write() to different shards may run at the same time.
class DatasetWriter {
 public:
  // Creates the folder of `prefix` where there is none. Throws InvalidArgument for less than one shard, IoError.
  DatasetWriter(const std::string& prefix, int shards);
  ~DatasetWriter();
  DatasetWriter(const DatasetWriter&) = delete;
  DatasetWriter& operator=(const DatasetWriter&) = delete;

  // Appends a record to a shard, counted from 0; `key` goes into its index. Throws IoError.
  void write(int shard, std::int64_t key, std::string_view record);
  // Adds the shards to `manifest`, gives all files their names and returns the manifest's path. Throws InvalidArgument
  // where a shard holds no record, IoError.
  std::string finish(Manifest manifest);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paceline
