#include <paceline/record_tools.h>

#include <paceline/detail/atomic_file.h>
#include <paceline/detail/in_parallel.h>
#include <paceline/error.h>
#include <paceline/image.h>
#include <paceline/number.h>

#include <filesystem>

#include "file.h"
#include "shard_writer.h"
#include "work_progress.h"

namespace paceline {
namespace {

namespace fs = std::filesystem;

const char* extension_of(ImageEncoding encoding) {
  return encoding == ImageEncoding::kJpeg ? ".jpg" : encoding == ImageEncoding::kPng ? ".png" : ".pnm";
}

void write_bytes(const fs::path& path, std::string_view bytes) {
  io::OutputFile file(path.string());
  file.append(bytes);
  file.close(io::OutputFile::kNoSync);
}

// The records of one file.
struct Extraction {
  std::string lines;
  std::int64_t images = 0;
  std::int64_t others = 0;

  void add(const fs::path& folder, std::int64_t number, const std::string& record, ImageCodec& codec) {
    char name[32];
    std::snprintf(name, sizeof name, "%08lld", static_cast<long long>(number));
    try {
      const ImageRecord parts(record);
      const std::string file = std::string(name) + extension_of(codec.header(parts.image()).encoding);
      write_bytes(folder / file, parts.image());
      lines += std::to_string(number);
      for (int i = 0; i < parts.label_count(); ++i) lines += '\t' + exact_text(parts.label(i));
      lines += '\t' + file + '\n';
      ++images;
    } catch (const Corrupt&) {
      write_bytes(folder / (std::string(name) + ".bin"), record);
      ++others;
    }
  }
};

}  // namespace

ExtractReport extract_records(const std::string& source, const std::string& folder, const RecordWork& work) {
  std::vector<std::unique_ptr<RecordFile>> files;
  std::vector<std::int64_t> starts = {0};
  for (const std::string& path : record_files(source)) {
    files.push_back(std::make_unique<RecordFile>(path));
    starts.push_back(starts.back() + files.back()->size());
  }
  ExtractReport report;
  report.list = (fs::path(folder) / "extracted.lst").string();
  io::create_folder_of(report.list);
  require(fs::is_empty(folder), "the folder ", folder, " is not empty");
  std::vector<Extraction> parts(files.size());
  detail::in_parallel(files.size(), work.threads, [&](std::size_t i) {
    ImageCodec codec;
    io::WorkProgress progress(work);
    std::string record;
    for (std::int64_t place = 0; place < files[i]->size(); ++place) {
      files[i]->read(place, record);
      parts[i].add(folder, starts[i] + place, record, codec);
      progress.add(record.size());
    }
    progress.finish();
  });
  std::string lines;
  for (const Extraction& part : parts) {
    lines += part.lines;
    report.images += part.images;
    report.others += part.others;
  }
  detail::AtomicFile::write_text(report.list, lines);
  return report;
}

}  // namespace paceline
