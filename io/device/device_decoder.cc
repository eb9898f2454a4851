#include "device/device_decoder.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/cuda_check.h>
#include <paceline/log.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "device/nvjpeg.h"
#include "device/write_examples.h"
#include "image_resize.h"
#include "jpeg_header.h"

namespace paceline::io {
namespace {

// Of pixels that lie in the device's memory before the kernel turns them into values; a larger image has more.
constexpr std::size_t kChunkBytes = std::size_t{16} << 20;
// Larger JPEGs are the host's: their pixels would crowd the device.
constexpr std::int64_t kMostPixels = std::int64_t{1} << 26;

NDArray bytes_of(std::size_t bytes, Device device, detail::MemoryKind kind) {
  return ArrayBuilder::allocate({static_cast<std::int64_t>(bytes)}, DType::kUint8, device, kind);
}

template <class T>
std::size_t size_of_all(const std::vector<T>& values) {
  return values.size() * sizeof(T);
}

// Images whose pixels wait for the kernel, and how the kernel finds its way.
struct Chunk {
  std::size_t used = 0;
  NDArray pixels;                    // on the device
  NDArray staged;                    // pinned, of the same places: what the host decoded
  std::vector<std::string> records;  // whose JPEGs nvJPEG may still read
  std::vector<PlacedImage> images;
  std::vector<TapRange> taps;
  std::vector<float> weights;
  std::map<std::pair<int, int>, std::int64_t> known_taps;  // (from, to): the first of its taps
  NDArray host_parameters, parameters;                     // images, taps and weights
};

class CudaDecoder final : public DeviceDecoder {
 public:
  // `said`: that nvJPEG fails; shared by those of a loader.
  CudaDecoder(Device device, const ExampleFormat& format, std::shared_ptr<const nvjpeg::Decoder> nvjpeg,
              std::shared_ptr<std::atomic<bool>> said)
      : device_(device),
        runtime_(detail::runtime(device)),
        decoder_(format),
        stream_(runtime_.create_stream(0)),
        state_(std::move(nvjpeg)),
        said_(std::move(said)) {}
  ~CudaDecoder() override {
    give_up();
    try {
      detail::select_cuda_device(device_.index);
    } catch (const Error&) {
      // The state goes all the same.
    }
  }

  void begin(std::int64_t examples) override {
    give_up();
    const ExampleFormat& format = decoder_.format();
    batch_ = NDArray({examples, format.channels, format.height, format.width}, DType::kFloat32, device_);
    examples_ = 0;
  }

  void add(std::string record, std::uint64_t seed, void* label) override {
    const ImageRecord parts(record);
    decoder_.write_label(parts, label);
    PlacedImage image{};
    const bool on_device = decode_on_device(parts.image(), image);
    if (!on_device) decode_on_host(parts.image(), image);
    const Geometry geometry = decoder_.geometry(seed);
    image.place = examples_++;
    image.down = geometry.window.top;
    image.right = geometry.window.left;
    image.flip = geometry.mirrored;
    chunk_.images.push_back(image);
    if (on_device) chunk_.records.push_back(std::move(record));
  }

  NDArray finish() override {
    write_chunk();
    const NDArray batch = std::exchange(batch_, {});
    if (examples_ == 0) return {};
    return examples_ == batch.size(0) ? batch : batch.narrow(0, 0, examples_);
  }

 private:
  // Waits, so that nothing uses the memory that is then given back.
  void give_up() noexcept {
    try {
      runtime_.synchronize(*stream_);
    } catch (const std::exception& error) {
      LOG(WARNING) << "decoding images on " << device_.name() << ": " << error.what();
    }
    chunk_ = {};
    batch_ = {};
  }

  // Makes room for an image in the chunk and says how it becomes one of the format's size; returns where its pixels go.
  // Throws Corrupt, then nothing has changed but that the chunk may have been written.
  std::uint8_t* place(int height, int width, PlacedImage& image) {
    const ExampleFormat& format = decoder_.format();
    check_resize(height, width, format.height, format.width);
    const std::size_t bytes =
        static_cast<std::size_t>(height) * static_cast<std::size_t>(width) * static_cast<std::size_t>(format.channels);
    if (!chunk_.pixels.is_none() && chunk_.used + bytes > chunk_.pixels.bytes()) write_chunk();
    if (chunk_.pixels.is_none())
      chunk_.pixels = bytes_of(std::max(bytes, kChunkBytes), device_, detail::MemoryKind::kNormal);
    image.width = width;
    image.pixels = static_cast<std::int64_t>(chunk_.used);
    image.resized = height != format.height || width != format.width;
    if (image.resized) {
      image.rows = taps_of(height, format.height);
      image.columns = taps_of(width, format.width);
    }
    return static_cast<std::uint8_t*>(ArrayBuilder::data(chunk_.pixels)) + chunk_.used;
  }
  // The image is there.
  void keep(int height, int width) {
    constexpr std::size_t kAlignment = 256;
    const std::size_t bytes = static_cast<std::size_t>(height) * static_cast<std::size_t>(width) *
                              static_cast<std::size_t>(decoder_.format().channels);
    chunk_.used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }

  std::int64_t taps_of(int from, int to) {
    const auto [known, is_new] =
        chunk_.known_taps.try_emplace({from, to}, static_cast<std::int64_t>(chunk_.taps.size()));
    if (is_new) {
      const TapTable table = make_taps(from, to);
      for (std::size_t i = 0; i < table.size(); ++i) {
        const Taps taps = table[i];
        chunk_.taps.push_back({taps.first, static_cast<std::int32_t>(taps.weights.size()),
                               static_cast<std::int64_t>(chunk_.weights.size())});
        chunk_.weights.insert(chunk_.weights.end(), taps.weights.begin(), taps.weights.end());
      }
    }
    return known->second;
  }

