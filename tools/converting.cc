#include "converting.h"

#include <paceline/error.h>

#include <csignal>
#include <cstdio>
#include <memory>
#include <utility>

#include "flags.h"
#include "interrupt.h"
#include "progress.h"

DEFINE_int32(shards, 1, "number of record files, of each set");
DEFINE_int32(threads, 0, "threads that read, decode and encode; 0: all cores");
DEFINE_bool(shuffle, true, "pack in a random order, so that every shard is a fair sample");
DEFINE_uint64(seed, 0, "of the random order");
DEFINE_string(labels, "", "images: IDX file of the labels; by default MNIST's name beside the images");
DEFINE_string(root, "", "images: folder that the paths of a list are relative to; by default the list's own");
DEFINE_string(encoding, "auto",
              "images: png, jpg or raw; auto keeps a file's bytes where nothing is changed, else jpg, and makes IDX "
              "images png. raw is binary PNM, which loads fastest and which MXNet's iterators refuse");
DEFINE_int32(quality, 95, "images: of JPEG, 1 to 100");
DEFINE_int32(resize, 0, "images: make the shorter edge so many pixels; 0: leave the size");
DEFINE_bool(center_crop, false, "images: cut out the square in the middle, before resizing");
DEFINE_int32(channels, 0, "images: 1 grey, 3 colour; 0: as stored");
DEFINE_bool(pass_through, false, "images: store the files' bytes without decoding them");

namespace paceline::tools {

const char* const kConvertingFlags = __FILE__;

ImageSourceOptions image_source_options() {
  return {.labels = FLAGS_labels,
          .root = FLAGS_root,
          .encoding = FLAGS_encoding,
          .quality = FLAGS_quality,
          .resize = FLAGS_resize,
          .center_crop = FLAGS_center_crop,
          .channels = FLAGS_channels,
          .pass_through = FLAGS_pass_through};
}

ConvertOptions convert_options() {
  ConvertOptions options;
  options.shards = FLAGS_shards;
  options.shuffle = FLAGS_shuffle;
  options.seed = FLAGS_seed;
  options.threads = threads_wanted(FLAGS_threads);
  return options;
}

int convert_and_tell(const std::string& prefix, const RecordSource& source, ConvertOptions options, const char* one) {
  notice_signals();
  std::signal(SIGPIPE, SIG_IGN);  // nobody reads the progress
  constexpr int kMostPrinted = 20;
  int printed = 0;
  std::unique_ptr<Progress> progress;
  std::int64_t told = 0;
  const std::string unit = std::string(one) + "s";
  options.progress = [&](std::int64_t done, std::int64_t entries) {
    if (!progress) progress = std::make_unique<Progress>(static_cast<double>(entries), unit.c_str());
    progress->add(static_cast<double>(done - told));
    told = done;
  };
  options.check = [] {
    if (interrupted) throw IoError("interrupted");
  };
  options.on_bad = [&](const std::string& place, const std::string& problem) {
    if (printed < kMostPrinted) std::fprintf(stderr, "bad %s: %s: %s\n", one, place.c_str(), problem.c_str());
    if (printed == kMostPrinted)
      std::fprintf(stderr, "further bad %ss are listed in %s.bad.txt only\n", one, prefix.c_str());
    ++printed;
  };
  const ConvertReport report = convert(prefix, source, options);
  progress.reset();
  if (report.resumed > 0)
    std::printf("%lld shards were finished by an earlier run\n", static_cast<long long>(report.resumed));
  for (std::size_t i = 0; i < report.sets.size(); ++i) {
    const ConvertedSet& set = report.sets[i];
    std::printf("%s: %lld records in %d shard%s", set.manifest.c_str(), static_cast<long long>(set.records), set.shards,
                set.shards == 1 ? "" : "s");
    if (report.bad > 0 && i + 1 == report.sets.size())
      std::printf(", %lld bad %s%s left out", static_cast<long long>(report.bad), one, report.bad == 1 ? "" : "s");
    std::printf("\n");
  }
  return 0;
}

}  // namespace paceline::tools
