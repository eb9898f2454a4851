#include <paceline/error.h>
#include <paceline/image.h>

#include <png.h>
#include <turbojpeg.h>

#include <charconv>
#include <cstring>
#include "image_resize.h"
#include "jpeg_decoder.h"

namespace paceline {
namespace {

// Larger images than this are taken for damage, before memory is asked for.
constexpr std::int64_t kMostPixels = std::int64_t{1} << 28;

// A byte of a file holds no more pixels: a PNG has a bit for each pixel at least, and its compression makes a byte of
// at most 1032. A JPEG with Huffman codes has a bit for each 64 pixels at least, so a byte of it holds fewer. It is
// made of whole blocks, and a progressive one is held in blocks until its end.
constexpr std::int64_t kMostPixelsOfAByte = 8 * 1032;
constexpr std::int64_t kJpegBlock = 16;

// `bytes`: of the encoded image, which has whole blocks of `block` x `block` pixels.
void check_size(std::int64_t height, std::int64_t width, std::size_t bytes, std::int64_t block) {
  if (height < 1 || width < 1 || height > kMostPixels || width > kMostPixels || height * width > kMostPixels) {
    throw Corrupt(str("an image of ", width, " x ", height, " pixels is not supported"));
  }
  const std::int64_t blocks = (height + block - 1) / block * ((width + block - 1) / block);
  if (blocks * block * block / kMostPixelsOfAByte > static_cast<std::int64_t>(bytes)) {
    throw Corrupt(str("an image of ", width, " x ", height, " pixels does not fit into its ", bytes, " bytes"));
  }
}

void set_size(Image& image, int height, int width, int channels) {
  image.height = height;
  image.width = width;
  image.channels = channels;
  image.pixels.resize(static_cast<std::size_t>(height) * static_cast<std::size_t>(width) *
                      static_cast<std::size_t>(channels));
}

// ITU-R BT.601 with 16-bit weights, as OpenCV and libjpeg do.
std::uint8_t grey(int red, int green, int blue) {
  return static_cast<std::uint8_t>((19595 * red + 38470 * green + 7471 * blue + 32768) >> 16);
}

void convert(Image& image, int channels) {
  if (channels == 0 || channels == image.channels) return;
  const std::size_t count = image.pixels.size() / static_cast<std::size_t>(image.channels);
  if (channels == 1) {
    std::uint8_t* p = image.pixels.data();
    for (std::size_t i = 0; i < count; ++i) p[i] = grey(p[3 * i], p[3 * i + 1], p[3 * i + 2]);
    image.pixels.resize(count);
  } else {
    image.pixels.resize(3 * count);
    std::uint8_t* p = image.pixels.data();
    for (std::size_t i = count; i-- > 0;) p[3 * i] = p[3 * i + 1] = p[3 * i + 2] = p[i];
  }
  image.channels = channels;
}

// "P5 28 28 255\n" and the pixels; any white space and comments between the fields.
class PnmHeader {
 public:
  explicit PnmHeader(std::string_view bytes) : bytes_(bytes) {}

  std::int64_t number() {
    for (;; ++at_) {
      if (at_ >= bytes_.size()) fail();
      const char c = bytes_[at_];
      if (c == '#') {
        at_ = bytes_.find('\n', at_);
        if (at_ == std::string_view::npos) fail();
      } else if (!is_space(c)) {
        break;
      }
    }
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(bytes_.data() + at_, bytes_.data() + bytes_.size(), value);
    if (error != std::errc() || value < 0) fail();
    at_ = static_cast<std::size_t>(end - bytes_.data());
    return value;
  }

  std::string_view pixels() const {
    if (at_ >= bytes_.size() || !is_space(bytes_[at_])) fail();
    return bytes_.substr(at_ + 1);
  }

 private:
  static bool is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  [[noreturn]] static void fail() { throw Corrupt("the PNM header is damaged"); }

