#pragma once
// Changes of the colours of an image, in place. Each rounds down to whole levels, 0 to 255, as torchvision's functions
// of the same names do with bytes.

#include <paceline/image.h>

#include <array>

#include "augment/warp.h"

namespace paceline::io {

// A weighted mean, by the factor, of the image and of black, of its mean grey level, of its luminance. A factor above 1
// goes away from it.
void adjust_brightness(Image& image, double factor);
void adjust_contrast(Image& image, double factor);
void adjust_saturation(Image& image, double factor);
// Moves the hue along the circle of colours by so many turns, -0.5 to 0.5.
void adjust_hue(Image& image, double shift);
// Every channel becomes the luminance.
void make_grey(Image& image);
// A part gets one colour.
void fill(Image& image, const Rectangle& part, const Colour& colour);
// Adds a number to each channel, rounded to the nearest level.
void add_to_channels(Image& image, const std::array<double, 3>& numbers);

}  // namespace paceline::io
