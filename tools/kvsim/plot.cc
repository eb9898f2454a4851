#include "plot.h"

#include <paceline/error.h>
#include <paceline/image.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <string_view>
#include <system_error>

namespace paceline::sim {
namespace {

using Colour = std::array<std::uint8_t, 3>;

constexpr Colour kBlack{40, 40, 40}, kGrey{225, 225, 225};
constexpr Colour kCurves[] = {{31, 119, 180}, {214, 95, 14}, {44, 140, 44},
                              {148, 80, 190}, {190, 30, 45}, {110, 110, 20}};

// Five rows of three dots, the top left one in the highest bit.
constexpr std::string_view kCharacters = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ.-,:/=_()";
constexpr std::uint16_t kDots[] = {
    075557, 026227, 071747, 071717, 055711, 074717, 074757, 071222, 075757, 075717,                  // 0-9
    025755, 065656, 034443, 065556, 074647, 074644, 034553, 055755, 072227, 011152, 055655, 044447,  // A-L
    057755, 065555, 025552, 065644, 025573, 065655, 034216, 072222, 055557, 055552, 055775, 055255,  // M-X
    055222, 071247, 000002, 000700, 000024, 002020, 011244, 007070, 000007, 024442, 021112};  // Y Z . - , : / = _ ( )

class Canvas {
 public:
  Canvas(int width, int height)
      : width_(width), height_(height), pixels_(static_cast<std::size_t>(3 * width * height), 255) {}

  void dot(int x, int y, const Colour& colour, int size = 1) {
    for (int dy = 0; dy < size; ++dy)
      for (int dx = 0; dx < size; ++dx) {
        if (x + dx < 0 || y + dy < 0 || x + dx >= width_ || y + dy >= height_) continue;
        std::copy(colour.begin(), colour.end(), pixels_.begin() + 3 * ((y + dy) * width_ + x + dx));
      }
  }

  void line(double x0, double y0, double x1, double y1, const Colour& colour, int size) {
    const int steps = std::max(1, static_cast<int>(std::ceil(std::max(std::abs(x1 - x0), std::abs(y1 - y0)))));
    for (int i = 0; i <= steps; ++i) {
      const double part = static_cast<double>(i) / steps;
      dot(static_cast<int>(std::lround(x0 + part * (x1 - x0))), static_cast<int>(std::lround(y0 + part * (y1 - y0))),
          colour, size);
    }
  }

  static int width_of(const std::string& text, int scale) { return static_cast<int>(text.size()) * 4 * scale; }

  void text(int x, int y, const std::string& text, const Colour& colour, int scale) {
    for (const char given : text) {
      const char c = given >= 'a' && given <= 'z' ? static_cast<char>(given - 'a' + 'A') : given;
      const std::size_t place = kCharacters.find(c);
      if (place != std::string_view::npos) {
        for (int bit = 0; bit < 15; ++bit)
          if (kDots[place] >> (14 - bit) & 1) dot(x + bit % 3 * scale, y + bit / 3 * scale, colour, scale);
      }
      x += 4 * scale;
    }
  }

  void write(const std::string& file) const {
    const std::string bytes = ImageCodec().encode({height_, width_, 3, pixels_}, ImageEncoding::kPng);
    std::ofstream out(file, std::ios::binary);
    if (!(out << bytes).flush())
      throw IoError("cannot write the plot '" + file + "': " + std::generic_category().message(errno));
  }

 private:
  const int width_, height_;
  std::vector<std::uint8_t> pixels_;
};

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, std::abs(value) >= 1e5 || (value != 0 && std::abs(value) < 0.01) ? "%.0e" : "%.4g",
                value);
  return text;
}

struct Range {
  double low = 0, high = 1;
  double at(double value) const { return high > low ? (value - low) / (high - low) : 0.5; }
};

