// Records, images and loaders: how many a second. Times are of one thread unless the name says otherwise; loaders count
// real time, with their own decode threads, and say where it went and what bound them.

#include <paceline/csv.h>
#include <paceline/manifest.h>
#include <paceline/record_loader.h>

#include <benchmark/benchmark.h>
#include <paceline/image.h>
#include <turbojpeg.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

namespace paceline {
namespace {

class Folder {
 public:
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "paceline-benchmark-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string operator/(const char* name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

// Smooth with some grain, so that it packs about as well as a photograph.
Image picture(int size, int channels) {
  Image image{size, size, channels, {}};
  std::uint32_t noise = 1;
  for (int y = 0; y < size; ++y) {
    for (int x = 0; x < size; ++x) {
      for (int c = 0; c < channels; ++c) {
        noise = noise * 1664525 + 1013904223;
        const double wave = std::sin(0.11 * x + c) * std::cos(0.07 * y) * 90 + 120;
        image.pixels.push_back(static_cast<std::uint8_t>(wave + (noise >> 28)));
      }
    }
  }
  return image;
}

// A white stroke on black, like a digit.
Image digit() {
  Image image{28, 28, 1, std::vector<std::uint8_t>(28 * 28)};
  for (int y = 4; y < 24; ++y) {
    for (int x = 0; x < 3; ++x)
      image.pixels[static_cast<std::size_t>(y * 28 + 8 + x + y / 3)] = static_cast<std::uint8_t>(250 - 60 * (x % 2));
  }
  return image;
}

void write_records(benchmark::State& state) {
  const Folder folder;
  const std::string record(static_cast<std::size_t>(state.range(0)), 'r');
  for (auto _ : state) {
    RecordWriter writer(folder / "a.rec");
    for (int i = 0; i < 20000; ++i) writer.write(record);
    writer.close();
  }
  state.SetItemsProcessed(state.iterations() * 20000);
  state.SetBytesProcessed(state.iterations() * 20000 * state.range(0));
}
BENCHMARK(write_records)->Arg(1024)->Unit(benchmark::kMillisecond);

void read_records_in_order(benchmark::State& state) {
  const Folder folder;
  const std::string record(static_cast<std::size_t>(state.range(0)), 'r');
  {
    RecordWriter writer(folder / "a.rec");
    for (int i = 0; i < 20000; ++i) writer.write(record);
    writer.close();
  }
  std::string back;
  for (auto _ : state) {
    RecordReader reader(folder / "a.rec");
    while (reader.next(back)) benchmark::DoNotOptimize(back.data());
  }
  state.SetItemsProcessed(state.iterations() * 20000);
  state.SetBytesProcessed(state.iterations() * 20000 * state.range(0));
}
BENCHMARK(read_records_in_order)->Arg(1024)->Unit(benchmark::kMillisecond);

// By index, every record checked by its CRC32C.
void read_records_at_random(benchmark::State& state) {
  const Folder folder;
  const std::string record(static_cast<std::size_t>(state.range(0)), 'r');
  DatasetWriter writer(folder / "a", 1);
  for (int i = 0; i < 20000; ++i) writer.write(0, i, record);
  const Manifest manifest = Manifest::load(writer.finish({}));
  const RecordFile file(manifest.path_of(manifest.shards[0]));
  std::string back;
  std::int64_t place = 0;
  for (auto _ : state) {
    place = (place + 7919) % 20000;
    file.read(place, back);
  }
  state.SetItemsProcessed(state.iterations());
  state.SetBytesProcessed(state.iterations() * state.range(0));
}
BENCHMARK(read_records_at_random)->Arg(1024);

void decode(benchmark::State& state, const Image& image, ImageEncoding encoding) {
  ImageCodec codec;
  const std::string bytes = codec.encode(image, encoding, 90);
  Image back;
  for (auto _ : state) codec.decode(bytes, back);
  state.SetItemsProcessed(state.iterations());
  state.counters["bytes"] = static_cast<double>(bytes.size());
}
BENCHMARK_CAPTURE(decode, raw_28x28_grey, digit(), ImageEncoding::kRaw);
BENCHMARK_CAPTURE(decode, png_28x28_grey, digit(), ImageEncoding::kPng);
BENCHMARK_CAPTURE(decode, jpeg_28x28_grey, digit(), ImageEncoding::kJpeg);
BENCHMARK_CAPTURE(decode, png_32x32_colour, picture(32, 3), ImageEncoding::kPng);
BENCHMARK_CAPTURE(decode, jpeg_32x32_colour, picture(32, 3), ImageEncoding::kJpeg);
BENCHMARK_CAPTURE(decode, png_256x256_colour, picture(256, 3), ImageEncoding::kPng);
BENCHMARK_CAPTURE(decode, jpeg_256x256_colour, picture(256, 3), ImageEncoding::kJpeg);

// The peer of decode/jpeg_*: TurboJPEG alone, with the same exact transform, into memory that it keeps.
void turbojpeg(benchmark::State& state, const Image& image) {
  const std::string bytes = ImageCodec().encode(image, ImageEncoding::kJpeg, 90);
  const auto* data = reinterpret_cast<const unsigned char*>(bytes.data());
  const tjhandle decompressor = tjInitDecompress();
  std::vector<unsigned char> pixels(image.pixels.size());
  for (auto _ : state) {
    int width = 0, height = 0, subsampling = 0, space = 0;
    if (tjDecompressHeader3(decompressor, data, bytes.size(), &width, &height, &subsampling, &space) != 0 ||
        tjDecompress2(decompressor, data, bytes.size(), pixels.data(), width, 0, height,
                      image.channels == 1 ? TJPF_GRAY : TJPF_RGB, TJFLAG_ACCURATEDCT) != 0) {
      state.SkipWithError(tjGetErrorStr2(decompressor));
      break;
    }
    benchmark::DoNotOptimize(pixels.data());
  }
  tjDestroy(decompressor);
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(turbojpeg, jpeg_28x28_grey, digit());
BENCHMARK_CAPTURE(turbojpeg, jpeg_32x32_colour, picture(32, 3));
BENCHMARK_CAPTURE(turbojpeg, jpeg_256x256_colour, picture(256, 3));

// A crop of 224 x 224 from a JPEG of 448 x 448, anywhere: of the whole image, and decoding only what the crop needs.
void crop_of_jpeg(benchmark::State& state, bool part) {
  ImageCodec codec;
  const std::string bytes = codec.encode(picture(448, 3), ImageEncoding::kJpeg, 90);
  Image image;
  int place = 0;
  for (auto _ : state) {
    place = (place + 97) % 225;
    if (part) {
      codec.header(bytes);
      codec.decode_part({place, 224 - place, 224, 224}, image);
    } else {
      codec.decode(bytes, image);
      image = crop(image, place, 224 - place, 224, 224);
    }
    benchmark::DoNotOptimize(image.pixels.data());
  }
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK_CAPTURE(crop_of_jpeg, whole, false);
BENCHMARK_CAPTURE(crop_of_jpeg, part, true);

void resize_image(benchmark::State& state) {
  const Image image = picture(static_cast<int>(state.range(0)), 3);
  for (auto _ : state) benchmark::DoNotOptimize(resize(image, 224, 224).pixels.data());
  state.SetItemsProcessed(state.iterations());
}
BENCHMARK(resize_image)->Arg(256)->Arg(448);

// A shuffled epoch of JPEGs of 448 x 448 to 224 x 224, by one thread.
void augment_jpegs(benchmark::State& state, const char* steps) {
  constexpr int kCount = 200;
  const Folder folder;
  DatasetWriter writer(folder / "a", 1);
  const std::string bytes = ImageCodec().encode(picture(448, 3), ImageEncoding::kJpeg, 90);
  const float label = 1;
  for (int i = 0; i < kCount; ++i)
    writer.write(0, i, pack_image_record({&label, 1}, static_cast<std::uint64_t>(i), bytes));
  RecordLoader loader(writer.finish({}),
                      {.shuffle = 1, .decode_threads = 1, .image = {.channels = 3, .steps = augment::parse(steps)}});
  std::int64_t epoch = 0, examples = 0;
  for (auto _ : state) {
    for (const Batch& batch : EpochRange(loader, epoch++, {})) examples += batch.examples;
  }
  state.SetItemsProcessed(examples);
}
#define AUGMENT(name, steps) \
  BENCHMARK_CAPTURE(augment_jpegs, name, steps)->UseRealTime()->MeasureProcessCPUTime()->Unit(benchmark::kMillisecond)
AUGMENT(resize, "resize(size=224)");
AUGMENT(resize_center_crop, "resize(short=256);center_crop(size=224)");
AUGMENT(random_crop, "random_crop(size=224);flip");
AUGMENT(random_resized_crop, "random_resized_crop(size=224);flip");
AUGMENT(jitter, "random_resized_crop(size=224);flip;color_jitter(brightness=0.4,contrast=0.4,saturation=0.4)");
AUGMENT(jitter_hue, "random_resized_crop(size=224);flip;color_jitter(hue=0.1)");
AUGMENT(rotate, "random_resized_crop(size=224);rotate(degrees=15)");
#undef AUGMENT

void drain(benchmark::State& state, DataIterator& data) {
  std::int64_t epoch = 0, examples = 0;
  std::uint64_t bytes = 0;
  for (auto _ : state) {
    for (const Batch& batch : EpochRange(data, epoch++, {})) examples += batch.examples;
    bytes += data.timing().bytes;
  }
  state.SetItemsProcessed(examples);
  state.SetBytesProcessed(static_cast<std::int64_t>(bytes));
  std::ostringstream text;  // of the last epoch
  text << data.timing();
  state.SetLabel(text.str());
}

// A shuffled epoch in batches of 64.
void load(benchmark::State& state, const Image& image, ImageEncoding encoding, int count) {
  const Folder folder;
  DatasetWriter writer(folder / "a", 2);
  const std::string bytes = ImageCodec().encode(image, encoding, 90);
  const float label = 1;
  for (int i = 0; i < count; ++i) {
    writer.write(i * 2 / count, i, pack_image_record({&label, 1}, static_cast<std::uint64_t>(i), bytes));
  }
  Manifest manifest;
  manifest.image = {image.height, image.width, image.channels};
  RecordLoader loader(writer.finish(manifest), {.shuffle = 1, .decode_threads = static_cast<int>(state.range(0))});
  drain(state, loader);
}
BENCHMARK_CAPTURE(load, raw_28x28_grey, digit(), ImageEncoding::kRaw, 60000)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(load, png_28x28_grey, digit(), ImageEncoding::kPng, 60000)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(load, jpeg_32x32_colour, picture(32, 3), ImageEncoding::kJpeg, 20000)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK_CAPTURE(load, jpeg_256x256_colour, picture(256, 3), ImageEncoding::kJpeg, 1000)
    ->ArgName("threads")
    ->Arg(1)
    ->Arg(2)
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMillisecond);

// The file that BENCHMARK_CSV names, else 200,000 rows of 20 numbers that are made here.
std::string csv_file(const Folder& folder) {
  if (const char* given = std::getenv("BENCHMARK_CSV")) return given;
  std::ofstream file(folder / "a.csv");
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  for (int column = 0; column < 20; ++column) file << (column ? ",c" : "c") << column;
  for (int row = 0; row < 200000; ++row)
    for (int column = 0; column < 20; ++column) file << (column ? ',' : '\n') << normal(random);
  file << '\n';
  return folder / "a.csv";
}

// Finds the rows and reads them once, in batches of 4096: what a program does that reads a CSV as a whole.
void read_csv(benchmark::State& state) {
  const Folder folder;
  const std::string path = csv_file(folder);
  std::int64_t examples = 0;
  for (auto _ : state) {
    CsvIterator data(path, {.batch = 4096, .decode_threads = static_cast<int>(state.range(0))});
    for (const Batch& batch : EpochRange(data, 0, {})) examples += batch.examples;
  }
  state.SetItemsProcessed(examples);
}
BENCHMARK(read_csv)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

// A shuffled epoch.
void load_csv(benchmark::State& state) {
  const Folder folder;
  CsvIterator data(csv_file(folder), {.batch = 4096, .shuffle = 1, .decode_threads = static_cast<int>(state.range(0))});
  drain(state, data);
}
BENCHMARK(load_csv)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(benchmark::kMillisecond);

// Finding the rows, with all cores of the budget.
void index_csv(benchmark::State& state) {
  const Folder folder;
  const std::string row = "0.12345,1.2345,-12.345,123.45,1234.5,0.12345,1.2345,-12.345,123.45,1234.5\n";
  std::string text;
  for (int i = 0; i < 1'000'000; ++i) text += row;
  std::ofstream(folder / "a.csv") << text;
  for (auto _ : state) CsvIterator(folder / "a.csv", {.header = false});
  state.SetBytesProcessed(state.iterations() * static_cast<std::int64_t>(text.size()));
}
BENCHMARK(index_csv)->UseRealTime()->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace paceline

BENCHMARK_MAIN();
