#include "convert/packed_images.h"

#include <paceline/detail/vector_code.h>
#include <paceline/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>

namespace paceline::io {
namespace {

ImageEncoding encoding_named(const std::string& name) try {
  return parse_image_encoding(name);
} catch (const InvalidArgument& unknown) {
  throw InvalidArgument(str(unknown.what(), " auto"));  // a word that only sources know
}

Image transform(Image image, const ImageSourceOptions& options) {
  if (options.center_crop) {
    const int edge = std::min(image.height, image.width);
    image = crop(image, (image.height - edge) / 2, (image.width - edge) / 2, edge, edge);
  }
  if (options.resize > 0) {
    const int edge = std::min(image.height, image.width);
    const auto scaled = [&](int size) {
      constexpr std::int64_t kMost = std::numeric_limits<int>::max();
      return static_cast<int>(std::min(std::int64_t{size} * options.resize / edge, kMost));
    };
    if (edge != options.resize) image = resize(image, scaled(image.height), scaled(image.width));
  }
  return image;
}

// Sums of the bytes of an image of 1 or 3 channels. A lane takes every 48th byte, so it is of one channel.
class PixelSums {
 public:
  explicit PixelSums(std::span<const std::uint8_t> pixels) {
    smallest_.fill(std::numeric_limits<std::uint8_t>::max());
    for (std::size_t at = 0; at < pixels.size();) {
      const std::size_t bytes = std::min(pixels.size() - at, kLanes * kMostOfALane);
      detail::vector_code([&]() PACELINE_INLINE { add(pixels.data() + at, bytes); });
      for (std::size_t lane = 0; lane < kLanes; ++lane) {
        sums_[lane] += std::exchange(some_[lane], 0);
        squares_[lane] += std::exchange(some_squares_[lane], 0);
      }
      at += bytes;
    }
  }

  // Numbers 0 to 3 of a tally are grey, red, green and blue.
  void add_to(Tally& tally, std::size_t channels, std::size_t pixels) const {
    if (pixels == 0) return;
    for (std::size_t channel = 0; channel < channels; ++channel) {
      std::uint64_t sum = 0, squares = 0;
      std::uint8_t smallest = std::numeric_limits<std::uint8_t>::max(), largest = 0;
      for (std::size_t lane = channel; lane < kLanes; lane += channels) {
        sum += sums_[lane];
        squares += squares_[lane];
        smallest = std::min(smallest, smallest_[lane]);
        largest = std::max(largest, largest_[lane]);
      }
      constexpr double kScale = 1.0 / 255;
      tally.number(channels == 1 ? 0 : channel + 1)
          .add_sums(static_cast<std::int64_t>(pixels), static_cast<double>(sum) * kScale,
                    static_cast<double>(squares) * kScale * kScale, smallest * kScale, largest * kScale);
    }
  }

 private:
  static constexpr std::size_t kLanes = 48;
  static constexpr std::size_t kMostOfALane = 65536;  // whose squares 32 bits hold

  // Four bytes of each lane at a time, so that sums are seldom read and written.
  PACELINE_INLINE void add(const std::uint8_t* pixels, std::size_t bytes) {
    constexpr std::size_t kAtATime = 4;
    const auto rows = [&]<std::size_t count>(std::integral_constant<std::size_t, count>, std::size_t lanes)
                          PACELINE_INLINE {
                            for (std::size_t lane = 0; lane < lanes; ++lane) {
                              for (std::size_t row = 0; row < count; ++row) {
                                const std::uint8_t pixel = pixels[row * kLanes + lane];
                                some_[lane] += pixel;
                                some_squares_[lane] += static_cast<std::uint16_t>(pixel * pixel);
                                smallest_[lane] = std::min(smallest_[lane], pixel);
                                largest_[lane] = std::max(largest_[lane], pixel);
                              }
                            }
                            pixels += count * lanes;
                            bytes -= count * lanes;
                          };
    constexpr std::integral_constant<std::size_t, kAtATime> kSeveral;
    constexpr std::integral_constant<std::size_t, 1> kOne;
    while (bytes >= kAtATime * kLanes) rows(kSeveral, kLanes);
    while (bytes >= kLanes) rows(kOne, kLanes);
    rows(kOne, bytes);
  }

  std::array<std::uint32_t, kLanes> some_ = {}, some_squares_ = {};
  std::array<std::uint64_t, kLanes> sums_ = {}, squares_ = {};
  std::array<std::uint8_t, kLanes> smallest_ = {}, largest_ = {};
};

class ImageSource final : public RecordSource {
 public:
  ImageSource(ImageList list, std::unique_ptr<const ImageBytes> bytes, const ImageSourceOptions& options,
              std::string identity, std::vector<std::uint64_t> keys)
      : list_(std::move(list)),
        bytes_(std::move(bytes)),
        options_(options),
        identity_(std::move(identity)),
        keys_(std::move(keys)) {
    require(options.resize >= 0, "--resize cannot be ", options.resize);
    require(options.quality >= 1 && options.quality <= 100, "--quality is 1 to 100, not ", options.quality);
    require(options.channels == 0 || options.channels == 1 || options.channels == 3, "--channels is 0, 1 or 3, not ",
            options.channels);
    require(options.encoding == "auto" || !options.pass_through, "--pass_through and --encoding exclude each other");
    require(!options.pass_through || !bytes_->plain(), "--pass_through is for image files");
    if (options.encoding != "auto")
      encoding_ = encoding_named(options.encoding);
    else if (bytes_->plain())
      encoding_ = ImageEncoding::kPng;
    else
      keep_ = true;
    classes_ = std::all_of(list_.entries.begin(), list_.entries.end(), [](const ImageListEntry& e) {
      return e.labels.size() == 1 && e.labels[0] >= 0 && e.labels[0] == std::floor(e.labels[0]);
    });
  }

