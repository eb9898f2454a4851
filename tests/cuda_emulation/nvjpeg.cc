// nvJPEG over the emulated devices, by TurboJPEG: the pixels are ImageCodec's, bit for bit. What it was given is read
// again when the stream comes to it, late, as a device may. It is strict: a call that the real one may bear or not bear
// is an invalid parameter here, or the end of the program.
#include "call.h"

#include <turbojpeg.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <utility>
#include <vector>

using cuda_emulation::Reach;

extern "C" {

enum nvjpegStatus_t {
  NVJPEG_STATUS_SUCCESS = 0,
  NVJPEG_STATUS_NOT_INITIALIZED = 1,
  NVJPEG_STATUS_INVALID_PARAMETER = 2,
  NVJPEG_STATUS_BAD_JPEG = 3,
  NVJPEG_STATUS_JPEG_NOT_SUPPORTED = 4,
};
struct nvjpegHandle {
  int device;
};
struct nvjpegJpegState {
  nvjpegHandle* handle;
  bool busy = false;
};
struct nvjpegImage_t {
  unsigned char* channel[4];
  std::size_t pitch[4];
};

// For tests: what the next handles and decodings answer (0: as they should), and the flags that handles know. The
// images that were decoded, and the handles and states that there are.
void emulated_nvjpeg_answer(int create, int decode, unsigned flags_known);
int emulated_nvjpeg_decoded();
int emulated_nvjpeg_alive();
}

namespace {

// The lock of the emulation holds for these.
int created = 0, decoding = 0, decoded = 0;
unsigned known_flags = ~0u;
std::set<nvjpegHandle*>& handles() {
  static std::set<nvjpegHandle*>& all = *new std::set<nvjpegHandle*>;
  return all;
}
std::set<nvjpegJpegState*>& states() {
  static std::set<nvjpegJpegState*>& all = *new std::set<nvjpegJpegState*>;
  return all;
}

[[noreturn]] void end(const char* why) {
  std::fprintf(stderr, "cuda emulation: nvJPEG: %s\n", why);
  std::abort();
}

class Decompressor {
 public:
  Decompressor() : handle_(tjInitDecompress()) {}
  ~Decompressor() { tjDestroy(handle_); }
  Decompressor(const Decompressor&) = delete;
  Decompressor& operator=(const Decompressor&) = delete;

  nvjpegStatus_t header(const unsigned char* data, std::size_t length) {
    int subsampling = 0, space = 0;
    if (tjDecompressHeader3(handle_, data, length, &width, &height, &subsampling, &space) != 0)
      return NVJPEG_STATUS_BAD_JPEG;
    return space == TJCS_CMYK || space == TJCS_YCCK ? NVJPEG_STATUS_JPEG_NOT_SUPPORTED : NVJPEG_STATUS_SUCCESS;
  }
  nvjpegStatus_t pixels(const unsigned char* data, std::size_t length, int channels, std::vector<unsigned char>& to) {
    to.resize(static_cast<std::size_t>(width) * static_cast<std::size_t>(height) * static_cast<std::size_t>(channels));
    return tjDecompress2(handle_, data, length, to.data(), width, 0, height, channels == 1 ? TJPF_GRAY : TJPF_RGB,
                         TJFLAG_ACCURATEDCT) == 0
               ? NVJPEG_STATUS_SUCCESS
               : NVJPEG_STATUS_BAD_JPEG;
  }

  int width = 0, height = 0;

 private:
  const tjhandle handle_;
};

}  // namespace

