// The peer of loader_benchmark for records: dmlc-core's InputSplit reads them, and checks nothing. compare_loader.py
// compiles it where dmlc-core's sources are; no build of ours needs them.
//
//   dmlc_records FILE.rec FILE.idx THREADS SECONDS HOW [BATCH]
//
// HOW is `ahead` (one split, which reads ahead by a thread of its own), `parts` (a split for each thread) or `shuffled`
// (likewise, of the records by index, in a random order). With BATCH, records are copied into batches of so many, as a
// loader of arrays has to; without, nobody looks into them.

#include <dmlc/io.h>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

int main(int argc, char** argv) {
  if (argc < 6) {
    std::cerr << "dmlc_records FILE.rec FILE.idx THREADS SECONDS ahead|parts|shuffled [BATCH]\n";
    return 2;
  }
  using Clock = std::chrono::steady_clock;
  const std::string how = argv[5];
  const unsigned parts = how == "ahead" ? 1 : static_cast<unsigned>(std::stoul(argv[3]));
  const double enough = std::stod(argv[4]);
  std::vector<std::unique_ptr<dmlc::InputSplit>> splits;
  for (unsigned part = 0; part < parts; ++part) {
    splits.emplace_back(how == "shuffled"
                            ? dmlc::InputSplit::Create(argv[1], argv[2], part, parts, "indexed_recordio", true, 1, 64)
                            : dmlc::InputSplit::Create(argv[1], part, parts, "recordio"));
  }
  std::vector<std::uint64_t> counts(parts);
  const std::size_t batch = argc > 6 ? std::stoul(argv[6]) : 0;
  std::vector<std::string> batches(parts);
  const auto round = [&] {
    std::vector<std::thread> threads;
    for (unsigned part = 0; part < parts; ++part) {
      threads.emplace_back([&, part] {
        dmlc::InputSplit::Blob blob;
        splits[part]->BeforeFirst();
        while (splits[part]->NextRecord(&blob)) {
          ++counts[part];
          if (batch == 0) continue;
          if (counts[part] % batch == 0) batches[part].clear();
          batches[part].append(static_cast<const char*>(blob.dptr), blob.size);
        }
      });
    }
    std::uint64_t count = 0;
    for (unsigned part = 0; part < parts; ++part) {
      threads[part].join();
      count += counts[part];
      counts[part] = 0;
    }
    return count;
  };
  const std::uint64_t all = round();
  const auto start = Clock::now();
  std::uint64_t done = 0;
  std::chrono::duration<double> seconds{0};
  do {
    done += round();
    seconds = Clock::now() - start;
  } while (seconds.count() < enough);
  std::cout << "{\"rate\": " << static_cast<double>(done) / seconds.count() << ", \"records\": " << all << "}\n";
}
