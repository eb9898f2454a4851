// The loader on files that are given, and floors of it on the same files: what compare_loader.py runs beside other
// loaders. Prints the rate on the last line.

#include <paceline/error.h>
#include <paceline/image.h>
#include <paceline/manifest.h>
#include <paceline/record_loader.h>

#include <fcntl.h>
#include <gflags/gflags.h>
#include <turbojpeg.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <functional>
#include <iostream>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "../../tools/flags.h"

DEFINE_int32(threads, 2, "threads that decode, read or copy");
DEFINE_double(seconds, 2, "of a measurement, at least");
DEFINE_string(steps, "", "what load does to images, as augment::parse() reads it; '': nothing");
DEFINE_bool(reduced, false, "load decodes images that become smaller at a part of their size");
DEFINE_int32(batch, 64, "examples in a batch of load and load_bytes");
DEFINE_int32(prefetch, 0, "batches that load and load_bytes make ahead; 0: as the loader chooses");
DEFINE_int64(count, 200000, "records that write writes");
DEFINE_int32(bytes, 1024, "of a record");

namespace paceline {
namespace {

constexpr const char* kUsage =
    "loader_benchmark [flags] WHAT PATH\n\n"
    "Prints {\"rate\": examples, records or files a second, \"cpu_us\": processor time of each}. WHAT is\n"
    "  load        shuffled epochs of images of a data set, decoded and augmented; PATH is its manifest\n"
    "  turbojpeg   TurboJPEG alone, which decodes the same JPEGs whole, from memory\n"
    "  records     records in their order, checked against their checksums\n"
    "  shuffled    records in a random order, checked likewise\n"
    "  load_bytes  epochs of records as arrays of bytes, in their order; checked likewise\n"
    "  load_bytes_shuffled   likewise, shuffled\n"
    "  write       makes the data set PATH.manifest of random records\n"
    "  copy        the files of folder PATH, in one file for each thread (PATH.0, ...), which are made durable";

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Speed {
  double rate = 0;    // a second
  double cpu_us = 0;  // of all threads, for each
};

// Of rounds of `round`, which returns how much it did, until `seconds` are over.
Speed speed_of(double seconds, const std::function<std::int64_t()>& round) {
  const std::clock_t cpu_start = std::clock();
  const auto start = Clock::now();
  std::int64_t done = 0;
  while (done == 0 || seconds_since(start) < seconds) done += round();
  const double taken = seconds_since(start), cpu = static_cast<double>(std::clock() - cpu_start) / CLOCKS_PER_SEC;
  const auto count = static_cast<double>(done);
  return {count / taken, 1e6 * cpu / count};
}

// The first round is not counted.
Speed warm_speed_of(const std::function<std::int64_t()>& round) {
  round();
  return speed_of(FLAGS_seconds, round);
}

// Calls body(thread) in all threads, and waits for them.
void in_threads(const std::function<void(int)>& body) {
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < FLAGS_threads; ++thread) threads.emplace_back(body, thread);
}

Speed load(const std::string& path, bool bytes, bool shuffle) {
  RecordLoaderOptions options{.batch = FLAGS_batch, .decode_threads = FLAGS_threads, .prefetch = FLAGS_prefetch};
  if (shuffle) options.shuffle = 1;
  if (bytes)
    options.decoder = decoders::tensor({.shape = {FLAGS_bytes}, .dtype = DType::kUint8, .labels = 0});
  else
    options.image = {.steps = augment::parse(FLAGS_steps), .reduced = FLAGS_reduced};
  RecordLoader loader(path, options);
  std::int64_t epoch = 0;
  const Speed speed = warm_speed_of([&] {
    std::int64_t examples = 0;
    for (const Batch& batch : EpochRange(loader, epoch++, {})) examples += batch.examples;
    return examples;
  });
  std::cout << loader.timing() << '\n';
  return speed;
}

std::vector<std::unique_ptr<RecordFile>> files_of(const std::string& path) {
  const Manifest manifest = Manifest::load(path);
  std::vector<std::unique_ptr<RecordFile>> files;
  for (const auto& shard : manifest.shards) {
    files.push_back(std::make_unique<RecordFile>(manifest.path_of(shard)));
    require(files.back()->has_checksums(), files.back()->path(), " has no checksums");
  }
  return files;
}

Speed turbojpeg(const std::string& path) {
  std::vector<std::string> jpegs;
  for (const auto& file : files_of(path)) {
    for (std::int64_t i = 0; i < file->size(); ++i) {
      std::string record;
      file->read(i, record);
      jpegs.emplace_back(ImageRecord(record).image());
    }
  }
  std::atomic<bool> failed = false;
  const Speed speed = warm_speed_of([&] {
    std::atomic<std::size_t> next = 0;
    in_threads([&](int) {
      const tjhandle decompressor = tjInitDecompress();
      std::vector<unsigned char> pixels;
      for (std::size_t i = next++; i < jpegs.size() && !failed; i = next++) {
        const auto* data = reinterpret_cast<const unsigned char*>(jpegs[i].data());
        int width = 0, height = 0, subsampling = 0, space = 0;
        failed = tjDecompressHeader3(decompressor, data, jpegs[i].size(), &width, &height, &subsampling, &space) != 0;
        if (failed) break;
        pixels.resize(static_cast<std::size_t>(3) * static_cast<std::size_t>(width) * static_cast<std::size_t>(height));
        failed = tjDecompress2(decompressor, data, jpegs[i].size(), pixels.data(), width, 0, height, TJPF_RGB,
                               TJFLAG_ACCURATEDCT) != 0;
      }
      tjDestroy(decompressor);
    });
    return static_cast<std::int64_t>(jpegs.size());
  });
  require(!failed, path, " holds an image that TurboJPEG does not decode");
  return speed;
}

Speed records(const std::string& path, bool shuffle) {
  const auto files = files_of(path);
  require(files.size() == 1, path, " has ", files.size(), " shards, expected one");
  const RecordFile& file = *files[0];
  std::vector<std::int64_t> places(static_cast<std::size_t>(file.size()));
  std::iota(places.begin(), places.end(), 0);
  if (shuffle) std::shuffle(places.begin(), places.end(), std::mt19937(1));
  return warm_speed_of([&] {
    in_threads([&](int thread) {
      RecordBuffer buffer;
      const auto look = [](std::int64_t, std::string_view, const RecordDamage* damage) {
        if (damage) throw Corrupt(damage->text());
      };
      const std::int64_t begin = file.size() * thread / FLAGS_threads;
      const std::int64_t end = file.size() * (thread + 1) / FLAGS_threads;
      if (!shuffle) return file.visit(begin, end, buffer, look);
      for (std::int64_t i = begin; i < end; ++i) {
        const std::int64_t place = places[static_cast<std::size_t>(i)];
        file.visit(place, place + 1, buffer, look);
      }
    });
    return file.size();
  });
}

void write(const std::string& prefix) {
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> words(static_cast<std::size_t>(FLAGS_bytes) / sizeof(std::uint64_t) + 1);
  DatasetWriter writer(prefix, 1);
  for (std::int64_t i = 0; i < FLAGS_count; ++i) {
    std::generate(words.begin(), words.end(), std::ref(random));
    writer.write(0, i, {reinterpret_cast<const char*>(words.data()), static_cast<std::size_t>(FLAGS_bytes)});
  }
  writer.finish({});
}

Speed copy(const std::string& folder) {
  std::atomic<std::size_t> next = 0;
  std::atomic<bool> failed = false;
  const Speed speed = speed_of(0, [&] {
    std::vector<std::string> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
      if (entry.is_regular_file()) paths.push_back(entry.path().string());
    in_threads([&](int thread) {
      const int to = open(str(folder, '.', thread).c_str(), O_CREAT | O_TRUNC | O_WRONLY | O_CLOEXEC, 0644);
      std::vector<char> block(std::size_t{1} << 20);
      for (std::size_t i = next++; i < paths.size() && !failed; i = next++) {
        const int from = open(paths[i].c_str(), O_RDONLY | O_CLOEXEC);
        ssize_t got = -1;
        while ((got = read(from, block.data(), block.size())) > 0)
          if (::write(to, block.data(), static_cast<std::size_t>(got)) != got) failed = true;
        if (got < 0) failed = true;
        close(from);
      }
      if (fsync(to) != 0) failed = true;
      close(to);
    });
    return static_cast<std::int64_t>(paths.size());
  });
  require(!failed, folder, " cannot be copied");
  return speed;
}

Speed measure(const std::string& what, const std::string& path) {
  if (what == "load") return load(path, false, true);
  if (what == "load_bytes") return load(path, true, false);
  if (what == "load_bytes_shuffled") return load(path, true, true);
  if (what == "turbojpeg") return turbojpeg(path);
  if (what == "records") return records(path, false);
  if (what == "shuffled") return records(path, true);
  if (what == "copy") return copy(path);
  throw InvalidArgument(str("there is no '", what, "'; --help lists what there is"));
}

int main(int argc, char** argv) {
  tools::parse_flags(kUsage, __FILE__, &argc, &argv, 2);
  return tools::run_main("loader_benchmark", [&] {
    require(argc == 3, "expected WHAT and PATH; --help explains them");
    const std::string what = argv[1];
    if (what == "write") {
      write(argv[2]);
      return 0;
    }
    const Speed speed = measure(what, argv[2]);
    std::cout << nlohmann::json{{"rate", speed.rate}, {"cpu_us", speed.cpu_us}}.dump() << '\n';
    return 0;
  });
}

}  // namespace
}  // namespace paceline

int main(int argc, char** argv) { return paceline::main(argc, argv); }
