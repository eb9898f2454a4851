#pragma once
// Lists of image files: folders and MXNet's `.lst`.

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

struct ImageListEntry {
  std::int64_t id = 0;
  std::vector<float> labels;
  std::string path;  // as found: below the folder, or below `root`
};

struct ImageList {
  std::vector<ImageListEntry> entries;
  std::vector<std::string> classes;  // names by label; empty for `.lst`
};

// The .jpg, .jpeg and .png files below `folder`, any case, sorted by path. Each sub-folder that holds images is a
// class, numbered in sorted order; images of the folder itself, if there are no others, have class 0. Throws IoError,
// InvalidArgument where there are no images, or some inside and some outside of the sub-folders.
ImageList list_image_folder(const std::string& folder);

// Lines `id \t label [\t label ...] \t path`; all lines have the same number of labels. Paths are taken relative to
// `root`. Throws IoError, Corrupt (file, line).
ImageList read_image_list(const std::string& path, const std::string& root);

}  // namespace paceline
