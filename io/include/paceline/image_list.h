#pragma once
// Lists of image files: folders and MXNet's `.lst`.

#include <cstdint>
#include <string>
#include <vector>

namespace paceline {

// An image file with its labels.
struct ImageListEntry {
  std::int64_t id = 0;        // the number of its record
  std::vector<float> labels;  // at least one
  std::string path;           // below the folder, or below `root`
};

// Image files in the order in which they are packed.
struct ImageList {
  std::vector<ImageListEntry> entries;  // the files
  std::vector<std::string> classes;     // names by label; empty for `.lst`
};

// The .jpg, .jpeg and .png files below `folder`, in any case, sorted by path. Each sub-folder that holds images is a
// class, numbered in sorted order. Images of the folder itself have class 0. Throws IoError, and InvalidArgument where
// there are no images, or some inside and some outside of sub-folders.
ImageList list_image_folder(const std::string& folder);

// Reads lines `id \t label [\t label ...] \t path`, all with the same number of labels. Paths are relative to `root`.
// Throws IoError, and Corrupt with file and line.
ImageList read_image_list(const std::string& path, const std::string& root);

}  // namespace paceline
