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
  std::string path;           // of the file, with the folder or `root` before it
};

// Image files in the order in which they are packed.
struct ImageList {
  std::vector<ImageListEntry> entries;  // the files
  std::vector<std::string> classes;     // names by label; empty for `.lst` and for images outside of sub-folders
};

// Lists the files below `folder` whose names end in .jpg, .jpeg or .png, in upper or lower case, sorted by path. Links
// are followed. A link with such a name is listed even if it leads nowhere. Each sub-folder that holds images is a
// class, numbered in sorted order. Images of the folder itself have class 0, and a warning is logged. Throws IoError.
// Throws InvalidArgument where there are no images, where some are inside and some outside of sub-folders, where a link
// leads back to a folder above it, and where the name of a class is not UTF-8.
ImageList list_image_folder(const std::string& folder);

// Reads lines `id \t label [\t label ...] \t path`, each with an id of its own. Paths are relative to `root`. All have
// the same number of labels, unless all have those of MXNet's detection: the length A of a header, the length B of an
// object, A - 2 further numbers, and B numbers for each object. Throws IoError, InvalidArgument for a list without
// images, and Corrupt with file and line.
ImageList read_image_list(const std::string& path, const std::string& root);

}  // namespace paceline
