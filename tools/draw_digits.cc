// Draws handwriting-like digits, for machines that cannot fetch MNIST: strokes of several styles, bent, slanted, thick
// or thin, 28x28 pixels, in IDX files with MNIST's names.

#include <paceline/cores.h>
#include <paceline/detail/remote.h>
#include <paceline/detail/split_mix.h>
#include <paceline/error.h>
#include <paceline/idx_file.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <thread>

#include "flags.h"

DEFINE_string(out, "", "folder of the files; created if need be");
DEFINE_int64(train, 60000, "training digits");
DEFINE_int64(test, 10000, "test digits");
DEFINE_uint64(seed, 0, "the same seed draws the same digits");
DEFINE_int32(threads, 0, "0: all cores");
DEFINE_bool(compress, true, "write .gz files");

namespace paceline {
namespace {

constexpr char kUsage[] =
    "draw_digits --out DIR [flags]\n\n"
    "Draws digits into DIR/train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz and the same for t10k.";

constexpr int kSize = 28;
constexpr std::size_t kPixels = kSize * kSize;

// Each image has its own, so the result does not depend on the threads.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits() { return detail::finalised(state_ += detail::kSplitMixStep); }
  float uniform(float low, float high) {
    return low + (high - low) * static_cast<float>(bits() >> 40) * (1.0f / 16777216.0f);
  }
  // Nearly normal: the sum of four uniform numbers.
  float normal(float deviation) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += uniform(-1, 1);
    return sum * deviation * 0.866f;
  }
  std::size_t below(std::size_t count) { return static_cast<std::size_t>(bits() % count); }

 private:
  std::uint64_t state_;
};

struct Point {
  float x = 0;
  float y = 0;
};

// Points in a unit square, y downwards; joined by straight lines or by a smooth curve through them.
struct Stroke {
  bool curved;
  std::vector<Point> points;
};
using Glyph = std::vector<Stroke>;

