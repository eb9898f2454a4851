#include <paceline/record_tools.h>

#include <paceline/crc32c.h>
#include <paceline/decoder.h>
#include <paceline/detail/in_parallel.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "examine.h"
#include "file.h"
#include "said_by.h"
#include "work_progress.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

fs::path plain(const fs::path& path) { return fs::absolute(path).lexically_normal(); }

std::vector<io::Examined> examine_all(const std::vector<std::string>& files, const RecordWork& work) {
  require(!files.empty(), "no record files were given");
  std::set<fs::path> once;
  for (const std::string& file : files) {
    require(!is_remote(file), redacted(file), " is on another host, and a manifest names files beside it");
    require(once.insert(plain(file)).second, file, " was given twice");
  }
  std::vector<io::Examined> found(files.size());
  detail::in_parallel(files.size(), work.threads, [&](std::size_t i) {
    found[i] = io::examine(files[i], work);
    io::require_sound(found[i]);
    require(!found[i].index.empty(), files[i], " holds no records");
  });
  return found;
}

// The manifest's entry for a record file. Writes the index and the checksums of the file where they are missing.
Shard complete(const io::Examined& file, const fs::path& manifest) {
  Shard shard;
  shard.path = plain(file.path).lexically_relative(plain(manifest).parent_path()).string();
  shard.records = static_cast<std::int64_t>(file.index.size());
  shard.bytes = file.bytes;
  shard.crc32c = file.crc32c;
  shard.index_crc32c = file.beside.index_crc32c;
  shard.checksum_crc32c = file.beside.checksum_crc32c;
  if (!file.beside.index) {
    write_index(index_path(file.path), file.index);
    shard.index_crc32c = crc32c(io::read_file(index_path(file.path)));
  }
  if (!file.beside.checksums) {
    write_checksums(checksum_path(file.path), file.checksums);
    shard.checksum_crc32c = crc32c(io::read_file(checksum_path(file.path)));
  }
  return shard;
}

RecordStatistics together(const std::vector<io::Examined>& files) {
  RecordStatistics all;
  for (const io::Examined& file : files) all.add(file.statistics);
  return all;
}

// Makes the manifest of a data set hold for the records that come to it, too. `more` describes these records. Throws
// InvalidArgument where they do not fit.
void extend(Manifest& manifest, const Manifest& more, const std::string& path) {
  require(more.payload == manifest.payload, "the records are of the kind '", more.payload, "', those of ", path, " '",
          manifest.payload, "'");
  require(more.label_width == manifest.label_width || manifest.variable_labels, "the records have ", more.label_width,
          " labels, those of ", path, " ", manifest.label_width);
  // A decoder knows what the labels of its records are.
  require(more.class_labels || !manifest.class_labels || !manifest.decoder.name.empty(),
          "the labels are no class numbers, as those of ", path, " are");
  if (more.encoding != manifest.encoding) manifest.encoding = "mixed";
  manifest.label_width = std::max(manifest.label_width, more.label_width);
  manifest.variable_labels |= more.variable_labels;
  const auto common = [](int& mine, int other) { mine = mine == other ? mine : 0; };
  common(manifest.image.height, more.image.height);
  common(manifest.image.width, more.image.width);
  common(manifest.image.channels, more.image.channels);
  manifest.shuffle_seed.reset();
  manifest.statistics = {};  // of the earlier records alone
}

