#pragma once
// An image on its way through the steps. Crops, changes of size and flips are noted and not done, until the pixels are
// asked for. So a crop of an encoded image decodes only what it needs.

#include <paceline/image.h>

#include <vector>

#include "augment/boxes.h"
#include "augment/warp.h"
#include "image_resize.h"

namespace paceline::io {

// Memory that pictures use one after the other.
struct PictureMemory {
  Image held;
  Image spare;
  TapTable down;
  TapTable across;
  Resizer resizer;
};

// Pixel (y, x) of a picture comes from row y and column x of its window, turned round where it is flipped: a pixel of
// the resized source, or `outside`.
struct Geometry {
  Rectangle source;            // of the image; inside it
  int height = 0;              // to which the source is resized
  int width = 0;               // likewise
  Rectangle window;            // of the resized source; may reach outside
  bool mirrored = false;       // left to right
  bool upside_down = false;    // top to bottom
  Colour outside = {0, 0, 0};  // what is outside the resized source
};

class Picture {
 public:
  // The image whose header codec.header() has just read. All arguments must outlive the picture.
  Picture(ImageCodec& codec, const ImageHeader& header, int channels, PictureMemory& memory);
  // An image without pixels, for its geometry alone.
  Picture(int height, int width);

  int height() const { return geometry_.window.height; }
  int width() const { return geometry_.window.width; }
  int channels() const { return channels_; }
  const Geometry& geometry() const { return geometry_; }

  // A JPEG that becomes smaller by 2 or more may be decoded smaller, which changes pixels a little.
  void allow_reduced() { may_reduce_ = is_jpeg_; }
  // `boxes` move along from now on; they must outlive the picture.
  void carry(Boxes& boxes) { boxes_ = &boxes; }

  // The part, which may reach outside: there is this colour.
  void crop(const Rectangle& part, const Colour& outside = {0, 0, 0});
  void resize(int height, int width);
  void mirror();
  void turn_upside_down();
  void warp(const AffineMap& map, bool nearest, const Colour& outside);

  // The image with all that was noted done; what is changed there changes the picture.
  Image& pixels();
  // The same, but that window and flips may be left to do: geometry() says them, and the source is all of the image.
  const Image& nearly_done();

 private:
  bool is_resized() const {
    return geometry_.height != geometry_.source.height || geometry_.width != geometry_.source.width;
  }
  // All of the held image, as it is.
  void start_from_held();
  Rectangle decode(const Rectangle& part, int reduced);
  Rectangle fetch(const Rectangle& part);
  void resize_window(const Rectangle& inner);
  int reduction() const;
  Rectangle inner_window() const;
  void move_boxes(const AffineMap& map);

  ImageCodec* codec_ = nullptr;  // none: the image is held
  PictureMemory* memory_ = nullptr;
  Boxes* boxes_ = nullptr;
  bool is_jpeg_ = false;
  bool may_reduce_ = false;
  int channels_ = 0;
  Geometry geometry_;
};

}  // namespace paceline::io