const std::array<std::vector<Glyph>, 10>& glyphs() {
  static const std::array<std::vector<Glyph>, 10> all = {{
      {{{true,
         {{.55f, 0},
          {.25f, .12f},
          {.12f, .5f},
          {.25f, .88f},
          {.5f, 1},
          {.76f, .86f},
          {.86f, .5f},
          {.74f, .13f},
          {.5f, 0}}}},
       {{true,
         {{.7f, .08f},
          {.4f, .02f},
          {.16f, .3f},
          {.15f, .7f},
          {.4f, 1},
          {.72f, .85f},
          {.84f, .45f},
          {.68f, .1f},
          {.45f, .06f}}}},
       {{true, {{.5f, 0}, {.3f, .2f}, {.25f, .6f}, {.45f, 1}, {.7f, .75f}, {.72f, .3f}, {.52f, 0}}}}},
      {{{false, {{.5f, 0}, {.5f, 1}}}},
       {{false, {{.3f, .22f}, {.54f, 0}, {.54f, 1}}}},
       {{false, {{.3f, .2f}, {.52f, 0}, {.52f, 1}}}, {false, {{.28f, 1}, {.76f, 1}}}}},
      {{{true, {{.15f, .25f}, {.3f, .04f}, {.6f, 0}, {.8f, .2f}, {.7f, .45f}, {.4f, .76f}, {.12f, 1}}},
        {false, {{.12f, 1}, {.88f, .97f}}}},
       {{true,
         {{.18f, .2f},
          {.42f, 0},
          {.74f, .12f},
          {.7f, .42f},
          {.42f, .8f},
          {.18f, .98f},
          {.12f, .82f},
          {.34f, .8f},
          {.6f, .95f},
          {.9f, .94f}}}},
       {{true, {{.2f, .12f}, {.55f, .02f}, {.76f, .22f}, {.62f, .55f}, {.2f, .95f}}},
        {true, {{.2f, .95f}, {.55f, .92f}, {.88f, 1}}}}},
      {{{true, {{.18f, .12f}, {.45f, 0}, {.75f, .13f}, {.7f, .38f}, {.42f, .47f}}},
        {true, {{.42f, .47f}, {.75f, .57f}, {.8f, .82f}, {.5f, 1}, {.15f, .88f}}}},
       {{false, {{.18f, .02f}, {.8f, .02f}, {.45f, .4f}}},
        {true, {{.45f, .4f}, {.8f, .55f}, {.78f, .88f}, {.45f, 1}, {.14f, .87f}}}},
       {{true,
         {{.15f, .05f},
          {.6f, .02f},
          {.74f, .22f},
          {.5f, .44f},
          {.36f, .5f},
          {.62f, .52f},
          {.78f, .72f},
          {.55f, .98f},
          {.12f, .95f}}}}},
      {{{false, {{.2f, 0}, {.15f, .55f}, {.85f, .55f}}}, {false, {{.68f, .05f}, {.66f, 1}}}},
       {{false, {{.68f, 1}, {.68f, 0}, {.1f, .66f}, {.92f, .66f}}}},
       {{true, {{.22f, .02f}, {.12f, .3f}, {.2f, .52f}, {.5f, .55f}, {.75f, .45f}}},
        {true, {{.8f, 0}, {.75f, .5f}, {.68f, 1}}}}},
      {{{false, {{.8f, 0}, {.25f, 0}, {.22f, .42f}}},
        {true, {{.22f, .42f}, {.55f, .35f}, {.82f, .6f}, {.72f, .9f}, {.42f, 1}, {.15f, .88f}}}},
       {{true,
         {{.78f, .03f}, {.4f, .03f}, {.28f, .2f}, {.3f, .42f}, {.65f, .47f}, {.78f, .75f}, {.5f, 1}, {.18f, .93f}}}},
       {{true, {{.3f, .06f}, {.26f, .45f}, {.6f, .44f}, {.8f, .7f}, {.55f, .98f}, {.15f, .92f}}},
        {false, {{.3f, .04f}, {.85f, .02f}}}}},
      {{{true,
         {{.68f, 0},
          {.38f, .2f},
          {.2f, .55f},
          {.22f, .85f},
          {.5f, 1},
          {.78f, .85f},
          {.75f, .6f},
          {.5f, .5f},
          {.25f, .68f}}}},
       {{true,
         {{.5f, 0}, {.28f, .4f}, {.18f, .75f}, {.35f, 1}, {.65f, .97f}, {.75f, .72f}, {.55f, .55f}, {.22f, .75f}}}},
       {{true,
         {{.85f, .08f}, {.45f, .12f}, {.2f, .5f}, {.2f, .9f}, {.55f, 1}, {.7f, .8f}, {.55f, .62f}, {.22f, .8f}}}}},
      {{{false, {{.15f, .05f}, {.85f, .05f}, {.4f, 1}}}},
       {{false, {{.15f, .04f}, {.85f, .04f}, {.42f, 1}}}, {false, {{.28f, .5f}, {.78f, .48f}}}},
       {{false, {{.13f, .22f}, {.17f, .05f}, {.85f, .03f}}},
        {true, {{.85f, .03f}, {.6f, .4f}, {.48f, .7f}, {.45f, 1}}}}},
      {{{true,
         {{.75f, .15f},
          {.5f, 0},
          {.25f, .12f},
          {.3f, .35f},
          {.55f, .5f},
          {.8f, .72f},
          {.68f, .95f},
          {.4f, 1},
          {.2f, .82f},
          {.32f, .6f},
          {.6f, .42f},
          {.78f, .18f}}}},
       {{true, {{.5f, 0}, {.26f, .12f}, {.27f, .36f}, {.5f, .47f}, {.74f, .35f}, {.73f, .1f}, {.5f, 0}}},
        {true, {{.5f, .47f}, {.2f, .62f}, {.2f, .9f}, {.5f, 1}, {.8f, .9f}, {.79f, .62f}, {.5f, .47f}}}},
       {{true,
         {{.82f, .04f},
          {.4f, .04f},
          {.3f, .25f},
          {.62f, .55f},
          {.7f, .85f},
          {.42f, 1},
          {.25f, .8f},
          {.5f, .5f},
          {.84f, .1f}}}}},
      {{{true, {{.75f, .2f}, {.5f, 0}, {.25f, .15f}, {.25f, .4f}, {.5f, .5f}, {.72f, .35f}, {.76f, .15f}}},
        {true, {{.76f, .15f}, {.74f, .5f}, {.68f, 1}}}},
       {{true,
         {{.74f, .15f},
          {.48f, 0},
          {.22f, .2f},
          {.32f, .45f},
          {.6f, .42f},
          {.76f, .12f},
          {.78f, .55f},
          {.65f, .9f},
          {.35f, .98f},
          {.2f, .88f}}}},
       {{true, {{.8f, .06f}, {.45f, .04f}, {.24f, .26f}, {.42f, .44f}, {.7f, .3f}, {.8f, .06f}}},
        {false, {{.8f, .06f}, {.5f, 1}}}}},
  }};
  return all;
}