extern "C" {

void emulated_nvjpeg_answer(int create, int decode, unsigned flags_known) {
  cuda_emulation::Call call;
  created = create;
  decoding = decode;
  known_flags = flags_known;
}

int emulated_nvjpeg_decoded() {
  cuda_emulation::Call call;
  return decoded;
}

int emulated_nvjpeg_alive() {
  cuda_emulation::Call call;
  return static_cast<int>(handles().size() + states().size());
}

nvjpegStatus_t nvjpegGetProperty(int property, int* value) {
  constexpr int kVersion[] = {12, 4, 0};
  if (property < 0 || property > 2 || !value) return NVJPEG_STATUS_INVALID_PARAMETER;
  *value = kVersion[property];
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegCreateEx(int backend, void* device_allocator, void* pinned_allocator, unsigned flags,
                              nvjpegHandle** handle) {
  cuda_emulation::Call call;
  if (backend != 0 || device_allocator || pinned_allocator || !handle || (flags & ~known_flags) != 0)
    return NVJPEG_STATUS_INVALID_PARAMETER;
  if (created != 0) return static_cast<nvjpegStatus_t>(created);
  *handle = new nvjpegHandle{cuda_emulation::current_device()};
  handles().insert(*handle);
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegDestroy(nvjpegHandle* handle) {
  cuda_emulation::Call call;
  if (!handles().contains(handle)) end("a handle is destroyed that there is not");
  for (const nvjpegJpegState* state : states())
    if (state->handle == handle) end("a handle is destroyed before its states");
  if (cuda_emulation::current_device() != handle->device) end("a handle is destroyed on another device");
  handles().erase(handle);
  delete handle;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegJpegStateCreate(nvjpegHandle* handle, nvjpegJpegState** state) {
  cuda_emulation::Call call;
  if (!handles().contains(handle) || !state || cuda_emulation::current_device() != handle->device)
    return NVJPEG_STATUS_INVALID_PARAMETER;
  *state = new nvjpegJpegState{handle};
  states().insert(*state);
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegJpegStateDestroy(nvjpegJpegState* state) {
  cuda_emulation::Call call;
  if (!states().contains(state)) end("a state is destroyed that there is not");
  if (state->busy) end("a state is destroyed while it decodes");
  if (cuda_emulation::current_device() != state->handle->device) end("a state is destroyed on another device");
  states().erase(state);
  delete state;
  return NVJPEG_STATUS_SUCCESS;
}

nvjpegStatus_t nvjpegDecode(nvjpegHandle* handle, nvjpegJpegState* state, const unsigned char* data, std::size_t length,
                            int form, nvjpegImage_t* image, void* stream) {
  constexpr int kLuma = 2, kInterleaved = 5;
  {
    cuda_emulation::Call call;
    if (!handles().contains(handle) || !states().contains(state) || state->handle != handle || !data || !image ||
        (form != kLuma && form != kInterleaved) || !stream ||
        static_cast<cuda_emulation::Stream*>(stream)->device != handle->device ||
        cuda_emulation::current_device() != handle->device)
      return NVJPEG_STATUS_INVALID_PARAMETER;
    if (decoding != 0) return static_cast<nvjpegStatus_t>(decoding);
    if (std::exchange(state->busy, true)) end("two threads decode with one state");
  }
  const int channels = form == kLuma ? 1 : 3;
  const auto decompressor = std::make_shared<Decompressor>();
  std::vector<unsigned char> pixels;
  nvjpegStatus_t status = decompressor->header(data, length);
  if (status == NVJPEG_STATUS_SUCCESS) status = decompressor->pixels(data, length, channels, pixels);

  cuda_emulation::Call call;
  state->busy = false;
  if (status != NVJPEG_STATUS_SUCCESS) return status;
  const std::size_t row = static_cast<std::size_t>(decompressor->width) * static_cast<std::size_t>(channels);
  const auto rows = static_cast<std::size_t>(decompressor->height);
  const auto room = call.scheduler.memory(handle->device).bytes_from(image->channel[0]);
  if (image->pitch[0] < row || !room || *room < image->pitch[0] * (rows - 1) + row)
    return NVJPEG_STATUS_INVALID_PARAMETER;
  ++decoded;
  call.scheduler.issue(*static_cast<cuda_emulation::Stream*>(stream),
                       {"nvjpegDecode", handle->device, Reach::kDevice, [=, to = *image] {
                          std::vector<unsigned char> late;
                          if (decompressor->header(data, length) != NVJPEG_STATUS_SUCCESS ||
                              decompressor->pixels(data, length, channels, late) != NVJPEG_STATUS_SUCCESS)
                            end("a JPEG was changed before it was decoded");
                          for (std::size_t y = 0; y < rows; ++y)
                            std::memcpy(to.channel[0] + y * to.pitch[0], late.data() + y * row, row);
                        }});
  return NVJPEG_STATUS_SUCCESS;
}
}
