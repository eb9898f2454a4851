#pragma once
// A data set: a manifest (JSON) that names shards (record files), and the writer of both. The manifest carries counts,
// checksums and the label map; a part of the data set is read with the manifest and the shards of that part only.

#include <paceline/recordio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

struct Shard {
  std::string path;  // relative to the manifest's folder
  std::int64_t records = 0;
  std::uint64_t bytes = 0;
  std::uint32_t crc32c = 0;           // of the record file
  std::uint32_t index_crc32c = 0;     // of `x.idx`
  std::uint32_t checksum_crc32c = 0;  // of `x.crc`
  friend bool operator==(const Shard&, const Shard&) = default;
};

// Size of the images where all are equal; 0 where they differ.
struct ImageSize {
  int height = 0;
  int width = 0;
  int channels = 0;
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

struct Manifest {
  std::string payload = "image";    // what a record holds: "image" is MXNet's image record
  std::string encoding;             // of the images: "raw", "png", "jpg", "mixed"
  int label_width = 1;              // numbers per record
  bool class_labels = true;         // the one label is a class number 0, 1, 2, ...
  std::vector<std::string> labels;  // names of the classes; may be empty
  ImageSize image;
  std::optional<std::uint64_t> shuffle_seed;  // of the order in which records were packed
  std::vector<Shard> shards;
  std::string folder;  // where it was loaded from; not stored

  std::int64_t records() const;
  // Full path of a shard's record file.
  std::string path_of(const Shard& shard) const;

  // Throws IoError, Corrupt (what is wrong where; a wrong checksum of the manifest itself included).
  static Manifest load(const std::string& path);
  // Written to a temporary file and renamed. Throws IoError.
  void save(const std::string& path) const;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Writes a data set: `PREFIX-00000-of-00002.rec` and so on, their `.idx` and `.crc`, and `PREFIX.manifest` last. All
// files have temporary names until finish(); a data set that was not finished leaves nothing behind. Not thread-safe.
class DatasetWriter {
 public:
  // Creates the folder of `prefix` if need be. Throws InvalidArgument, IoError.
  DatasetWriter(const std::string& prefix, int shards);
  ~DatasetWriter();
  DatasetWriter(const DatasetWriter&) = delete;
  DatasetWriter& operator=(const DatasetWriter&) = delete;

  // Appends a record to a shard; `key` goes into its index.
  void write(int shard, std::int64_t key, std::string_view record);
  // Completes `manifest` with the shards, gives all files their names and returns the manifest's path. Throws
  // InvalidArgument where a shard holds no record, IoError.
  std::string finish(Manifest manifest);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What verify() found; nothing wrong where `problems` is empty.
struct VerifyReport {
  std::int64_t records = 0;
  std::int64_t shards = 0;
  std::vector<std::string> problems;  // one sentence each, in file order
};

// Reads every record of a data set or of one record file (by its ending) and checks framing, index, checksums and
// counts. Goes on after damage; a record file that cannot be read is a problem too. Throws IoError, Corrupt only where
// the manifest cannot be read at all.
VerifyReport verify(const std::string& manifest_or_record_file);

}  // namespace paceline