// A polyline through the points: Catmull-Rom with eight steps between neighbours.
std::vector<Point> flatten(const Stroke& stroke) {
  if (!stroke.curved) return stroke.points;
  const std::vector<Point>& p = stroke.points;
  constexpr int kSteps = 8;
  std::vector<Point> line = {p.front()};
  for (std::size_t i = 0; i + 1 < p.size(); ++i) {
    const Point a = p[i == 0 ? 0 : i - 1], b = p[i], c = p[i + 1], d = p[std::min(i + 2, p.size() - 1)];
    for (int step = 1; step <= kSteps; ++step) {
      const float t = static_cast<float>(step) / kSteps;
      const auto blend = [t](float w, float x, float y, float z) {
        return 0.5f * (2 * x + (y - w) * t + (2 * w - 5 * x + 4 * y - z) * t * t + (3 * x - w - 3 * y + z) * t * t * t);
      };
      line.push_back({blend(a.x, b.x, c.x, d.x), blend(a.y, b.y, c.y, d.y)});
    }
  }
  return line;
}

// From the unit square to pixels: size, slant, rotation, and a smooth bending of the plane.
class Warp {
 public:
  explicit Warp(Random& random) {
    const float angle = random.normal(0.12f), slant = random.normal(0.22f) + 0.08f;
    const float width = random.uniform(9.5f, 17), height = random.uniform(16.5f, 21);
    const float cosine = std::cos(angle), sine = std::sin(angle);
    xx_ = width * cosine;
    xy_ = -height * (slant * cosine + sine);
    yx_ = width * sine;
    yy_ = height * (cosine - slant * sine);
    for (Wave& wave : waves_) {
      wave = {random.uniform(0.08f, 0.3f), random.uniform(0.08f, 0.3f),
              random.uniform(0, 2 * std::numbers::pi_v<float>), random.normal(0.75f), random.normal(0.75f)};
    }
  }

  Point operator()(Point p) const {
    const float u = p.x - 0.5f, v = p.y - 0.5f;
    const Point q{xx_ * u + xy_ * v, yx_ * u + yy_ * v};
    Point bent = q;
    for (const Wave& wave : waves_) {
      const float s = std::sin(wave.fx * q.x + wave.fy * q.y + wave.phase);
      bent.x += wave.ax * s;
      bent.y += wave.ay * s;
    }
    return bent;
  }

 private:
  struct Wave {
    float fx, fy, phase, ax, ay;
  };
  float xx_, xy_, yx_, yy_;
  std::array<Wave, 3> waves_;
};

class Canvas {
 public:
  // Covers the pixels near the segment by a pen of radius `radius`.
  void segment(Point a, Point b, float radius) {
    const float reach = radius + 1;
    const int left = bound(std::min(a.x, b.x) - reach), right = bound(std::max(a.x, b.x) + reach + 1);
    const int top = bound(std::min(a.y, b.y) - reach), bottom = bound(std::max(a.y, b.y) + reach + 1);
    const float dx = b.x - a.x, dy = b.y - a.y;
    const float square = std::max(dx * dx + dy * dy, 1e-6f);
    for (int y = top; y < bottom; ++y) {
      for (int x = left; x < right; ++x) {
        const float px = static_cast<float>(x) - a.x, py = static_cast<float>(y) - a.y;
        const float along = std::clamp((px * dx + py * dy) / square, 0.0f, 1.0f);
        const float distance = std::hypot(px - along * dx, py - along * dy);
        float& ink = ink_[static_cast<std::size_t>(y * kSize + x)];
        ink = std::max(ink, std::clamp((radius + 0.6f - distance) / 1.2f, 0.0f, 1.0f));
      }
    }
  }

  void develop(Random& random, std::uint8_t* pixels) const {
    const float darkness = random.uniform(0.8f, 1.1f), grain = random.uniform(2, 14);
    for (std::size_t i = 0; i < kPixels; ++i) {
      const float value = ink_[i] * darkness * 255 + (ink_[i] > 0 ? random.normal(grain) : 0);
      pixels[i] = static_cast<std::uint8_t>(std::clamp(value, 0.0f, 255.0f));
    }
  }

 private:
  static int bound(float value) { return std::clamp(static_cast<int>(std::floor(value)), 0, kSize); }

