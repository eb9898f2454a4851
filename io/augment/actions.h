#pragma once
// What the steps of a list do to an image.

#include <paceline/augment.h>

#include <memory>
#include <optional>

#include "augment/picture.h"
#include "augment/step_table.h"
#include "permutation.h"

namespace paceline::io {

// A step that is done to images. Threads may share it.
class Action {
 public:
  virtual ~Action() = default;
  // Throws InvalidArgument where the image is too small, and Corrupt.
  virtual void apply(Picture& picture, Random& random) const = 0;
  // The size of an image that had this one, where sizes are known: 0 is not known.
  virtual augment::Size size_after(augment::Size before) const { return before; }
  // Does it move pixels, and so the boxes of an image?
  virtual bool moves() const { return false; }
};

// Of crops and changes of size, flips and maps; nullptr for other steps. Where a step names no size, `size` is meant.
// Throws InvalidArgument where that is 0.
std::unique_ptr<Action> make_geometry(const CheckedStep& step, augment::Size size);
// Of steps that change colours; nullptr for other steps. Throws InvalidArgument where images have too few channels.
std::unique_ptr<Action> make_colouring(const CheckedStep& step, int channels);

// The levels of a parameter, as a colour.
Colour colour_of(const std::vector<double>& levels);

// The rectangle that erase() draws, if it draws one.
std::optional<Rectangle> draw_erased(const CheckedStep& step, int height, int width, Random& random);

}  // namespace paceline::io
