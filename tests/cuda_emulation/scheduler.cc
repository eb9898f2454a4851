#include "scheduler.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

namespace cuda_emulation {
namespace {

thread_local bool is_worker = false, runs_host_function = false;
const char* volatile running = "";  // the operation
Scheduler* scheduler = nullptr;
struct sigaction before;

std::uint64_t number_from(const char* variable, std::uint64_t otherwise) {
  const char* const text = std::getenv(variable);
  return text && *text ? std::strtoull(text, nullptr, 10) : otherwise;
}

// Says what a touch of closed memory means; what ends the program then is the fault itself.
void explain(int, siginfo_t* fault, void*) {
  if (const int device = scheduler->device_of(fault->si_addr); device >= 0) {
    std::array<char, 300> text;
    const int length =
        is_worker
            ? std::snprintf(text.data(), text.size(),
                            "cuda emulation: '%s' touches memory of cuda:%d at %p that is not its to touch: its stream "
                            "is not ordered after the allocation, or it runs on another device\n",
                            running, device, fault->si_addr)
            : std::snprintf(text.data(), text.size(),
                            "cuda emulation: code of the host touches memory of cuda:%d at %p\n", device,
                            fault->si_addr);
    [[maybe_unused]] const auto written = write(STDERR_FILENO, text.data(), static_cast<std::size_t>(length));
  }
  sigaction(SIGSEGV, &before, nullptr);
}

}  // namespace

Scheduler& Scheduler::get() {
  static Scheduler& instance = *new Scheduler;
  return instance;
}

Scheduler::Scheduler() {
  const auto seed = number_from("CUDA_EMULATION_SEED", std::random_device()());
  std::fprintf(stderr, "cuda emulation: CUDA_EMULATION_SEED=%llu\n", static_cast<unsigned long long>(seed));
  random_.seed(seed);
  const auto devices = number_from("CUDA_EMULATION_DEVICES", 4);
  for (std::uint64_t d = 0; d < devices; ++d) {
    memories_.push_back(std::make_unique<Memory>());
    peers_.emplace_back();
    failures_.push_back(cudaSuccess);
    create_stream(static_cast<int>(d));
  }
  scheduler = this;
  struct sigaction action = {};
  action.sa_sigaction = explain;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &before);
  std::thread([this] { work(); }).detach();
}

bool Scheduler::in_host_function() { return runs_host_function; }

int Scheduler::device_of(const void* memory) const {
  for (std::size_t d = 0; d < memories_.size(); ++d)
    if (memories_[d]->contains(memory)) return static_cast<int>(d);
  return -1;
}

bool Scheduler::allows_peer(int device, int peer) const {
  const auto& peers = peers_[static_cast<std::size_t>(device)];
  return device == peer || std::find(peers.begin(), peers.end(), peer) != peers.end();
}

Stream& Scheduler::create_stream(int device) {
  // A stream that ended lends its numbers to a new one.
  for (const auto& stream : streams_)
    if (!stream->alive && stream->done == stream->issued) {
      stream->alive = true;
      stream->device = device;
      return *stream;
    }
  streams_.push_back(std::make_unique<Stream>());
  streams_.back()->device = device;
  streams_.back()->index = streams_.size() - 1;
  return *streams_.back();
}

Clock Scheduler::known_to_next(const Stream& stream) const {
  Clock clock = stream.clock;
  clock.join(known_);
  return clock;
}

void Scheduler::issue(Stream& stream, Operation operation) {
  if (failure(operation.device) != cudaSuccess && operation.reach != Reach::kPages) return;
  if (stream.graph) {
    std::deque<Operation>& queue = stream.graph->queues[stream.graph_index];
    operation.after = stream.graph_clock;
    queue.push_back(std::move(operation));
    stream.graph_clock.join(Point{stream.graph_index, queue.size()});
    return;
  }
  stream.clock = operation.after = known_to_next(stream);
  stream.clock.join(next(stream));
  ++stream.issued;
  stream.queue.push_back(std::move(operation));
  issued_.notify_one();
}

std::shared_ptr<Graph> Scheduler::end_capture(Stream& stream) {
  const std::shared_ptr<Graph> graph = stream.graph;
  for (const auto& each : streams_)
    if (each->graph == graph) each->graph = nullptr;
  return graph;
}

void Scheduler::launch(Stream& stream, std::shared_ptr<const Graph> graph) {
  issue(stream, {"graph", stream.device, Reach::kHost,
                 [this, graph, known = known_to_next(stream)] { run_graph(*graph, known); }});
}

bool Scheduler::reached(const Clock& clock) const {
  for (const auto& stream : streams_)
    if (clock.of(stream->index) > stream->done) return false;
  return true;
}

void Scheduler::wait(std::unique_lock<std::mutex>& lock, const Clock& clock) {
  done_.wait(lock, [&] { return reached(clock); });
  know(clock);
}

Clock Scheduler::everything(int device) const {
  Clock clock;
  for (const auto& stream : streams_)
    if (stream->device == device) clock.join(stream->clock);
  return clock;
}

Stream* Scheduler::choose() {
  Stream* best = nullptr;
  for (const auto& stream : streams_)
    if (!stream->queue.empty() && (!best || stream->rank > best->rank) && reached(stream->queue.front().after))
      best = stream.get();
  return best;
}

void Scheduler::close_memory() {
  for (const auto& memory : memories_) memory->close();
}

void Scheduler::run(const Operation& operation, const Clock& known, std::unique_lock<std::mutex>& lock) {
  if (failure(operation.device) != cudaSuccess && operation.reach != Reach::kPages) return;
  for (int d = 0; d < devices(); ++d)
    if (operation.reach == Reach::kEverywhere || (operation.reach != Reach::kHost && allows_peer(operation.device, d)))
      memory(d).open(known);
    else
      memory(d).close();
  lock.unlock();
  running = operation.name;
  runs_host_function = operation.reach == Reach::kHost;
  operation.body();
  runs_host_function = false;
  lock.lock();
}

void Scheduler::run_graph(const Graph& graph, const Clock& known) {
  std::unique_lock lock(mutex);
  std::vector<std::size_t> done(graph.queues.size());
  const auto ready = [&](std::size_t q) {
    if (done[q] == graph.queues[q].size()) return false;
    for (std::size_t other = 0; other < done.size(); ++other)
      if (graph.queues[q][done[q]].after.of(other) > done[other]) return false;
    return true;
  };
  for (;;) {
    std::vector<std::size_t> queues;
    for (std::size_t q = 0; q < done.size(); ++q)
      if (ready(q)) queues.push_back(q);
    if (queues.empty()) return;
    const std::size_t q = queues[random_() % queues.size()];
    run(graph.queues[q][done[q]++], known, lock);
  }
}

void Scheduler::work() {
  is_worker = true;
  std::unique_lock lock(mutex);
  for (;;) {
    Stream* stream = choose();
    if (!stream) {
      close_memory();
      issued_.wait(lock);
      continue;
    }
    // The host goes on meanwhile: what it changes too early is seen.
    if (random_() % 16 == 0) {
      close_memory();
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 300));
      lock.lock();
      stream = choose();
    }
    if (random_() % 8 == 0) stream->rank = random_();
    const Operation operation = std::move(stream->queue.front());
    stream->queue.pop_front();
    run(operation, operation.after, lock);
    ++stream->done;
    done_.notify_all();
  }
}

}  // namespace cuda_emulation
