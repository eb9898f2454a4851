// Packs images into a data set: shards of records, their indexes and checksums, and a manifest.

#include <paceline/convert_sources.h>
#include <paceline/error.h>

#include "converting.h"
#include "flags.h"

DEFINE_string(labels, "", "IDX file of the labels; by default MNIST's name beside the images");
DEFINE_string(root, "", "folder that the paths of a list are relative to; by default the list's own");
DEFINE_int32(shards, 1, "number of record files");
DEFINE_int32(threads, 0, "threads that decode and encode; 0: all cores");
DEFINE_bool(shuffle, true, "pack in a random order, so that every shard is a fair sample");
DEFINE_uint64(seed, 0, "of the random order");
DEFINE_string(encoding, "auto",
              "png, jpg or raw; auto keeps a file's bytes where nothing is changed, else jpg, and makes IDX images "
              "png. raw is binary PNM, which loads fastest and which MXNet's iterators refuse");
DEFINE_int32(quality, 95, "of JPEG, 1 to 100");
DEFINE_int32(resize, 0, "make the shorter edge so many pixels; 0: leave the size");
DEFINE_bool(center_crop, false, "cut out the square in the middle, before resizing");
DEFINE_int32(channels, 0, "1 grey, 3 colour; 0: as stored");
DEFINE_bool(pass_through, false, "store the files' bytes without decoding them");
DEFINE_bool(skip_bad, false, "leave out images that cannot be read or decoded, instead of failing at the end");

namespace paceline {
namespace {

constexpr char kUsage[] =
    "im2rec [flags] PREFIX SOURCE\n\n"
    "Packs images into PREFIX.manifest, PREFIX-00000-of-0000N.rec, .idx and .crc. SOURCE is\n"
    "  a folder      .jpg, .jpeg and .png files; each sub-folder is a class\n"
    "  a .lst file   lines `id TAB label [TAB label ...] TAB path`, as MXNet's im2rec writes them\n"
    "  an IDX file   MNIST's images, plain or .gz; the labels from --labels\n"
    "Images that cannot be read are listed in PREFIX.bad.txt. A run that was killed goes on when it is started again.\n"
    "to_rec converts images with more options, and other data.";

int run(const std::string& prefix, const std::string& path) {
  const int threads = tools::threads_wanted(FLAGS_threads);
  const RecordSourceHandle source = image_source(path, {.labels = FLAGS_labels,
                                                        .root = FLAGS_root,
                                                        .encoding = FLAGS_encoding,
                                                        .quality = FLAGS_quality,
                                                        .resize = FLAGS_resize,
                                                        .center_crop = FLAGS_center_crop,
                                                        .channels = FLAGS_channels,
                                                        .pass_through = FLAGS_pass_through});
  return tools::convert_and_tell(prefix, *source,
                                 {.shards = FLAGS_shards,
                                  .shuffle = FLAGS_shuffle,
                                  .seed = FLAGS_seed,
                                  .threads = threads,
                                  .skip_bad = FLAGS_skip_bad,
                                  .skip_hint = "--skip_bad leaves them out"},
                                 "image");
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  paceline::tools::parse_flags(paceline::kUsage, __FILE__, &argc, &argv, 2);
  return paceline::tools::run_main("im2rec", [&] {
    paceline::require(argc == 3, "needs a prefix and a source; see im2rec --help");
    return paceline::run(argv[1], argv[2]);
  });
}
