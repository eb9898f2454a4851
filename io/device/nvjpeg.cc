#include "device/nvjpeg.h"

#include <paceline/error.h>

#include <iterator>
#include <utility>

namespace paceline::nvjpeg {

Library::Library(std::initializer_list<std::string> names) : file("nvJPEG", names) {
  file.find("nvjpegGetProperty", &get_property);
  file.find("nvjpegCreateEx", &create);
  file.find("nvjpegDestroy", &destroy);
  file.find("nvjpegJpegStateCreate", &state_create);
  file.find("nvjpegJpegStateDestroy", &state_destroy);
  file.find("nvjpegDecode", &decode);
}

std::string Library::version_text() const {
  int parts[3] = {};
  for (int property = 0; property < 3; ++property) get_property(property, &parts[property]);
  return str(parts[0], ".", parts[1], ".", parts[2]);
}

std::string text_of(const char* what, Status status) {
  static constexpr const char* kWords[] = {"no error",         "not initialized",       "invalid parameter",
                                           "bad JPEG",         "unsupported JPEG",      "allocator failure",
                                           "execution failed", "architecture mismatch", "internal error",
                                           "not implemented",  "incomplete JPEG"};
  const bool known = status >= 0 && status < static_cast<int>(std::size(kWords));
  return str("nvJPEG, ", what, ": ", known ? kWords[status] : "unknown error", " (", status, ")");
}

Decoder::Decoder(std::unique_ptr<Library> library) : library_(std::move(library)) {
  // Chroma between its samples as libjpeg makes it, and no guesses about what breaks the standard, where the version
  // can.
  Status status = kSuccess;
  for (const unsigned flags : {kStrict | kInterpolating, kInterpolating, kStrict, 0u})
    if ((status = library_->create(kDefaultBackend, nullptr, nullptr, flags, &handle_)) == kSuccess) return;
  throw NotAvailable(text_of("starting", status));
}

Decoder::~Decoder() { library_->destroy(handle_); }

DecoderState::DecoderState(std::shared_ptr<const Decoder> decoder) : decoder_(std::move(decoder)) {
  const Status status = decoder_->library().state_create(decoder_->handle(), &state_);
  if (status != kSuccess) throw NotAvailable(text_of("starting in a thread", status));
}

DecoderState::~DecoderState() { decoder_->library().state_destroy(state_); }

Status DecoderState::decode(const void* jpeg, std::size_t bytes, int width, int channels, void* pixels, void* stream) {
  Planes planes{};
  planes.channel[0] = static_cast<unsigned char*>(pixels);
  planes.pitch[0] = static_cast<std::size_t>(width) * static_cast<std::size_t>(channels);
  return decoder_->library().decode(decoder_->handle(), state_, static_cast<const unsigned char*>(jpeg), bytes,
                                    channels == 1 ? kLumaOnly : kInterleavedRgb, &planes, stream);
}

}  // namespace paceline::nvjpeg
