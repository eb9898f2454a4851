// The floor under kvbench --sparse_rows over shared memory: servers and workers are processes that share one mapping.
// A worker lists each server's rows; the server takes gradients from the worker's array, updates the rows where they
// lie (a row's id is its place) and writes what is pulled into the worker's array. One semaphore post each way is the
// whole protocol.

#include <gflags/gflags.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <vector>

#include "../../tools/flags.h"

DEFINE_int32(servers, 2, "servers");
DEFINE_int32(workers, 2, "workers");
DEFINE_int64(sparse_rows, 100000, "rows in a call, drawn at random; a row is 64 floats");
DEFINE_int64(table_rows, 10000000, "rows of the table");
DEFINE_int64(made_rows, 0, "draw only from that many rows of the table, side by side; 0: from all");
DEFINE_int32(ahead, 16, "rows asked for ahead; 0: none");
DEFINE_bool(huge, true, "table and arrays in huge pages");
DEFINE_double(seconds, 1, "how long each of the three measurements runs");

namespace {

constexpr char kUsage[] =
    "rowfloor [flags]\n\n"
    "What memory alone makes of kvbench --sparse_rows over shm: the same rows pushed and pulled in place, without\n"
    "engine, index, versions and protocol. The last line is the same JSON object.";

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWidth = 64, kDraws = 16;
constexpr int kMost = 16;
constexpr std::size_t kHuge = 2 << 20;

enum Wish : int { kPush = 1, kPull = 2, kBoth = 3, kEnd = 0 };

struct Entry {
  std::uint32_t row, place;
};

struct Call {
  Entry* entries;
  std::size_t count;
  std::atomic<int> wish;
  std::atomic<bool> posted;
};

// Shared by all processes.
struct Place {
  pthread_barrier_t everybody, workers;
  sem_t asked[kMost], answered[kMost];
  Call calls[kMost][kMost];  // of a server, from a worker
  float *tables[kMost], *gradients[kMost], *rows[kMost];
  double rates[kMost][3];
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::size_t rows_of_call() { return static_cast<std::size_t>(FLAGS_sparse_rows); }

template <class T>
T* shared(std::size_t count) {
  const std::size_t bytes = (count * sizeof(T) + kHuge - 1) / kHuge * kHuge;
  void* memory = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + kHuge - 1) / kHuge * kHuge;
  madvise(reinterpret_cast<void*>(begin), bytes, FLAGS_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  return reinterpret_cast<T*>(begin);
}

// Only its server uses it, so it need not be shared, and private memory gets huge pages more readily.
float* new_table() {
  const std::size_t rows = static_cast<std::size_t>(FLAGS_table_rows / FLAGS_servers + 1);
  const std::size_t bytes = (rows * kWidth * sizeof(float) + kHuge - 1) / kHuge * kHuge;
  void* memory = mmap(nullptr, bytes + kHuge, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no memory for the table");
  madvise(memory, bytes + kHuge, FLAGS_huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  const auto begin = (reinterpret_cast<std::uintptr_t>(memory) + kHuge - 1) / kHuge * kHuge;
  return reinterpret_cast<float*>(begin);
}

template <int kWish>
void answer(const Call& call, float* table, const float* gradients, float* rows) {
  const auto ahead = static_cast<std::size_t>(FLAGS_ahead);
  for (std::size_t i = 0; i < call.count; ++i) {
    if (ahead > 0 && i + ahead < call.count) {
      const Entry next = call.entries[i + ahead];
      for (std::size_t line = 0; line < kWidth; line += 16) {
        __builtin_prefetch(table + next.row * kWidth + line, kWish & kPush);
        if (kWish & kPush) __builtin_prefetch(gradients + next.place * kWidth + line);
      }
    }
    const Entry entry = call.entries[i];
    float* weight = table + entry.row * kWidth;
    const float* gradient = gradients + entry.place * kWidth;
    float* row = rows + entry.place * kWidth;
    for (std::size_t f = 0; f < kWidth; ++f) {
      float value = weight[f];
      if (kWish & kPush) weight[f] = value = value - 0.01f * gradient[f];
      if (kWish & kPull) row[f] = value;
    }
  }
}

void serve(Place& place, int number) {
  float* table = new_table();
  for (std::size_t f = 0; f < static_cast<std::size_t>(FLAGS_table_rows / FLAGS_servers) * kWidth; f += 1024)
    table[f] = 0;
  pthread_barrier_wait(&place.everybody);
  for (int ended = 0; ended < FLAGS_workers;) {
    while (sem_wait(&place.asked[number]) != 0) continue;
    for (int w = 0; w < FLAGS_workers; ++w) {
      Call& call = place.calls[number][w];
      if (!call.posted.exchange(false)) continue;
      const int wish = call.wish;
      if (wish == kPush) answer<kPush>(call, table, place.gradients[w], place.rows[w]);
      if (wish == kPull) answer<kPull>(call, table, place.gradients[w], place.rows[w]);
      if (wish == kBoth) answer<kBoth>(call, table, place.gradients[w], place.rows[w]);
      if (wish == kEnd) ++ended;
      sem_post(&place.answered[w]);
    }
  }
}

void ask(Place& place, int worker, const std::vector<std::uint32_t>& ids, int wish) {
  const auto servers = static_cast<std::uint32_t>(FLAGS_servers);
  std::size_t counts[kMost] = {};
  Entry* lists[kMost];
  for (std::uint32_t s = 0; s < servers; ++s) lists[s] = place.calls[s][worker].entries;
  for (std::uint32_t i = 0; i < ids.size(); ++i) {
    const std::uint32_t s = ids[i] % servers;
    lists[s][counts[s]++] = {ids[i] / servers, i};
  }
  for (std::uint32_t s = 0; s < servers; ++s) {
    Call& call = place.calls[s][worker];
    call.count = counts[s];
    call.wish = wish;
    call.posted = true;
    sem_post(&place.asked[s]);
  }
  for (std::uint32_t s = 0; s < servers; ++s)
    while (sem_wait(&place.answered[worker]) != 0) continue;
}

void work(Place& place, int number) {
  std::mt19937_64 random(static_cast<std::uint64_t>(number));
  const auto from = static_cast<std::uint64_t>(FLAGS_made_rows > 0 ? FLAGS_made_rows : FLAGS_table_rows);
  std::vector<std::vector<std::uint32_t>> draws(kDraws, std::vector<std::uint32_t>(rows_of_call()));
  for (auto& draw : draws)
    for (std::uint32_t& id : draw) id = static_cast<std::uint32_t>(random() % from);
  std::fill_n(place.gradients[number], rows_of_call() * kWidth, 1e-6f);
  std::fill_n(place.rows[number], rows_of_call() * kWidth, 0.0f);
  pthread_barrier_wait(&place.everybody);
  const int wishes[] = {kPush, kPull, kBoth};
  for (int phase = 0; phase < 3; ++phase) {
    for (const auto& draw : draws) ask(place, number, draw, wishes[phase]);
    pthread_barrier_wait(&place.workers);
    std::size_t calls = 0;
    const auto start = Clock::now();
    while (calls < 3 || seconds_since(start) < FLAGS_seconds)
      ask(place, number, draws[calls++ % kDraws], wishes[phase]);
    place.rates[number][phase] = static_cast<double>(calls) / seconds_since(start);
    pthread_barrier_wait(&place.workers);
  }
  ask(place, number, {}, kEnd);
}

Place& make_place() {
  auto& place = *shared<Place>(1);
  pthread_barrierattr_t attribute;
  pthread_barrierattr_init(&attribute);
  pthread_barrierattr_setpshared(&attribute, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&place.everybody, &attribute, static_cast<unsigned>(FLAGS_servers + FLAGS_workers));
  pthread_barrier_init(&place.workers, &attribute, static_cast<unsigned>(FLAGS_workers));
  for (int n = 0; n < kMost; ++n) {
    sem_init(&place.asked[n], 1, 0);
    sem_init(&place.answered[n], 1, 0);
  }
  for (int w = 0; w < FLAGS_workers; ++w) {
    place.gradients[w] = shared<float>(rows_of_call() * kWidth);
    place.rows[w] = shared<float>(rows_of_call() * kWidth);
    for (int s = 0; s < FLAGS_servers; ++s) place.calls[s][w].entries = shared<Entry>(rows_of_call());
  }
  return place;
}

nlohmann::json run() {
  Place& place = make_place();
  std::vector<pid_t> processes;
  for (int n = 0; n < FLAGS_servers + FLAGS_workers; ++n) {
    const pid_t process = fork();
    if (process < 0) throw std::runtime_error("no process");
    if (process == 0) {
      n < FLAGS_servers ? serve(place, n) : work(place, n - FLAGS_servers);
      _exit(0);
    }
    processes.push_back(process);
  }
  for (const pid_t process : processes) waitpid(process, nullptr, 0);
  nlohmann::json all{{"mode", "row_floor"},          {"servers", FLAGS_servers},
                     {"workers", FLAGS_workers},     {"sparse_rows", FLAGS_sparse_rows},
                     {"row_floats", kWidth},         {"table_rows", FLAGS_table_rows},
                     {"made_rows", FLAGS_made_rows}, {"huge", FLAGS_huge},
                     {"ahead", FLAGS_ahead}};
  const char* names[] = {"push_gbps", "pull_gbps", "both_gbps"};
  const double gigabytes = 1e-9 * static_cast<double>(rows_of_call() * kWidth * sizeof(float));
  for (int phase = 0; phase < 3; ++phase) {
    double sum = 0;
    for (int w = 0; w < FLAGS_workers; ++w) sum += place.rates[w][phase];
    all[names[phase]] = sum / FLAGS_workers * gigabytes;
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  paceline::tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  return paceline::tools::run_main("rowfloor", [] {
    paceline::require(FLAGS_servers >= 1 && FLAGS_servers <= kMost && FLAGS_workers >= 1 && FLAGS_workers <= kMost,
                      "--servers and --workers are 1 to ", kMost);
    paceline::require(FLAGS_sparse_rows >= 1 && FLAGS_table_rows >= 1 && FLAGS_made_rows <= FLAGS_table_rows,
                      "--sparse_rows and --table_rows are at least 1, --made_rows at most --table_rows");
    std::cout << run() << std::endl;
    return 0;
  });
}
