#include "jpeg_decoder.h"

#include <paceline/error.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <vector>

// Behind <cstdio>, which it needs and does not include.
#include <jerror.h>
#include <jpeglib.h>

namespace paceline::io {
namespace {

// Chroma is interpolated between neighbours, which a part must have around it to become the same pixels. Two pixels and
// two rows of chroma are enough for every subsampling that is interpolated.
constexpr int kMargin = 4;

struct Errors {
  jpeg_error_mgr manager;  // first, so that libjpeg's pointer to it is one to this
  std::jmp_buf jump;
  char text[JMSG_LENGTH_MAX];
  bool damaged;  // by a warning; decoding went on
};

Errors& errors_of(j_common_ptr info) { return *reinterpret_cast<Errors*>(info->err); }

void fail(j_common_ptr info) {
  Errors& errors = errors_of(info);
  info->err->format_message(info, errors.text);
  std::longjmp(errors.jump, 1);
}

void note(j_common_ptr info, int level) {
  // Stray bytes between markers are common and harmless; missing data are not.
  if (level >= 0 || info->err->msg_code == JWRN_EXTRANEOUS_DATA) return;
  Errors& errors = errors_of(info);
  if (!errors.damaged) info->err->format_message(info, errors.text);
  errors.damaged = true;
}

void say_nothing(j_common_ptr) {}

// False where `call`, which must hold nothing that needs a destructor, ended by libjpeg's error.
template <class Call>
bool guarded(Errors& errors, const Call& call) {
  if (setjmp(errors.jump) != 0) return false;
  call();
  return true;
}

bool ends_complete(std::string_view bytes) { return bytes.ends_with("\xff\xd9"); }

}  // namespace

struct JpegDecoder::State {
  State() {
    info.err = jpeg_std_error(&errors.manager);
    errors.manager.error_exit = fail;
    errors.manager.emit_message = note;
    errors.manager.output_message = say_nothing;
  }
  ~State() { close(); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void close() {
    if (created) jpeg_destroy_decompress(&info);
    created = false;
  }
  // What was damaged may be held in part, and would spoil what comes after.
  [[noreturn]] void refuse() {
    close();
    throw Corrupt(str("libjpeg: ", errors.text));
  }

  jpeg_decompress_struct info = {};
  Errors errors = {};
  bool created = false;
  std::string_view bytes;
  std::vector<JSAMPROW> rows;
  std::vector<JSAMPLE> line;
  std::vector<JSAMPLE> inks;
};

JpegDecoder::JpegDecoder() : state_(std::make_unique<State>()) {}
JpegDecoder::~JpegDecoder() = default;

ImageHeader JpegDecoder::open(std::string_view bytes) {
  State& state = *state_;
  jpeg_decompress_struct& info = state.info;
  state.errors.damaged = false;
  state.bytes = bytes;
  const bool read = guarded(state.errors, [&] {
    if (!state.created) jpeg_create_decompress(&info);
    state.created = true;
    jpeg_abort_decompress(&info);
    jpeg_mem_src(&info, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size());
    jpeg_read_header(&info, TRUE);
  });
  if (!read) state.refuse();
  const bool grey = info.jpeg_color_space == JCS_GRAYSCALE;
  return {ImageEncoding::kJpeg, static_cast<int>(info.image_height), static_cast<int>(info.image_width), grey ? 1 : 3};
}

namespace {

// Reads the rows of a part, which begins at column `left` of those that libjpeg makes.
void read_rows(jpeg_decompress_struct& info, const Rectangle& part, std::vector<JSAMPROW>& rows, JSAMPLE* line,
               std::size_t offset, std::size_t bytes) {
  const auto end = static_cast<JDIMENSION>(part.top + part.height);
  while (info.output_scanline < end) {
    const auto at = static_cast<std::size_t>(info.output_scanline) - static_cast<std::size_t>(part.top);
    if (!line) {
      jpeg_read_scanlines(&info, rows.data() + at, end - info.output_scanline);
      continue;
    }
    if (jpeg_read_scanlines(&info, &line, 1) == 1) std::memcpy(rows[at], line + offset, bytes);
  }
}

}  // namespace

Rectangle JpegDecoder::read(const Rectangle& part, int channels, int reduced, bool exact, Image& image) {
  State& state = *state_;
  jpeg_decompress_struct& info = state.info;
  const bool four = info.jpeg_color_space == JCS_CMYK || info.jpeg_color_space == JCS_YCCK;
  info.out_color_space = four ? JCS_CMYK : channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
  info.dct_method = JDCT_ISLOW;
  info.scale_num = 1;
  info.scale_denom = static_cast<unsigned>(reduced);
  const JDIMENSION columns = (info.image_width + info.scale_denom - 1) / info.scale_denom;
  const std::size_t colours = four ? 4 : static_cast<std::size_t>(channels);
  // Where the end is missing, decoding all of it finds out whether data are missing, too.
  const bool whole_columns = part.width == static_cast<int>(columns);
  const bool may_stop = ends_complete(state.bytes);

  JDIMENSION from = 0, width = columns;
  const bool started = guarded(state.errors, [&] {
    jpeg_start_decompress(&info);
    // Of a progressive image that misses scans, blocks are smoothed by their neighbours, which a part would not have.
    if (!whole_columns && !info.progressive_mode) {
      from = static_cast<JDIMENSION>(std::max(part.left - kMargin, 0));
      width = std::min(static_cast<JDIMENSION>(part.left + part.width + kMargin), columns) - from;
    }
    if (width < columns) jpeg_crop_scanline(&info, &from, &width);
  });
  if (!started) state.refuse();

  Rectangle kept = part;
  if (!exact && !four) {
    kept.left = static_cast<int>(from);
    kept.width = static_cast<int>(width);
  }
  const std::size_t row = static_cast<std::size_t>(kept.width) * colours;
  image.height = kept.height;
  image.width = kept.width;
  image.channels = four ? 3 : channels;
  image.pixels.resize(static_cast<std::size_t>(kept.height) * static_cast<std::size_t>(kept.width) *
                      static_cast<std::size_t>(image.channels));
  if (four) state.inks.resize(static_cast<std::size_t>(kept.height) * row);
  JSAMPLE* const first = four ? state.inks.data() : image.pixels.data();
  state.rows.resize(static_cast<std::size_t>(kept.height));
  for (std::size_t y = 0; y < state.rows.size(); ++y) state.rows[y] = first + y * row;
  const bool whole_lines = kept.width == static_cast<int>(width);
  if (!whole_lines || !may_stop) state.line.resize(static_cast<std::size_t>(columns) * colours);
  JSAMPLE* const line = whole_lines ? nullptr : state.line.data();

  const bool read = guarded(state.errors, [&] {
    const std::size_t offset = (static_cast<std::size_t>(kept.left) - from) * colours;
    if (part.top > kMargin) jpeg_skip_scanlines(&info, static_cast<JDIMENSION>(part.top - kMargin));
    while (info.output_scanline < static_cast<JDIMENSION>(part.top)) {
      JSAMPLE* above = line ? line : state.rows[0];
      jpeg_read_scanlines(&info, &above, 1);
    }
    read_rows(info, part, state.rows, line, offset, row);
    JSAMPLE* below = state.line.data();
    while (!may_stop && info.output_scanline < info.output_height) jpeg_read_scanlines(&info, &below, 1);
    if (info.output_scanline == info.output_height)
      jpeg_finish_decompress(&info);
    else
      jpeg_abort_decompress(&info);
  });
  if (!read || state.errors.damaged) state.refuse();
  if (!four) return kept;
  // Adobe stores the complement of each ink.
  const JSAMPLE* ink = state.inks.data();
  for (std::size_t i = 0; i < state.inks.size() / 4; ++i, ink += 4) {
    for (std::size_t c = 0; c < 3; ++c) image.pixels[3 * i + c] = static_cast<JSAMPLE>(ink[c] * ink[3] / 255);
  }
  return kept;
}

}  // namespace paceline::io
