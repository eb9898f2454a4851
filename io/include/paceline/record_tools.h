#pragma once
// Work on whole record files and data sets: index, verify, count, copy, repair. Each function reads a file once, and
// several files at a time. "A source" is a manifest, which stands for its shards, or a record file.

#include <paceline/manifest.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace paceline {

// How files are worked on.
struct RecordWork {
  int threads = 1;  // files at a time
  // Told of bytes that were read, by any of the threads. What it throws ends the work, and nothing is written then.
  std::function<void(std::uint64_t bytes)> progress = {};
};

// What records hold. Where every record is an image record, the labels and images are known.
struct RecordStatistics {
  std::int64_t records = 0;                       // how many
  std::uint64_t bytes = 0;                        // of them together, without framing
  std::uint64_t shortest = 0;                     // of one, in bytes
  std::uint64_t longest = 0;                      // of one, in bytes
  std::map<std::string, std::int64_t> encodings;  // records by "jpg", "png", "raw"; "none": no image in it
  int fewest_labels = 0;                          // of an image record
  int most_labels = 0;                            // of an image record
  bool class_labels = true;                       // each has one label, a number 0, 1, 2, ...
  std::map<float, std::int64_t> labels;           // records by their first label; the first 1,000 labels that came
  std::optional<float> largest_label;             // of all first labels; none: there are none
  ImageSize smallest;                             // of images, each dimension by itself
  ImageSize largest;                              // of images, each dimension by itself

  std::int64_t images() const;              // records that hold an image
  void add(const RecordStatistics& other);  // counts both together
  void describe(Manifest& manifest) const;  // says in the manifest what the records hold
};

// The record files that a source stands for, as paths. Throws as Manifest::load().
std::vector<std::string> record_files(const std::string& source);

// What verify() found. Nothing is wrong where `problems` is empty.
struct VerifyReport {
  std::int64_t records = 0;           // that were read
  std::int64_t shards = 0;            // files that were read
  std::int64_t left_out = 0;          // records that are sound, but that no index names
  std::int64_t unchecked = 0;         // records without a checksum, whose contents were not checked
  std::vector<std::string> problems;  // one sentence each, in file order
};

// Reads every record, and checks framing, index, checksums and counts, as far as they are there. It goes on after
// damage. A record file that cannot be read is a problem of the report. Throws IoError and Corrupt only where the
// manifest cannot be read.
VerifyReport verify(const std::string& source, const RecordWork& work = {});

// Counts what the records of a source hold. Records that its indexes leave out do not count. Throws IoError, and
// Corrupt at damage.
RecordStatistics statistics(const std::string& source, const RecordWork& work = {});

// Writes what a loader needs beside record files that others made, and `manifest`, which names them: `.idx` and `.crc`
// of each where it has none. The record files and indexes that are there are not touched. An index may name some of the
// records only: then these are the data set. `classes` are the names of the classes by number; none: they stay without.
// Throws IoError; Corrupt at damage, before anything is written; InvalidArgument where the manifest exists, a file
// holds no records, or the labels are no numbers of these classes.
Manifest index_records(const std::vector<std::string>& record_files, const std::string& manifest,
                       const RecordWork& work = {}, const std::vector<std::string>& classes = {});

// Adds the record files of `sources` to a data set as further shards, without copying them. Otherwise as
// index_records(). Throws InvalidArgument also where the records do not fit those of the data set, or the manifest of a
// source has another decoder, other classes or other columns of a table. A record file does not say its columns, so
// that the manifest then loses the checksum of its own, with a warning. The statistics of the manifest are dropped.
// Where the manifest names a decoder, each new record is read a second time, to try it.
Manifest append_records(const std::string& manifest, const std::vector<std::string>& sources,
                        const RecordWork& work = {});

// Copies the records of `sources`, in order, into a data set of so many shards with about as many records each. Records
// keep their bytes, and their keys where no two are equal; else they are numbered anew. Classes keep their names, which
// must be the same in every source that names them, and be enough for every label. The checksum of the columns of a
// table must be the same too. Where a manifest names a decoder, every source must be a data set with the same decoder.
// Throws IoError, Corrupt at damage, InvalidArgument.
Manifest copy_records(const std::vector<std::string>& sources, const std::string& prefix, int shards,
                      const RecordWork& work = {});

// What repair_records() did.
struct RepairReport {
  std::int64_t records = 0;        // that were saved
  std::uint64_t bytes = 0;         // that were left out
  std::vector<RecordDamage> lost;  // in file order; a place where bytes were skipped may have held several records
};

// Copies the records that can be read into a data set with a shard for each file of the source. After damage it goes on
// at the next head of a record. Records that differ from their checksum are lost too. Throws IoError, and
// InvalidArgument where a file holds no record that can be read.
RepairReport repair_records(const std::string& source, const std::string& prefix, const RecordWork& work = {});

// What extract_records() wrote.
struct ExtractReport {
  std::int64_t images = 0;  // files of images
  std::int64_t others = 0;  // files of records without an image
  std::string list;         // path of the list
};

// Writes each image into a file of an empty or new folder, with its bytes as they are, and a list `extracted.lst` with
// its labels, which read_image_list() reads. Files have the numbers of their records. A record without an image is
// written whole, as `.bin`, and not listed. Throws IoError, Corrupt at damage, InvalidArgument.
ExtractReport extract_records(const std::string& source, const std::string& folder, const RecordWork& work = {});

}  // namespace paceline