  // False: left to the host.
  bool decode_on_device(std::string_view bytes, PlacedImage& image) {
    const std::optional<JpegHeader> header = plain_jpeg(bytes);
    if (!header || std::int64_t{header->height} * header->width > kMostPixels) return false;
    std::uint8_t* const pixels = place(header->height, header->width, image);
    detail::select_cuda_device(device_.index);
    const nvjpeg::Status status =
        state_.decode(bytes.data(), bytes.size(), header->width, decoder_.format().channels, pixels, stream_->native());
    if (status == nvjpeg::kSuccess) {
      keep(header->height, header->width);
      return true;
    }
    runtime_.synchronize(*stream_);  // what it had begun uses the image and its place
    const bool of_the_image =
        status == nvjpeg::kBadJpeg || status == nvjpeg::kNotSupported || status == nvjpeg::kIncomplete;
    if (!of_the_image) {
      detail::check_device(static_cast<cudaStream_t>(stream_->native()), "decoding an image");
      if (!said_->exchange(true))
        LOG(WARNING) << "an image, and perhaps more, is decoded on the CPU: " << nvjpeg::text_of("decoding", status);
    }
    return false;
  }

  void decode_on_host(std::string_view bytes, PlacedImage& image) {
    decoder_.decode_image(bytes, decoded_);
    std::uint8_t* const pixels = place(decoded_.height, decoded_.width, image);
    const std::size_t size = decoded_.pixels.size();
    if (chunk_.staged.is_none()) chunk_.staged = bytes_of(chunk_.pixels.bytes(), device_, detail::MemoryKind::kPinned);
    auto* const staged = static_cast<std::uint8_t*>(ArrayBuilder::data(chunk_.staged)) + chunk_.used;
    std::memcpy(staged, decoded_.pixels.data(), size);
    runtime_.copy(pixels, staged, size, detail::CopyKind::kHostToDevice, *stream_);
    keep(decoded_.height, decoded_.width);
  }

  // The values of the chunk's images, and an empty chunk.
  void write_chunk() {
    if (!chunk_.images.empty()) issue_values();
    runtime_.synchronize(*stream_);
    chunk_ = {};
  }

  void issue_values() {
    const ExampleFormat& format = decoder_.format();
    const std::size_t images = size_of_all(chunk_.images), taps = size_of_all(chunk_.taps),
                      weights = size_of_all(chunk_.weights);
    chunk_.host_parameters = bytes_of(images + taps + weights, device_, detail::MemoryKind::kPinned);
    chunk_.parameters = bytes_of(images + taps + weights, device_, detail::MemoryKind::kNormal);
    auto* const from = static_cast<std::uint8_t*>(ArrayBuilder::data(chunk_.host_parameters));
    std::memcpy(from, chunk_.images.data(), images);
    if (taps > 0) std::memcpy(from + images, chunk_.taps.data(), taps);
    if (weights > 0) std::memcpy(from + images + taps, chunk_.weights.data(), weights);
    auto* const to = static_cast<std::uint8_t*>(ArrayBuilder::data(chunk_.parameters));
    runtime_.copy(to, from, images + taps + weights, detail::CopyKind::kHostToDevice, *stream_);

    WriteExamples work{};
    work.pixels = static_cast<const std::uint8_t*>(ArrayBuilder::data(chunk_.pixels));
    work.images = reinterpret_cast<const PlacedImage*>(to);
    work.taps = reinterpret_cast<const TapRange*>(to + images);
    work.weights = reinterpret_cast<const float*>(to + images + taps);
    work.count = static_cast<std::int64_t>(chunk_.images.size());
    work.batch = static_cast<float*>(ArrayBuilder::data(batch_));
    work.channels = format.channels;
    work.height = format.height;
    work.width = format.width;
    std::ranges::copy(decoder_.factor(), work.factor);
    std::ranges::copy(decoder_.offset(), work.offset);
    write_examples(work, device_, stream_->native());
  }

  const Device device_;
  detail::DeviceRuntime& runtime_;
  ExampleDecoder decoder_;
  const std::unique_ptr<detail::Stream> stream_;
  nvjpeg::DecoderState state_;
  const std::shared_ptr<std::atomic<bool>> said_;
  Chunk chunk_;
  NDArray batch_;
  std::int64_t examples_ = 0;
  Image decoded_;
};

}  // namespace

std::vector<std::unique_ptr<DeviceDecoder>> make_device_decoders(Device device, const ExampleFormat& format,
                                                                 int count) {
  detail::runtime(device);  // says what is wrong with the device
  detail::select_cuda_device(device.index);
  const std::shared_ptr<const nvjpeg::Decoder> nvjpeg(new nvjpeg::Decoder(std::make_unique<nvjpeg::Library>()),
                                                      [device](const nvjpeg::Decoder* decoder) {
                                                        try {
                                                          detail::select_cuda_device(device.index);
                                                        } catch (const Error&) {
                                                          // It goes all the same.
                                                        }
                                                        delete decoder;
                                                      });
  std::vector<std::unique_ptr<DeviceDecoder>> decoders;
  const auto said = std::make_shared<std::atomic<bool>>(false);
  for (int i = 0; i < count; ++i) decoders.push_back(std::make_unique<CudaDecoder>(device, format, nvjpeg, said));
  LOG(INFO) << "images for " << device.name() << " are decoded there, by nvJPEG " << nvjpeg->library().version_text();
  return decoders;
}

}  // namespace paceline::io
