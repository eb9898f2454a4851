#pragma once
// Augmentation of images: a list of steps, which ImageOptions::steps holds. As text, for flags and logs, a list is
// "random_resized_crop(scale=0.08:1);flip;normalize(mean=0.5)": steps with ';' between them, parameters with ',', and
// numbers with ':'. A parameter that is not given has the default that is said here. What is random depends on the
// loader's seed, the epoch, the position and the number of the step in the list.

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace paceline::augment {

// A step of a list. The functions below make steps.
struct Step {
  std::string name;                                       // as in the text
  std::map<std::string, std::vector<double>> parameters;  // those that differ from their defaults
  friend bool operator==(const Step&, const Step&) = default;
};

// The list that the text says. Throws InvalidArgument with what is wrong and what is known. "" gives an empty list.
std::vector<Step> parse(std::string_view text);
// The text that parse() reads.
std::string text(const std::vector<Step>& steps);
// The names of all steps, sorted.
std::vector<std::string> names();

// All functions below throw InvalidArgument where a parameter is out of range. A probability is 0 to 1. Levels of
// pixels are 0 to 255: one number, or one for each channel.

// The size of an image. Where both members are 0, it is the size of the examples.
struct Size {
  int height = 0;  // in pixels
  int width = 0;   // in pixels
};
// A number is drawn between the two, uniformly unless said otherwise.
struct Interval {
  double low = 0;   // the least
  double high = 0;  // the most
};

// Steps that change the size, or move pixels. Text: resize(size=224) or resize(size=224:192), height first;
// resize(short=256).
Step resize(Size size = {});       // to this size
Step resize_short(int pixels);     // to this length of the shorter side; the longer side keeps the ratio, rounded down
Step center_crop(Size size = {});  // the middle; a smaller image gets a border of value 0

// Cuts out a part at a random place, after a border of `pad` pixels was put around the image. An image that is then
// smaller than the part is an error.
struct RandomCrop {
  Size size = {};                 // of the crop
  int pad = 0;                    // pixels on each side
  std::vector<double> fill = {};  // level of the border; empty: 0
};
Step random_crop(RandomCrop options = {});

// Cuts out a part of random area and shape, and resizes it to `size`. Where 10 attempts do not fit into the image, it
// takes the largest part in the middle with an allowed shape.
struct RandomResizedCrop {
  Size size = {};                       // of the result
  Interval scale = {0.08, 1};           // share of the image's area
  Interval ratio = {3.0 / 4, 4.0 / 3};  // width by height; its logarithm is uniform
};
Step random_resized_crop(RandomResizedCrop options = {});

Step pad(int pixels, std::vector<double> fill = {});  // a border of this level, 0 if empty
Step flip(double probability = 0.5);                  // left to right; text: flip(p=0.5)
Step flip_vertical(double probability = 0.5);         // upside down

// Changes colours. The factors of brightness, contrast and saturation are drawn from 1 - x to 1 + x, and are at least
// 0; x is the member. The shift of the hue is drawn from -hue to hue, in turns of the circle of colours; hue is at most
// 0.5. The four changes come in random order. Grey images keep their saturation and hue.
struct ColorJitter {
  double brightness = 0;  // the range of its factor
  double contrast = 0;    // likewise
  double saturation = 0;  // likewise
  double hue = 0;         // the range of its shift
};
Step color_jitter(ColorJitter options);
// Noise along the principal components of ImageNet's colours, whose lengths are multiplied by normal numbers with this
// deviation (AlexNet). Only for 3 channels.
Step lighting(double deviation = 0.1);
Step grayscale(double probability = 0.1);  // all channels become the luminance

// Turns about the middle, counter-clockwise; the size stays. What comes from outside has the level `fill`. Text:
// rotate(degrees=15) is -15 to 15.
struct Rotate {
  Interval degrees = {};          // of the turn
  bool nearest = false;           // takes the nearest pixel instead of interpolating
  std::vector<double> fill = {};  // level of what is outside; empty: 0
};
Step rotate(Rotate options);

// An affine map about the middle: shear, scale, turn (clockwise), then translation. The size stays.
struct Affine {
  Interval degrees = {};          // of the turn
  double translate_across = 0;    // at most this share of the width, either way
  double translate_down = 0;      // at most this share of the height, either way
  Interval scale = {1, 1};        // factor of lengths
  Interval shear_across = {};     // degrees by which columns lean
  Interval shear_down = {};       // degrees by which rows lean
  bool nearest = false;           // takes the nearest pixel instead of interpolating
  std::vector<double> fill = {};  // level of what is outside; empty: 0
};
Step affine(Affine options);

// Fills a rectangle of random area and shape. Where 10 attempts do not fit, the image stays as it is. In front of
// normalize() the value is a level of pixels, and behind it a number of the result.
struct Erase {
  double probability = 0.5;        // of an image to lose a rectangle
  Interval scale = {0.02, 0.33};   // share of the image's area
  Interval ratio = {0.3, 3.3};     // height by width; its logarithm is uniform
  std::vector<double> value = {};  // one, or one for each channel; empty: 0
  bool noise = false;              // random levels in front of normalize(), or normal numbers behind it, instead
};
Step erase(Erase options = {});

// Pixels become numbers: (pixel * scale - mean[channel]) / deviation[channel]. A list of float32 examples without it
// gets one from ImageOptions, in front of mixup() and cutmix(). Only erase(), mixup() and cutmix() may follow.
struct Normalize {
  std::vector<double> mean = {};       // one number, or one for each channel; empty: 0
  std::vector<double> deviation = {};  // likewise; empty: 1
  double scale = 1.0 / 255;            // a factor for pixels
};
Step normalize(Normalize options = {});

// mixup() and cutmix() mix each example of a batch with the next one, and the last with the first. They stand last in a
// list. Each batch draws one share from the distribution Beta(alpha, alpha). Labels become the shares of the classes:
// float32 (examples, classes), for nn::softmax_ce(). A batch is mixed at most once: of several such steps, the first
// that its probability chooses mixes it.
Step mixup(double alpha = 1, double probability = 1);   // values and labels are weighted means
Step cutmix(double alpha = 1, double probability = 1);  // a rectangle comes from the other example

}  // namespace paceline::augment