// Marks at 1, 2 or 5 times powers of ten, some five of them; on a logarithmic axis at powers of ten.
std::vector<double> marks(const Range& range, bool logarithmic) {
  std::vector<double> all;
  if (logarithmic) {
    const double step = std::max(1.0, std::ceil((range.high - range.low) / 8));
    for (double mark = std::ceil(range.low - 1e-9); mark <= range.high + 1e-9; mark += step) all.push_back(mark);
    return all;
  }
  const double rough = (range.high - range.low) / 5, power = std::pow(10, std::floor(std::log10(rough)));
  const double step = power * (rough / power > 5 ? 10 : rough / power > 2 ? 5 : rough / power > 1 ? 2 : 1);
  for (double mark = std::ceil(range.low / step) * step; mark <= range.high * (1 + 1e-9); mark += step)
    all.push_back(mark);
  return all;
}

void draw_panel(Canvas& canvas, int left, int top, int width, int height, const std::string& x_name,
                const Panel& panel) {
  const auto scaled = [&](double y) { return panel.logarithmic ? std::log10(std::max(y, 1e-3)) : y; };
  Range xs{1e300, -1e300}, ys{panel.logarithmic ? 1e300 : 0, -1e300};
  for (const Curve& curve : panel.curves) {
    for (const auto& [x, y] : curve.points) {
      xs.low = std::min(xs.low, std::log10(x));
      xs.high = std::max(xs.high, std::log10(x));
      ys.low = std::min(ys.low, scaled(y));
      ys.high = std::max(ys.high, scaled(y));
    }
  }
  if (xs.high < xs.low) return canvas.text(left, top, panel.title + ": NONE", kBlack, 3);
  if (ys.high <= ys.low) ys.high = ys.low + 1;
  const auto px = [&](double x) { return left + xs.at(x) * width; };
  const auto py = [&](double y) { return top + height - ys.at(y) * height; };

  constexpr int kText = 2;
  for (const double mark : marks(ys, panel.logarithmic)) {
    const std::string text = short_number(panel.logarithmic ? std::pow(10, mark) : mark);
    canvas.line(left, py(mark), left + width, py(mark), kGrey, 1);
    canvas.text(left - 8 - Canvas::width_of(text, kText), static_cast<int>(py(mark)) - 5, text, kBlack, kText);
  }
  for (const double mark : marks(xs, true)) {
    const std::string text = short_number(std::pow(10, mark));
    canvas.line(px(mark), top, px(mark), top + height, kGrey, 1);
    canvas.text(static_cast<int>(px(mark)) - Canvas::width_of(text, kText) / 2, top + height + 8, text, kBlack, kText);
  }
  canvas.line(left, top + height, left + width, top + height, kBlack, 1);
  canvas.line(left, top, left, top + height, kBlack, 1);
  canvas.text(left, top - 24, panel.title, kBlack, 3);
  canvas.text(left + width / 2 - Canvas::width_of(x_name, kText) / 2, top + height + 28, x_name, kBlack, kText);
  for (std::size_t c = 0; c < panel.curves.size(); ++c) {
    const Colour& colour = kCurves[c % std::size(kCurves)];
    const auto& points = panel.curves[c].points;
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double x = px(std::log10(points[i].first)), y = py(scaled(points[i].second));
      canvas.dot(static_cast<int>(x) - 3, static_cast<int>(y) - 3, colour, 7);
      if (i + 1 < points.size())
        canvas.line(x, y, px(std::log10(points[i + 1].first)), py(scaled(points[i + 1].second)), colour, 2);
    }
    canvas.text(left + 14, top + 12 + 16 * static_cast<int>(c), panel.curves[c].name, colour, kText);
  }
}

}  // namespace

void write_plot(const std::string& file, const std::string& x_name, const std::vector<Panel>& panels) {
  constexpr int kWidth = 560, kHeight = 360, kLeft = 90, kTop = 50, kRight = 30, kBottom = 60;
  Canvas canvas(static_cast<int>(panels.size()) * (kLeft + kWidth + kRight), kTop + kHeight + kBottom);
  for (std::size_t p = 0; p < panels.size(); ++p)
    draw_panel(canvas, kLeft + static_cast<int>(p) * (kLeft + kWidth + kRight), kTop, kWidth, kHeight, x_name,
               panels[p]);
  canvas.write(file);
}

}  // namespace paceline::sim