// Throws InvalidArgument where the decoder that the manifest names cannot read a record, or finds a label that is none
// of the classes. A manifest whose decoder this release does not have is not checked.
void require_decodes(const Manifest& manifest, const std::string& path, const std::vector<io::Examined>& files,
                     const RecordWork& work) {
  DecoderFactory make;
  try {
    make = decoders::named_in(manifest);
  } catch (const InvalidArgument&) {
    return;
  }
  RecordWork again = work;  // whose bytes were counted already; the caller may still end the work
  again.progress = [&work](std::uint64_t) {
    if (work.progress) work.progress(0);
  };
  const auto classes = static_cast<std::int64_t>(manifest.class_labels ? manifest.labels.size() : 0);
  detail::in_parallel(files.size(), work.threads, [&](std::size_t i) {
    const std::unique_ptr<Decoder> decoder = make();
    std::vector<std::vector<std::byte>> arrays;
    std::vector<void*> to;
    const std::int32_t* label = nullptr;
    for (const ExampleArray& array : decoder->arrays()) {
      arrays.emplace_back(static_cast<std::size_t>(array.shape.size()) * size_of(array.dtype));
      if (array.name == "label" && array.dtype == DType::kInt32 && array.shape.size() == 1)
        label = reinterpret_cast<const std::int32_t*>(arrays.back().data());
    }
    for (auto& array : arrays) to.push_back(array.data());
    const RecordFile file(files[i].path, files[i].index);
    io::WorkProgress progress(again);
    std::string record;
    for (std::int64_t place = 0; place < file.size(); ++place) {
      const auto refuse = [&](const std::string& why) {
        throw InvalidArgument(str(file.path(), ": record ", place, " is not of the kind of ", path, ": ", why));
      };
      file.read(place, record);
      try {
        decoder->decode(record, 0, to);
      } catch (const Corrupt& error) {
        refuse(error.what());
      }
      if (label && classes > 0 && *label >= classes) refuse(str("its label is ", *label, " of ", classes, " classes"));
      progress.add(record.size());
    }
    progress.finish();
  });
}

// Names the classes in the manifest. Throws InvalidArgument unless the labels are numbers of these classes.
void name_classes(Manifest& manifest, const RecordStatistics& statistics, const std::vector<std::string>& classes) {
  if (classes.empty()) return;
  require(manifest.class_labels, "the records have no class numbers, which names of classes belong to");
  manifest.labels = classes;
  io::require_names_for(statistics, manifest);
}

}  // namespace

Manifest index_records(const std::vector<std::string>& record_files, const std::string& manifest_path,
                       const RecordWork& work, const std::vector<std::string>& classes) {
  require(!fs::exists(manifest_path), manifest_path, " exists; remove it first, or name another manifest");
  const std::vector<io::Examined> files = examine_all(record_files, work);
  Manifest manifest;
  const RecordStatistics statistics = together(files);
  statistics.describe(manifest);
  name_classes(manifest, statistics, classes);
  for (const io::Examined& file : files) manifest.shards.push_back(complete(file, manifest_path));
  manifest.save(manifest_path);
  manifest.folder = fs::path(manifest_path).parent_path().string();
  return manifest;
}

Manifest append_records(const std::string& manifest_path, const std::vector<std::string>& sources,
                        const RecordWork& work) {
  Manifest manifest = Manifest::load(manifest_path);
  std::vector<std::string> all{manifest_path}, added;
  for (const std::string& source : sources) {
    all.push_back(source);
    for (const std::string& file : record_files(source)) added.push_back(file);
  }
  for (const Shard& shard : manifest.shards) {
    for (const std::string& file : added)
      require(plain(manifest.path_of(shard)) != plain(file), manifest_path, " names ", file, " already");
  }
  const auto columns = std::exchange(manifest.columns_crc32c, io::said_by(all).manifest.columns_crc32c);
  const std::vector<io::Examined> files = examine_all(added, work);
  const RecordStatistics statistics = together(files);
  Manifest more;
  statistics.describe(more);
  extend(manifest, more, manifest_path);
  require_decodes(manifest, manifest_path, files, work);
  io::require_names_for(statistics, manifest);
  for (const io::Examined& file : files) manifest.shards.push_back(complete(file, manifest_path));
  manifest.save(manifest_path);
  if (columns && !manifest.columns_crc32c)
    LOG(WARNING) << manifest_path << " keeps no checksum of its columns, because not all sources say theirs";
  return manifest;
}

}  // namespace paceline
