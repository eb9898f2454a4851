#pragma once
// Data sets: a manifest (JSON) that names shards (record files), and the writer of both. The manifest carries counts,
// checksums and the names of the classes. To read a part of a data set takes the manifest and the shards of that part.
// Files that are read may be on other hosts, at addresses with http://, https:// or s3://.

#include <paceline/decoder.h>
#include <paceline/recordio.h>

#include <cstdint>
#include <map>
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
  std::uint32_t index_crc32c = 0;     // of the `.idx` file beside it
  std::uint32_t checksum_crc32c = 0;  // of the `.crc` file beside it
  friend bool operator==(const Shard&, const Shard&) = default;
};

// The size of the images where all are equal; 0 where they differ.
struct ImageSize {
  int height = 0;    // in pixels
  int width = 0;     // in pixels
  int channels = 0;  // 1 or 3
  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

// What is known of some numbers. Where `count` is 0, all others except `missing` are 0 too.
struct NumberStatistics {
  std::int64_t count = 0;    // how many there are
  std::int64_t missing = 0;  // places where one is missing; the others do not count them
  double mean = 0;           // their sum, divided by `count`
  double deviation = 0;      // the root of the mean squared distance from the mean
  double smallest = 0;       // of all
  double largest = 0;        // of all
  friend bool operator==(const NumberStatistics&, const NumberStatistics&) = default;
};

// What a converter counted. Pixels count as numbers from 0 to 1, and their channels have the names "grey", or "red",
// "green" and "blue".
struct DataStatistics {
  std::map<std::string, NumberStatistics> numbers;  // by the name of a column, an array or a channel
  std::map<std::string, std::int64_t> classes;      // records by the name of their class
  NumberStatistics lengths;                         // of records: in bytes, or features given in a row of LibSVM
  bool empty() const { return numbers.empty() && classes.empty() && lengths.count == 0; }  // is nothing known?
  friend bool operator==(const DataStatistics&, const DataStatistics&) = default;
};

// The decoder of paceline/decoder.h that reads the records: "csv_row" with the options {"columns": 14, "label": 0}.
struct DecoderDescription {
  std::string name;                             // of the function that makes it; empty: not known
  std::map<std::string, std::int64_t> options;  // numbers and truth values, by the names of its options
  std::vector<ExampleArray> arrays;             // that the decoders "tensor" and "tensors" give
  // "csv_row(columns=14, label=0)", or "" where it is not known.
  std::string text() const;
  friend bool operator==(const DecoderDescription&, const DecoderDescription&) = default;
};

// What is known of a data set.
struct Manifest {
  std::string payload = "image";    // what a record holds: "image" is MXNet's image record; "bytes": anything
  std::string encoding;             // of the images: "raw", "png", "jpg", "mixed"
  int label_width = 1;              // numbers per record; the most, where they vary
  bool variable_labels = false;     // a record may have fewer numbers, as those for detection do
  bool class_labels = true;         // the one label is a class number 0, 1, 2, ...
  std::vector<std::string> labels;  // names of the classes; may be empty
  ImageSize image;                  // of all images
  DecoderDescription decoder;       // of records that are no images; for a loader that is given no decoder
  std::optional<std::uint32_t> columns_crc32c;  // of the columns of a table and their categories; none: not known
  DataStatistics statistics;                    // as a converter counted them; may be empty
  std::optional<std::uint64_t> shuffle_seed;    // of the order in which records were packed; none: not shuffled
  std::vector<Shard> shards;                    // in the order in which their records are numbered
  std::string folder;                           // where it was loaded from; not stored

  // The number of records in all shards.
  std::int64_t records() const;
  // The full path, or the URL, of a shard's record file.
  std::string path_of(const Shard& shard) const;

  // Reads a manifest and verifies its own checksum, if it has one. Throws IoError, and Corrupt, which says what is
  // wrong.
  static Manifest load(const std::string& path);
  // Writes to a temporary file and renames it. Throws IoError, and InvalidArgument for names that are not UTF-8.
  void save(const std::string& path) const;
  friend bool operator==(const Manifest&, const Manifest&) = default;
};

// Writes a data set: `PREFIX-00000-of-00002.rec` and so on, their `.idx` and `.crc`, and `PREFIX.manifest` last. All
// files have temporary names until finish(). The destructor removes these files if the data set is not finished. Not
// thread-safe, but write() to different shards may run at the same time.
class DatasetWriter {
 public:
  // Creates the folder of `prefix` where there is none. Throws IoError. Throws InvalidArgument for less than one shard,
  // too many shards, and a prefix that names no file or is not UTF-8.
  DatasetWriter(const std::string& prefix, int shards);
  ~DatasetWriter();
  DatasetWriter(const DatasetWriter&) = delete;
  DatasetWriter& operator=(const DatasetWriter&) = delete;

  // Appends a record to a shard, counted from 0; `key` goes into its index. Throws IoError, and
  // InvalidArgument where there is no such shard.
  void write(int shard, std::int64_t key, std::string_view record);
  // Sets the shards of `manifest`, gives all files their names and returns the manifest's path. Throws InvalidArgument
  // where a shard holds no record, and what Manifest::save() throws.
  std::string finish(Manifest manifest);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace paceline