  std::string_view bytes_;
  std::size_t at_ = 2;
};

struct Pnm {
  std::int64_t height = 0;
  std::int64_t width = 0;
  int channels = 0;
  std::string_view pixels;
};

Pnm read_pnm(std::string_view bytes) {
  PnmHeader header(bytes);
  Pnm pnm;
  pnm.width = header.number();
  pnm.height = header.number();
  pnm.channels = bytes[1] == '5' ? 1 : 3;
  const std::int64_t largest = header.number();
  if (largest != 255) throw Corrupt(str("a PNM image with values up to ", largest, " is not supported"));
  pnm.pixels = header.pixels();
  // Checked before memory is asked for: a damaged size must not cost gigabytes.
  if (pnm.width < 1 || pnm.height < 1 || pnm.width > kMostPixels || pnm.height > kMostPixels ||
      pnm.width * pnm.height * pnm.channels != static_cast<std::int64_t>(pnm.pixels.size())) {
    throw Corrupt(
        str("a PNM image of ", pnm.width, " x ", pnm.height, " holds ", pnm.pixels.size(), " bytes of pixels"));
  }
  return pnm;
}

void decode_pnm(std::string_view bytes, const Rectangle& part, Image& image) {
  const Pnm pnm = read_pnm(bytes);
  set_size(image, part.height, part.width, pnm.channels);
  const auto channels = static_cast<std::size_t>(pnm.channels);
  const std::size_t row = static_cast<std::size_t>(part.width) * channels;
  for (std::size_t y = 0; y < static_cast<std::size_t>(part.height); ++y) {
    const std::size_t from = (static_cast<std::size_t>(part.top) + y) * static_cast<std::size_t>(pnm.width) +
                             static_cast<std::size_t>(part.left);
    std::memcpy(image.pixels.data() + y * row, pnm.pixels.data() + from * channels, row);
  }
}

void begin_png(std::string_view bytes, png_image& png) {
  png.version = PNG_IMAGE_VERSION;
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) && png.warning_or_error < 2) return;
  const std::string reason = png.message;
  png_image_free(&png);
  throw Corrupt("libpng: " + reason);
}

void decode_png(std::string_view bytes, Image& image) {
  png_image png = {};
  begin_png(bytes, png);
  png.flags |= PNG_IMAGE_FLAG_16BIT_sRGB;
  const bool colour = png.format & PNG_FORMAT_FLAG_COLOR;
  const bool alpha = png.format & PNG_FORMAT_FLAG_ALPHA;
  const int colours = colour ? 3 : 1;
  const int stored = colours + alpha;
  png.format = (colour ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY) | (alpha ? PNG_FORMAT_FLAG_ALPHA : 0);
  try {
    set_size(image, static_cast<int>(png.height), static_cast<int>(png.width), stored);
  } catch (...) {
    png_image_free(&png);
    throw;
  }
  if (!png_image_finish_read(&png, nullptr, image.pixels.data(), 0, nullptr) || png.warning_or_error >= 2) {
    const std::string reason = png.message;
    png_image_free(&png);
    throw Corrupt("libpng: " + reason);
  }
  if (!alpha) return;
  std::uint8_t* p = image.pixels.data();
  const std::size_t count = image.pixels.size() / static_cast<std::size_t>(stored);
  for (std::size_t i = 0; i < count; ++i) {
    std::memmove(p + i * static_cast<std::size_t>(colours), p + i * static_cast<std::size_t>(stored),
                 static_cast<std::size_t>(colours));
  }
  image.channels = colours;
  image.pixels.resize(count * static_cast<std::size_t>(colours));
}

std::string encode_png(const Image& image) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  png.width = static_cast<png_uint_32>(image.width);
  png.height = static_cast<png_uint_32>(image.height);
  png.format = image.channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  png_alloc_size_t size = PNG_IMAGE_PNG_SIZE_MAX(png);
  std::string bytes(size, '\0');
  const int succeeded = png_image_write_to_memory(&png, bytes.data(), &size, 0, image.pixels.data(), 0, nullptr);
  const std::string reason = png.message;
  png_image_free(&png);
  if (!succeeded) throw InvalidArgument("libpng: " + reason);
  bytes.resize(size);
  return bytes;
}

bool starts_with(std::string_view bytes, std::string_view with) { return bytes.substr(0, with.size()) == with; }

}  // namespace

struct ImageCodec::State {
  ~State() {
    if (compressor) tjDestroy(compressor);
  }

  std::string encode_jpeg(const Image& image, int quality);

  io::JpegDecoder jpeg;
  tjhandle compressor = nullptr;
  std::string_view bytes;  // of the image whose header was read last
  ImageHeader header;
};

std::string ImageCodec::State::encode_jpeg(const Image& image, int quality) {
  require(quality >= 1 && quality <= 100, "the JPEG quality is 1 to 100, not ", quality);
  if (!compressor) compressor = tjInitCompress();
  if (!compressor) throw OutOfMemory("TurboJPEG cannot start");
  const bool one = image.channels == 1;
  const int subsampling = one ? TJSAMP_GRAY : TJSAMP_420;
  std::string bytes(tjBufSize(image.width, image.height, subsampling), '\0');
  auto* buffer = reinterpret_cast<unsigned char*>(bytes.data());
  unsigned long size = bytes.size();
  if (tjCompress2(compressor, image.pixels.data(), image.width, 0, image.height, one ? TJPF_GRAY : TJPF_RGB, &buffer,
                  &size, subsampling, quality, TJFLAG_NOREALLOC | TJFLAG_ACCURATEDCT) != 0) {
    throw InvalidArgument(str("TurboJPEG: ", tjGetErrorStr2(compressor)));
  }
  bytes.resize(size);
  return bytes;
}

