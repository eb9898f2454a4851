#pragma once
// The streams of all devices, and the one thread that runs their operations: late, and in any order that streams and
// events allow.

#include "clock.h"
#include "memory.h"

#include <cuda_runtime_api.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>

namespace cuda_emulation {

// The memory that an operation touches. kPages: it makes or unmakes allocations of a device, even of a broken one.
enum class Reach { kHost, kPages, kDevice, kEverywhere };

struct Operation {
  const char* name;
  int device;
  Reach reach;
  std::function<void()> body;
  Clock after = {};
};

// What was issued while streams were captured: a queue for each of them, ordered among themselves by a clock of its
// own.
struct Graph {
  std::vector<std::deque<Operation>> queues;
  bool valid = true;  // no call came meanwhile that makes the capture fail
};

struct Stream {
  int device;
  std::size_t index;
  bool alive = true;
  std::deque<Operation> queue;
  std::uint64_t issued = 0, done = 0;
  Clock clock;             // what the next operation comes after
  std::uint64_t rank = 0;  // the largest goes first

  std::shared_ptr<Graph> graph;  // while the stream is captured
  std::size_t graph_index = 0;
  Clock graph_clock;
};

struct Event {
  int device = 0;  // where it was recorded
  Clock clock;
  std::shared_ptr<Graph> graph;  // recorded in a captured stream
  bool timed = false;
  double seconds = 0;
};

class Scheduler {
 public:
  // Made by the first call; lives until the process ends.
  static Scheduler& get();

  std::mutex mutex;  // holds for everything below

  int devices() const { return static_cast<int>(memories_.size()); }
  Memory& memory(int device) { return *memories_[static_cast<std::size_t>(device)]; }
  int device_of(const void* memory) const;  // -1: the host's
  cudaError_t& failure(int device) { return failures_[static_cast<std::size_t>(device)]; }
  void allow_peer(int device, int peer) { peers_[static_cast<std::size_t>(device)].push_back(peer); }
  bool allows_peer(int device, int peer) const;

  Stream& create_stream(int device);
  Stream& default_stream(int device) { return *streams_[static_cast<std::size_t>(device)]; }
  // Where the operation that is issued next will be.
  Point next(const Stream& stream) const { return {stream.index, stream.issued + 1}; }
  // What it comes after, where the stream is not captured.
  Clock known_to_next(const Stream& stream) const;
  void issue(Stream& stream, Operation operation);
  // The graph that `stream` was captured into; it and those that joined it are no longer captured.
  std::shared_ptr<Graph> end_capture(Stream& stream);
  void launch(Stream& stream, std::shared_ptr<const Graph> graph);

  bool reached(const Clock& clock) const;
  // The caller, and whoever calls later, knows that it is reached.
  void know(const Clock& clock) { known_.join(clock); }
  void wait(std::unique_lock<std::mutex>& lock, const Clock& clock);
  Clock everything(int device) const;

  std::mt19937_64& random() { return random_; }  // for operations only
  // The calling thread must not call CUDA now.
  static bool in_host_function();

 private:
  Scheduler();
  [[noreturn]] void work();
  Stream* choose();
  void run(const Operation& operation, const Clock& known, std::unique_lock<std::mutex>& lock);
  void run_graph(const Graph& graph, const Clock& known);
  void close_memory();

  std::vector<std::unique_ptr<Memory>> memories_;
  std::vector<std::vector<int>> peers_;
  std::vector<cudaError_t> failures_;
  std::vector<std::unique_ptr<Stream>> streams_;
  Clock known_;             // to the host
  std::mt19937_64 random_;  // the worker's
  std::condition_variable issued_, done_;
};

}  // namespace cuda_emulation
