#pragma once
// Makes records of images, wherever the bytes of the images come from.

#include <paceline/convert_sources.h>
#include <paceline/idx_file.h>
#include <paceline/image_list.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "convert/source.h"

namespace paceline::io {

// Where images come from.
class ImageBytes {
 public:
  virtual ~ImageBytes() = default;
  // The image in its encoding, or empty where pixels() gives it. Thread-safe. Throws IoError, Corrupt, and what `wait`
  // throws.
  virtual std::string read(std::int64_t entry, const std::function<void()>& wait) const = 0;
  // Grey pixels that have no encoding yet.
  virtual Image pixels(std::int64_t /*entry*/) const { return {}; }
  // Does pixels() give the images, because they have no encoding?
  virtual bool plain() const { return false; }
};

// `identity` changes where the files do, like RecordSource::identity(). `keys` holds a hash for each image, which
// decides its split.
RecordSourceHandle packed_images(ImageList list, std::unique_ptr<const ImageBytes> bytes,
                                 const ImageSourceOptions& options, std::string identity,
                                 std::vector<std::uint64_t> keys);

}  // namespace paceline::io
