// The floor under kvbench: ZeroMQ alone moves the same bytes the same way. Each server and each worker is a process; a
// worker sends every key in a message of its own without copying, the server sums it in one pass and answers with its
// weights without copying, and the worker copies them out. No engine, no protocol, nothing is repeated or ordered.

#include <gflags/gflags.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>
#include <zmq.hpp>

#include "../../kvstore/net/secrets/seal.h"
#include "../../tools/flags.h"
#include "../../tools/placement.h"

DEFINE_int32(servers, 2, "servers");
DEFINE_int32(workers, 2, "workers");
DEFINE_bool(apart, false, "workers on the first half of the processors, the others on the rest");
DEFINE_int64(keys, 25, "keys; all of them travel in one round");
DEFINE_int64(key_bytes, 4000000, "bytes of a key, float32");
DEFINE_bool(bf16, false, "send the upper halves of the floats, both ways");
DEFINE_string(seal, "none", "aes: seals payloads as the store does; curve: ZeroMQ encrypts everything; or none");
DEFINE_double(seconds, 2, "how long each of the four measurements runs");

namespace {

constexpr char kUsage[] =
    "kvfloor [flags]\n\n"
    "What ZeroMQ alone makes of kvbench's work: the same bytes, without engine and protocol. The last line is the "
    "same\n"
    "JSON object.";

using Clock = std::chrono::steady_clock;
using Floats = std::vector<float>;
using Halves = std::vector<std::uint16_t>;

constexpr int kMostServers = 64;
constexpr std::size_t kTripBytes = 64;
constexpr std::uint32_t kEnd = ~std::uint32_t{0};

enum Wish : std::uint32_t { kPush, kPull, kBoth, kTrip };
struct Head {
  std::uint32_t key = 0;
  std::uint32_t wish = kPush;
};

// Shared by all processes.
struct Place {
  pthread_barrier_t everybody, workers;
  char endpoints[kMostServers][64];
  char open_key[41], secret_key[41];  // one pair for all, where CURVE encrypts
};

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

std::size_t elements() { return static_cast<std::size_t>(std::max<std::int64_t>(1, FLAGS_key_bytes / 4)); }

void narrow(const Floats& from, Halves& to) {
  to.resize(from.size());
  for (std::size_t i = 0; i < from.size(); ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, &from[i], sizeof bits);
    to[i] = static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

float widened(std::uint16_t half) {
  const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

void add(float* to, const void* from) {
  if (FLAGS_bf16) {
    const auto* halves = static_cast<const std::uint16_t*>(from);
    for (std::size_t i = 0; i < elements(); ++i) to[i] += widened(halves[i]);
  } else {
    const auto* values = static_cast<const float*>(from);
    for (std::size_t i = 0; i < elements(); ++i) to[i] += values[i];
  }
}

void copy_out(const void* from, float* to) {
  if (FLAGS_bf16) {
    const auto* halves = static_cast<const std::uint16_t*>(from);
    for (std::size_t i = 0; i < elements(); ++i) to[i] = widened(halves[i]);
  } else {
    std::memcpy(to, from, elements() * sizeof(float));
  }
}

// The memory outlives every message.
zmq::message_t uncopied(void* data, std::size_t bytes) {
  return {data, bytes, [](void*, void*) {}, nullptr};
}

zmq::message_t narrowed(const Floats& values) {
  auto* halves = new Halves;
  narrow(values, *halves);
  return {halves->data(), halves->size() * 2, [](void*, void* owner) { delete static_cast<Halves*>(owner); }, halves};
}

zmq::message_t content(Floats& values) {
  return FLAGS_bf16 ? narrowed(values) : uncopied(values.data(), values.size() * sizeof(float));
}

// Sends and receives the values of a key, in sealed pieces where it is asked for. A process has one key in each
// direction, as links of the store have.
class Payloads {
 public:
  void send(zmq::socket_t& socket, Floats& values) {
    zmq::message_t plain = content(values);
    if (FLAGS_seal != "aes") {
      socket.send(plain, zmq::send_flags::none);
      return;
    }
    for (std::size_t at = 0; at < plain.size(); at += kPieceBytes) {
      const std::size_t bytes = std::min(kPieceBytes, plain.size() - at);
      zmq::message_t piece(bytes + paceline::kTagBytes + sizeof(next_));
      std::memcpy(piece.data(), &next_, sizeof(next_));
      key_.seal(next_++, "", plain.data<std::byte>() + at, bytes, piece.data<std::byte>() + sizeof(next_));
      const bool more = at + bytes < plain.size();
      socket.send(piece, more ? zmq::send_flags::sndmore : zmq::send_flags::none);
    }
  }

  // Valid until the next call.
  const void* receive(zmq::socket_t& socket) {
    if (!socket.recv(received_)) throw std::runtime_error("a payload is missing");
    if (FLAGS_seal != "aes") return received_.data();
    opened_.resize(elements() * sizeof(float));
    for (std::size_t at = 0;; at += kPieceBytes) {
      const std::size_t bytes = received_.size() - paceline::kTagBytes - sizeof(next_);
      std::uint64_t number = 0;
      std::memcpy(&number, received_.data(), sizeof(number));
      if (!key_.open(number, "", received_.data<std::byte>() + sizeof(number), bytes, opened_.data() + at))
        throw std::runtime_error("a piece cannot be opened");
      if (!received_.more()) return opened_.data();
      if (!socket.recv(received_)) throw std::runtime_error("a piece is missing");
    }
  }

 private:
  static constexpr std::size_t kPieceBytes = (1 << 20) - 64;
  const paceline::SealingKey key_{std::string(32, 'k')};
  std::uint64_t next_ = 1;
  zmq::message_t received_;
  std::vector<std::byte> opened_;
};

zmq::socket_t open(zmq::context_t& context, zmq::socket_type type, const Place& place) {
  zmq::socket_t socket(context, type);
  if (FLAGS_seal == "curve") {
    if (type == zmq::socket_type::router) {
      socket.set(zmq::sockopt::curve_server, true);
    } else {
      socket.set(zmq::sockopt::curve_serverkey, place.open_key);
      socket.set(zmq::sockopt::curve_publickey, place.open_key);
    }
    socket.set(zmq::sockopt::curve_secretkey, place.secret_key);
  }
  socket.set(zmq::sockopt::sndhwm, 0);
  socket.set(zmq::sockopt::rcvhwm, 0);
  socket.set(zmq::sockopt::linger, 0);
  return socket;
}

void serve(Place& place, int number) {
  zmq::context_t context;
  zmq::socket_t socket = open(context, zmq::socket_type::router, place);
  socket.bind("tcp://127.0.0.1:*");
  std::strncpy(place.endpoints[number], socket.get(zmq::sockopt::last_endpoint).c_str(), 63);
  std::vector<Floats> weights(static_cast<std::size_t>(FLAGS_keys));
  for (std::size_t k = 0; k < weights.size(); ++k)
    if (static_cast<int>(k) % FLAGS_servers == number) weights[k].assign(elements(), 0);
  Payloads payloads;
  pthread_barrier_wait(&place.everybody);
  for (int ended = 0; ended < FLAGS_workers;) {
    zmq::message_t from, first, payload;
    if (!socket.recv(from) || !socket.recv(first)) continue;
    Head head;
    std::memcpy(&head, first.data(), sizeof head);
    const void* values = nullptr;
    if (head.wish == kTrip && !socket.recv(payload)) continue;
    if (head.wish != kTrip && first.more()) values = payloads.receive(socket);
    if (head.key == kEnd) {
      ++ended;
      continue;
    }
    Floats& weight = weights[head.key];
    if (head.wish == kPush || head.wish == kBoth) add(weight.data(), values);
    socket.send(from, zmq::send_flags::sndmore);
    const bool carries = head.wish != kPush;
    socket.send(first, carries ? zmq::send_flags::sndmore : zmq::send_flags::none);
    if (head.wish == kTrip)
      socket.send(payload, zmq::send_flags::none);
    else if (carries)
      payloads.send(socket, weight);
  }
}

class Worker {
 public:
  explicit Worker(Place& place) : place_(place), gradients_(count(), Floats(elements(), 1e-6f)), weights_(gradients_) {
    pthread_barrier_wait(&place.everybody);
    for (int s = 0; s < FLAGS_servers; ++s) {
      servers_.push_back(open(context_, zmq::socket_type::dealer, place));
      servers_.back().connect(place.endpoints[s]);
      items_.push_back({servers_.back().handle(), 0, ZMQ_POLLIN, 0});
    }
  }

  nlohmann::json measure() {
    const double gigabytes = 4e-9 * static_cast<double>(elements() * count());
    const double push = phase([this] { round(kPush); });
    const double pull = phase([this] { round(kPull); });
    const double both = phase([this] { round(kBoth); });
    std::vector<double> trips;
    phase([&] {
      const auto start = Clock::now();
      round_trip();
      trips.push_back(1e6 * seconds_since(start));
    });
    const Head end{kEnd, kPush};
    for (zmq::socket_t& server : servers_) {
      server.set(zmq::sockopt::linger, -1);
      server.send(zmq::message_t(&end, sizeof end), zmq::send_flags::none);
    }
    std::sort(trips.begin(), trips.end());
    const auto quantile = [&](double q) {
      return trips[static_cast<std::size_t>(q * static_cast<double>(trips.size() - 1))];
    };
    return {{"push_gbps", push * gigabytes}, {"pull_gbps", pull * gigabytes},
            {"both_gbps", both * gigabytes}, {"keys_per_second", both * static_cast<double>(count())},
            {"rtt_us_p50", quantile(0.5)},   {"rtt_us_p99", quantile(0.99)}};
  }

 private:
  static std::size_t count() { return static_cast<std::size_t>(FLAGS_keys); }

  template <class Action>
  double phase(Action action) {
    pthread_barrier_wait(&place_.workers);
    action();
    int calls = 0;
    const auto start = Clock::now();
    while (calls < 3 || seconds_since(start) < FLAGS_seconds) {
      action();
      ++calls;
    }
    const double rate = calls / seconds_since(start);
    pthread_barrier_wait(&place_.workers);
    return rate;
  }

  void round(Wish wish) {
    for (std::size_t k = 0; k < count(); ++k) {
      zmq::socket_t& server = servers_[k % servers_.size()];
      const Head head{static_cast<std::uint32_t>(k), wish};
      const bool carries = wish != kPull;
      server.send(zmq::message_t(&head, sizeof head), carries ? zmq::send_flags::sndmore : zmq::send_flags::none);
      if (carries) payloads_.send(server, gradients_[k]);
    }
    for (std::size_t answers = 0; answers < count();) {
      zmq::poll(items_, std::chrono::milliseconds(-1));
      for (std::size_t s = 0; s < servers_.size(); ++s) {
        zmq::message_t first;
        while (items_[s].revents != 0 && servers_[s].recv(first, zmq::recv_flags::dontwait)) {
          ++answers;
          if (first.more()) copy_out(payloads_.receive(servers_[s]), weights_[first.data<Head>()->key].data());
        }
      }
    }
  }

  void round_trip() {
    const Head head{0, kTrip};
    zmq::message_t payload(kTripBytes);
    servers_[0].send(zmq::message_t(&head, sizeof head), zmq::send_flags::sndmore);
    servers_[0].send(payload, zmq::send_flags::none);
    zmq::message_t first;
    if (!servers_[0].recv(first) || !servers_[0].recv(payload)) throw std::runtime_error("an answer is missing");
  }

  Place& place_;
  zmq::context_t context_;
  std::vector<Floats> gradients_, weights_;
  std::vector<zmq::socket_t> servers_;
  std::vector<zmq::pollitem_t> items_;
  Payloads payloads_;
};

int open_output(const std::function<void(int)>& body, bool is_worker, std::vector<pid_t>& processes) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t process = fork();
  if (process < 0) throw std::runtime_error("no process");
  if (process == 0) {
    try {
      if (FLAGS_apart) paceline::tools::keep_half_of_processors(is_worker);
      body(ends[1]);
      _exit(0);
    } catch (const std::exception& error) {
      std::cerr << "kvfloor: " << error.what() << std::endl;
      _exit(1);
    }
  }
  close(ends[1]);
  processes.push_back(process);
  return ends[0];
}

std::string read_all(int descriptor) {
  std::string text;
  char buffer[4096];
  for (ssize_t got; (got = read(descriptor, buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<std::size_t>(got));
  close(descriptor);
  return text;
}

Place& make_place() {
  void* memory = mmap(nullptr, sizeof(Place), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::runtime_error("no shared memory");
  auto& place = *static_cast<Place*>(memory);
  zmq_curve_keypair(place.open_key, place.secret_key);
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&place.everybody, &shared, static_cast<unsigned>(FLAGS_servers + FLAGS_workers));
  pthread_barrier_init(&place.workers, &shared, static_cast<unsigned>(FLAGS_workers));
  return place;
}

nlohmann::json run() {
  Place& place = make_place();
  std::vector<pid_t> processes;
  std::vector<int> outputs;
  for (int s = 0; s < FLAGS_servers; ++s) close(open_output([&place, s](int) { serve(place, s); }, false, processes));
  for (int w = 0; w < FLAGS_workers; ++w)
    outputs.push_back(open_output(
        [&place](int out) {
          const std::string text = Worker(place).measure().dump();
          if (write(out, text.data(), text.size()) < 0) throw std::runtime_error("cannot write the result");
        },
        true, processes));
  std::vector<nlohmann::json> results;
  for (const int output : outputs) results.push_back(nlohmann::json::parse(read_all(output)));
  for (const pid_t process : processes) waitpid(process, nullptr, 0);
  nlohmann::json all{{"mode", FLAGS_bf16 ? "floor_bf16" : "floor"},
                     {"seal", FLAGS_seal},
                     {"transport", "tcp"},
                     {"servers", FLAGS_servers},
                     {"workers", FLAGS_workers},
                     {"keys", FLAGS_keys},
                     {"key_bytes", FLAGS_key_bytes}};
  for (const auto& [name, value] : results.at(0).items()) {
    std::vector<double> values;
    for (const nlohmann::json& result : results) values.push_back(result.at(name));
    std::sort(values.begin(), values.end());
    all[name] = (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
  }
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  paceline::tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  constexpr int kLarge = 1 << 30;
  mallopt(M_MMAP_THRESHOLD, kLarge);
  mallopt(M_TRIM_THRESHOLD, kLarge);
  return paceline::tools::run_main("kvfloor", [] {
    paceline::require(FLAGS_servers >= 1 && FLAGS_servers <= kMostServers && FLAGS_workers >= 1 && FLAGS_keys >= 1,
                      "--servers is 1 to ", kMostServers, ", --workers and --keys at least 1");
    std::cout << run() << std::endl;
    return 0;
  });
}