  std::array<float, kPixels> ink_{};
};

void draw(std::size_t digit, Random& random, std::uint8_t* pixels) {
  const std::vector<Glyph>& styles = glyphs()[digit];
  Glyph glyph = styles[random.below(styles.size())];
  for (Stroke& stroke : glyph) {
    for (Point& p : stroke.points) p = {p.x + random.normal(0.04f), p.y + random.normal(0.035f)};
  }
  const Warp warp(random);
  const float radius = random.uniform(0.55f, 1.75f);
  const float pressure = random.uniform(0, 0.3f), phase = random.uniform(0, 6);

  std::vector<std::vector<Point>> lines;
  Point low{1e9f, 1e9f}, high{-1e9f, -1e9f};
  for (const Stroke& stroke : glyph) {
    lines.push_back(flatten(stroke));
    for (Point& p : lines.back()) {
      p = warp(p);
      low = {std::min(low.x, p.x), std::min(low.y, p.y)};
      high = {std::max(high.x, p.x), std::max(high.y, p.y)};
    }
  }
  // In the middle, like MNIST's, within a pixel or two.
  const Point shift{13.5f - (low.x + high.x) / 2 + random.normal(0.7f),
                    13.5f - (low.y + high.y) / 2 + random.normal(0.7f)};
  Canvas canvas;
  for (const std::vector<Point>& line : lines) {
    for (std::size_t i = 0; i + 1 < line.size(); ++i) {
      const float wave = std::sin(phase + 0.25f * static_cast<float>(i));
      canvas.segment({line[i].x + shift.x, line[i].y + shift.y}, {line[i + 1].x + shift.x, line[i + 1].y + shift.y},
                     radius * (1 + pressure * wave));
    }
  }
  canvas.develop(random, pixels);
}

void check_count(const char* flag, std::int64_t count) {
  require(count >= 1 && count <= 10000000, "--", flag, " is ", count, ", expected 1 to 10,000,000 digits");
}

void draw_set(const std::string& name, std::int64_t count, std::uint64_t seed) {
  IdxFile images{{count, kSize, kSize}, std::vector<std::uint8_t>(static_cast<std::size_t>(count) * kPixels)};
  IdxFile labels{{count}, std::vector<std::uint8_t>(static_cast<std::size_t>(count))};
  const std::size_t total = static_cast<std::size_t>(count);
  const std::size_t threads = static_cast<std::size_t>(tools::threads_wanted(FLAGS_threads));
  std::vector<std::thread> workers;
  for (std::size_t t = 0; t < threads; ++t) {
    workers.emplace_back([&, t] {
      for (std::size_t i = total * t / threads; i < total * (t + 1) / threads; ++i) {
        Random random(Random(seed).bits() ^ Random(i).bits());
        labels.values[i] = static_cast<std::uint8_t>(random.below(10));
        draw(labels.values[i], random, images.values.data() + i * kPixels);
      }
    });
  }
  for (std::thread& worker : workers) worker.join();
  const std::string prefix = (std::filesystem::path(FLAGS_out) / name).string();
  const char* ending = FLAGS_compress ? ".gz" : "";
  write_idx(prefix + "-images-idx3-ubyte" + ending, images);
  write_idx(prefix + "-labels-idx1-ubyte" + ending, labels);
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) {
  paceline::tools::parse_flags(paceline::kUsage, __FILE__, &argc, &argv);
  return paceline::tools::run_main("draw_digits", [] {
    paceline::require(!FLAGS_out.empty(), "--out is missing: the folder to write");
    paceline::require(!paceline::is_remote(FLAGS_out), "--out: digits are written to a folder of this host, not to ",
                      paceline::redacted(FLAGS_out));
    paceline::check_count("train", FLAGS_train);
    paceline::check_count("test", FLAGS_test);
    std::error_code error;
    std::filesystem::create_directories(FLAGS_out, error);
    paceline::require(!error, "--out: cannot make the folder ", FLAGS_out, ": ", error.message());
    paceline::draw_set("train", FLAGS_train, 2 * FLAGS_seed);
    paceline::draw_set("t10k", FLAGS_test, 2 * FLAGS_seed + 1);
    std::printf("%s: %lld training and %lld test digits\n", FLAGS_out.c_str(), static_cast<long long>(FLAGS_train),
                static_cast<long long>(FLAGS_test));
    return 0;
  });
}
