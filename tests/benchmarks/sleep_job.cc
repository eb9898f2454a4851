// A job whose computing is sleeping: what is left is the store, as kvsim models it. Start it with tools/launch.py.

#include <gflags/gflags.h>
#include <paceline/error.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <stop_token>
#include <thread>

#include "../../tools/flags.h"
#include "model.h"

DEFINE_string(mode, "dist_async:staleness=none", "as for any job");
DEFINE_string(compute, "lognormal:median=0.03,sigma=0.3", "how long a step sleeps, as kvsim's --compute");
DEFINE_int64(bytes, 400000, "bytes of the weights, float32, one key");
DEFINE_string(layers, "",
              "instead, as kvsim's --layers: 'forward:backward:bytes,...', times to multiply --compute with");
DEFINE_bool(priority, true, "front layers travel first");
DEFINE_double(seconds, 20, "how long the measurement lasts");
DEFINE_int64(seed, 1, "of the sleeping times");

namespace {

using namespace paceline;
using Clock = std::chrono::steady_clock;

constexpr char kUsage[] =
    "tools/launch.py -n M -s S sleep_job [flags]\n\n"
    "Workers that sleep, push and pull. Every worker prints a JSON object: its steps and how long they were counted, "
    "what\n"
    "sleeping and all else took, and (worker 0) the delays of all gradients and the longest stall of the machine.";

double seconds_between(Clock::time_point start, Clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}

std::vector<sim::Layer> layers() {
  if (FLAGS_layers.empty()) return {{0, 1, static_cast<double>(FLAGS_bytes)}};
  std::vector<sim::Layer> all;
  std::stringstream in(FLAGS_layers);
  for (std::string part; std::getline(in, part, ',');) {
    sim::Layer layer;
    require(std::sscanf(part.c_str(), "%lf:%lf:%lf", &layer.forward, &layer.backward, &layer.bytes) == 3, "--layers: '",
            part, "' is not forward:backward:bytes");
    all.push_back(layer);
  }
  return all;
}

// Sleeps beside the job: what the machine alone does to whoever wakes up.
class Bystander {
 public:
  Bystander() : thread_([this](const std::stop_token& stop) { watch(stop); }) {}

  // How much longer than it should a sleep of 1 ms took at most, in seconds. Ends the watch.
  double longest_stall() {
    thread_.request_stop();
    thread_.join();
    return longest_;
  }

 private:
  void watch(const std::stop_token& stop) {
    constexpr std::chrono::milliseconds kNap(1);
    while (!stop.stop_requested()) {
      const auto before = Clock::now();
      std::this_thread::sleep_for(kNap);
      longest_ = std::max(longest_, seconds_between(before + kNap, Clock::now()));
    }
  }

  double longest_ = 0;
  std::jthread thread_;
};

nlohmann::json run(KVStore& kv) {
  const std::vector<sim::Layer> model = layers();
  std::vector<NDArray> gradients, weights;
  std::vector<InitValue> initial;
  for (std::size_t l = 0; l < model.size(); ++l) {
    const std::int64_t elements = std::max<std::int64_t>(1, static_cast<std::int64_t>(model[l].bytes) / 4);
    gradients.push_back(NDArray::zeros({elements}));
    weights.push_back(NDArray::zeros({elements}));
    initial.push_back({"layer" + std::to_string(l), weights.back()});
  }
  kv.set_optimizer(optim::SGD{.lr = 0.01});
  kv.init(initial);
  const auto law = sim::TimeLaw::parse(FLAGS_compute);
  std::vector<double> slept, exchanged;
  kv.barrier();
  std::optional<Bystander> bystander;
  if (kv.rank() == 0) bystander.emplace();
  const auto start = Clock::now();
  auto now = start;
  for (std::uint64_t step = 0; seconds_between(start, now) < FLAGS_seconds; ++step) {
    const sim::Draws draws(static_cast<std::uint64_t>(FLAGS_seed), 1, static_cast<std::uint64_t>(kv.rank()), step);
    const double factor = law.draw(draws);
    double asleep = 0;
    const auto sleep = [&](double seconds) {
      const auto before = Clock::now();
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds * factor));
      asleep += seconds_between(before, Clock::now());
    };
    for (std::size_t l = 0; l < model.size(); ++l) {
      weights[l].wait();
      if (model[l].forward > 0) sleep(model[l].forward);
    }
    for (std::size_t l = model.size(); l-- > 0;) {
      sleep(model[l].backward);
      const int priority = FLAGS_priority ? -static_cast<int>(l) : 0;
      kv.push_pull({{initial[l].key, gradients[l]}}, {{initial[l].key, weights[l]}}, 1, priority);
    }
    kv.step_end();
    if (model.size() == 1) weights[0].wait();
    slept.push_back(asleep);
    const double all = seconds_between(now, Clock::now());
    exchanged.push_back(all - asleep);
    now = Clock::now();
  }
  for (const NDArray& weight : weights) weight.wait();
  nlohmann::json all{{"worker", kv.rank()},   {"workers", kv.size()},
                     {"steps", slept.size()}, {"seconds", seconds_between(start, now)},
                     {"slept", slept},        {"exchanged", exchanged}};
  kv.barrier();
  if (kv.rank() == 0) {
    all["stall"] = bystander->longest_stall();
    Histogram delays;
    for (const Histogram& worker : kv.report().delays) delays.merge(worker);
    for (const auto& [delay, count] : delays.counts()) all["delays"][std::to_string(delay)] = count;
  }
  kv.barrier();
  kv.finish();
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  tools::parse_flags(kUsage, __FILE__, &argc, &argv);
  start_logging("sleep_job");
  return tools::run_main("sleep_job", [] {
    std::cout << run(*KVStore::create(FLAGS_mode)) << std::endl;
    return 0;
  });
}