  std::int64_t size() const override { return static_cast<std::int64_t>(list_.entries.size()); }
  const char* unit() const override { return "images"; }
  std::int64_t block() const override { return 8; }
  std::string place(std::int64_t i) const override { return entry(i).path; }
  std::int64_t id(std::int64_t i) const override { return entry(i).id; }
  std::vector<std::uint64_t> keys() const override { return keys_; }
  std::vector<std::string> number_names() const override { return {"grey", "red", "green", "blue"}; }
  std::unique_ptr<EntryEncoder> encoder(const std::function<void()>& wait) const override;

  Manifest description() const override {
    Manifest manifest;
    manifest.labels = list_.classes;
    const auto [fewest, most] = std::minmax_element(
        list_.entries.begin(), list_.entries.end(),
        [](const ImageListEntry& a, const ImageListEntry& b) { return a.labels.size() < b.labels.size(); });
    manifest.label_width = static_cast<int>(most->labels.size());
    manifest.variable_labels = fewest->labels.size() != most->labels.size();
    manifest.class_labels = classes_;
    return manifest;
  }

  std::string identity() const override {
    std::string text = str("images ", options_.encoding, ' ', options_.quality, ' ', options_.resize, ' ',
                           options_.center_crop, ' ', options_.channels, ' ', options_.pass_through, '\n', identity_);
    std::string labels;
    for (const ImageListEntry& e : list_.entries) {
      labels += str(e.id);
      for (const float label : e.labels) labels.append(reinterpret_cast<const char*>(&label), sizeof label);
    }
    for (const std::string& name : list_.classes) labels += '\n' + name;
    return text + str(stable_hash(labels), '\n');
  }

  const ImageListEntry& entry(std::int64_t i) const { return list_.entries[static_cast<std::size_t>(i)]; }
  const ImageBytes& bytes() const { return *bytes_; }
  const ImageSourceOptions& options() const { return options_; }
  ImageEncoding encoding() const { return encoding_; }
  bool keeps() const { return keep_; }
  bool has_classes() const { return classes_; }

 private:
  const ImageList list_;
  const std::unique_ptr<const ImageBytes> bytes_;
  const ImageSourceOptions options_;
  const std::string identity_;
  const std::vector<std::uint64_t> keys_;
  ImageEncoding encoding_ = ImageEncoding::kJpeg;
  bool keep_ = false;  // bytes of files where nothing is changed
  bool classes_ = false;
};

class ImageEncoder final : public EntryEncoder {
 public:
  ImageEncoder(const ImageSource& source, const std::function<void()>& wait) : source_(source), wait_(wait) {}

  void encode(std::int64_t i, std::string& record, Tally& tally) override {
    const ImageListEntry& entry = source_.entry(i);
    record = pack_image_record(entry.labels, static_cast<std::uint64_t>(entry.id), image_bytes(i, tally));
    if (source_.has_classes()) ++tally.classes[static_cast<std::int64_t>(entry.labels[0])];
  }

 private:
  std::string image_bytes(std::int64_t i, Tally& tally) {
    const ImageSourceOptions& options = source_.options();
    std::string bytes;
    Image& image = image_;
    ImageHeader header;
    if (source_.bytes().plain()) {
      image = source_.bytes().pixels(i);
    } else {
      bytes = source_.bytes().read(i, wait_);
      if (options.pass_through) {
        if (bytes.empty()) throw Corrupt("the file is empty");
        add_header(bytes, tally);
        return bytes;
      }
      header = codec_.header(bytes);
      codec_.decode_part({0, 0, header.height, header.width}, image);
    }
    const ImageSize before{image.height, image.width, image.channels};
    image = transform(std::move(image), options);
    if (options.channels != 0 && options.channels != image.channels) {
      const std::string raw = codec_.encode(image, ImageEncoding::kRaw);
      codec_.decode(raw, image, options.channels);
    }
    const ImageSize size{image.height, image.width, image.channels};
    const bool kept = source_.keeps() && size == before;
    tally.add_image(size, name_of(kept ? header.encoding : source_.encoding()));
    const auto channels = static_cast<std::size_t>(image.channels);
    PixelSums(image.pixels).add_to(tally, channels, image.pixels.size() / channels);
    if (kept) return bytes;
    return codec_.encode(image, source_.encoding(), options.quality);
  }

  // Without a header that can be read, nothing can be told.
  void add_header(const std::string& bytes, Tally& tally) {
    try {
      const ImageHeader header = codec_.header(bytes);
      tally.add_image({header.height, header.width, header.channels}, name_of(header.encoding));
    } catch (const Corrupt&) {
      tally.add_image({}, "mixed");
    }
  }

  const ImageSource& source_;
  const std::function<void()> wait_;
  ImageCodec codec_;
  Image image_;  // whose memory is reused
};

std::unique_ptr<EntryEncoder> ImageSource::encoder(const std::function<void()>& wait) const {
  return std::make_unique<ImageEncoder>(*this, wait);
}

}  // namespace

RecordSourceHandle packed_images(ImageList list, std::unique_ptr<const ImageBytes> bytes,
                                 const ImageSourceOptions& options, std::string identity,
                                 std::vector<std::uint64_t> keys) {
  return std::make_shared<ImageSource>(std::move(list), std::move(bytes), options, std::move(identity),
                                       std::move(keys));
}

}  // namespace paceline::io