ImageEncoding parse_image_encoding(std::string_view name) {
  if (name == "raw") return ImageEncoding::kRaw;
  if (name == "png") return ImageEncoding::kPng;
  if (name == "jpg" || name == "jpeg") return ImageEncoding::kJpeg;
  throw InvalidArgument(str("unknown image encoding '", name, "'; known: raw png jpg"));
}

const char* name_of(ImageEncoding encoding) {
  return encoding == ImageEncoding::kJpeg ? "jpg" : encoding == ImageEncoding::kPng ? "png" : "raw";
}

ImageCodec::ImageCodec() : state_(std::make_unique<State>()) {}
ImageCodec::~ImageCodec() = default;

namespace {

// By the first bytes. Throws Corrupt for others.
ImageEncoding encoding_of(std::string_view bytes) {
  if (starts_with(bytes, "\xff\xd8\xff")) return ImageEncoding::kJpeg;
  if (starts_with(bytes, "\x89PNG")) return ImageEncoding::kPng;
  if (starts_with(bytes, "P5") || starts_with(bytes, "P6")) return ImageEncoding::kRaw;
  throw Corrupt(bytes.empty() ? "the image is empty" : "the image is neither JPEG nor PNG nor PNM");
}

}  // namespace

void ImageCodec::decode(std::string_view bytes, Image& image, int channels) {
  const ImageHeader found = header(bytes);
  decode_part({0, 0, found.height, found.width}, image, channels);
}

ImageHeader ImageCodec::header(std::string_view bytes) {
  ImageHeader header;
  header.encoding = encoding_of(bytes);
  switch (header.encoding) {
    case ImageEncoding::kJpeg: header = state_->jpeg.open(bytes); break;
    case ImageEncoding::kPng: {
      png_image png = {};
      begin_png(bytes, png);
      png_image_free(&png);
      // libpng refuses sizes above 2^31 - 1.
      header.height = static_cast<int>(png.height);
      header.width = static_cast<int>(png.width);
      header.channels = png.format & PNG_FORMAT_FLAG_COLOR ? 3 : 1;
      break;
    }
    case ImageEncoding::kRaw: {
      const Pnm pnm = read_pnm(bytes);
      header.height = static_cast<int>(pnm.height);
      header.width = static_cast<int>(pnm.width);
      header.channels = pnm.channels;
      break;
    }
  }
  const std::int64_t block = header.encoding == ImageEncoding::kJpeg ? kJpegBlock : 1;
  check_size(header.height, header.width, bytes.size(), block);
  state_->bytes = bytes;
  state_->header = header;
  return header;
}

void ImageCodec::decode_part(const Rectangle& part, Image& image, int channels, int reduced) {
  decode_part(part, image, channels, reduced, true);
}

Rectangle ImageCodec::decode_around(const Rectangle& part, Image& image, int channels, int reduced) {
  return decode_part(part, image, channels, reduced, false);
}

Rectangle ImageCodec::decode_part(const Rectangle& part, Image& image, int channels, int reduced, bool exact) {
  require(channels == 0 || channels == 1 || channels == 3, "an image is decoded to 1 or 3 channels, not ", channels);
  const ImageHeader& header = state_->header;
  const bool may_be = reduced == 2 || reduced == 4 || reduced == 8;
  require(reduced == 1 || (may_be && header.encoding == ImageEncoding::kJpeg),
          "JPEGs alone are decoded smaller, by 2, 4 or 8, not by ", reduced);
  io::check_inside(part, (header.height + reduced - 1) / reduced, (header.width + reduced - 1) / reduced);
  Rectangle shown = part;
  switch (header.encoding) {
    case ImageEncoding::kJpeg:
      shown = state_->jpeg.read(part, channels ? channels : header.channels, reduced, exact, image);
      break;
    case ImageEncoding::kPng:
      decode_png(state_->bytes, image);
      if (part.height != image.height || part.width != image.width)
        image = crop(image, part.top, part.left, part.height, part.width);
      break;
    case ImageEncoding::kRaw: decode_pnm(state_->bytes, part, image); break;
  }
  convert(image, channels);
  return shown;
}

std::string ImageCodec::encode(const Image& image, ImageEncoding encoding, int quality) {
  require((image.channels == 1 || image.channels == 3) && image.height > 0 && image.width > 0 &&
              image.pixels.size() == static_cast<std::size_t>(image.height) * static_cast<std::size_t>(image.width) *
                                         static_cast<std::size_t>(image.channels),
          "an image to encode has 1 or 3 channels and as many pixels as its size says");
  if (encoding == ImageEncoding::kPng) return encode_png(image);
  if (encoding == ImageEncoding::kJpeg) return state_->encode_jpeg(image, quality);
  std::string bytes = str(image.channels == 1 ? "P5" : "P6", "\n", image.width, " ", image.height, "\n255\n");
  bytes.append(reinterpret_cast<const char*>(image.pixels.data()), image.pixels.size());
  return bytes;
}

}  // namespace paceline
