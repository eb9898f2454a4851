// Packs images into a data set: shards of records, their indexes and checksums, and a manifest.

#include <paceline/convert_sources.h>
#include <paceline/error.h>

#include "converting.h"
#include "flags.h"

DEFINE_bool(skip_bad, false, "leave out images that cannot be read or decoded, instead of failing at the end");

namespace paceline {
namespace {

constexpr char kUsage[] =
    "im2rec [flags] PREFIX SOURCE\n\n"
    "Packs images into PREFIX.manifest, PREFIX-00000-of-0000N.rec, .idx and .crc. SOURCE is\n"
    "  a folder      .jpg, .jpeg and .png files; each sub-folder is a class, but not those that begin with '.'\n"
    "  a .lst file   lines `id TAB label [TAB label ...] TAB path`, as MXNet's im2rec writes them\n"
    "  an IDX file   MNIST's images, plain or .gz; the labels from --labels\n"
    "Images that cannot be read are listed in PREFIX.bad.txt. A run that was killed goes on when it is started again.\n"
    "to_rec converts images with more options, and other data.";

int run(const std::string& prefix, const std::string& path) {
  ConvertOptions options = tools::convert_options();
  options.skip_bad = FLAGS_skip_bad;
  options.skip_hint = "--skip_bad leaves them out";
  return tools::convert_and_tell(prefix, *image_source(path, tools::image_source_options()), std::move(options),
                                 "image");
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  paceline::tools::parse_flags(paceline::kUsage, {{__FILE__, paceline::tools::kConvertingFlags}}, &argc, &argv, 2);
  return paceline::tools::run_main("im2rec", [&] {
    paceline::require(argc == 3, "needs a prefix and a source; see im2rec --help");
    return paceline::run(argv[1], argv[2]);
  });
}
