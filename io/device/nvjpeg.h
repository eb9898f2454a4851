#pragma once
// nvJPEG, opened at run time. The declarations here are all that is used of it, so a build does not need its header.

#include <paceline/detail/shared_library.h>

#include <cstddef>
#include <initializer_list>
#include <memory>
#include <string>

namespace paceline::nvjpeg {

// Constants and types of nvjpeg.h, whose values have not changed from version 10 to 13.
using Status = int;
constexpr Status kSuccess = 0, kBadJpeg = 3, kNotSupported = 4, kIncomplete = 10;
constexpr int kDefaultBackend = 0;
constexpr int kLumaOnly = 2, kInterleavedRgb = 5;              // forms of output
constexpr unsigned kStrict = 1 << 2, kInterpolating = 1 << 5;  // flags of a handle
using Handle = struct nvjpegHandle*;
using State = struct nvjpegJpegState*;
struct Planes {
  unsigned char* channel[4];
  std::size_t pitch[4];  // bytes of a row
};

struct Library {
  // Opens the first of `names` that dlopen() can open. Throws NotAvailable where none opens, or it lacks a function.
  explicit Library(std::initializer_list<std::string> names = {"libnvjpeg.so.13", "libnvjpeg.so.12", "libnvjpeg.so.11",
                                                               "libnvjpeg.so"});

  const detail::SharedLibrary file;
  std::string version_text() const;

  Status (*get_property)(int property, int* value);
  // Null allocators: CUDA's own.
  Status (*create)(int backend, void* device_allocator, void* pinned_allocator, unsigned flags, Handle* handle);
  Status (*destroy)(Handle handle);
  Status (*state_create)(Handle handle, State* state);
  Status (*state_destroy)(State state);
  // May return before the device has read `data` and written the pixels. The last argument is a cudaStream_t.
  Status (*decode)(Handle handle, State state, const unsigned char* data, std::size_t bytes, int form, Planes* planes,
                   void* stream);
};

// "nvJPEG, `what`: bad JPEG (3)".
std::string text_of(const char* what, Status status);

// A handle of the library, which threads may share. A thread that makes or uses it must have selected its device.
class Decoder {
 public:
  // Throws NotAvailable where nvJPEG does not start.
  explicit Decoder(std::unique_ptr<Library> library);
  ~Decoder();
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  const Library& library() const { return *library_; }
  Handle handle() const { return handle_; }

 private:
  const std::unique_ptr<Library> library_;
  Handle handle_ = nullptr;
};

// What one thread needs to decode.
class DecoderState {
 public:
  // Throws NotAvailable.
  explicit DecoderState(std::shared_ptr<const Decoder> decoder);
  ~DecoderState();
  DecoderState(const DecoderState&) = delete;
  DecoderState& operator=(const DecoderState&) = delete;

  // Writes pixels into memory of the device, without gaps between the rows. `channels` is 1 or 3. `stream` is a
  // cudaStream_t. `jpeg` must stay valid until the work in the stream is done.
  Status decode(const void* jpeg, std::size_t bytes, int width, int channels, void* pixels, void* stream);

 private:
  const std::shared_ptr<const Decoder> decoder_;
  State state_ = nullptr;
};

}  // namespace paceline::nvjpeg
