#include "simulation.h"

#include <paceline/error.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace paceline::sim {
namespace {

enum Stream : std::uint64_t { kCompute = 1 };

// In mode ring every worker sums a part of the gradients. The model stands for this by a server beside each worker.
Model with_owners(Model model) {
  if (model.mode.name != "ring") return model;
  model.servers = model.colocated = model.workers;
  model.shares.clear();
  return model;
}

}  // namespace

Simulation::Simulation(const Model& model) : model_(with_owners(model)) {
  const Options& options = model_.mode.options;
  const std::string& name = model_.mode.name;
  if (name == "dist_sync") {
    rounds_ = true;
    backup_ = options.get<std::int64_t>("backup", 0);
    require(backup_ >= 0 && backup_ < model_.workers, "[kvsim] backup is ", backup_, " of ", model_.workers,
            " workers");
  } else if (name == "dist_async") {
    const std::string bound = options.get("bound", "");
    bounded_ = options.has("bound");
    if (bounded_) {
      dynamic_ = make_mode({"dist_async", {{"bound", bound}}});
      bound_ = std::stoll(bound);
      if (bound.find("..") == std::string::npos) dynamic_ = nullptr;
    }
  } else if (name == "dist_local") {
    local_steps_ = options.get<std::int64_t>("steps", 1);
    require(local_steps_ >= 1, "[kvsim] steps is ", local_steps_, ", expected at least 1");
    const std::string averaging = options.get("averaging", "average");
    require(averaging == "average" || averaging == "elastic" || averaging == "federated", "[kvsim] unknown averaging '",
            averaging, "' of dist_local; known: average elastic federated");
    rounds_ = averaging != "elastic";
    federated_ = averaging == "federated";
    fraction_ = federated_ ? options.get<double>("fraction", 1) : 1;
    require(fraction_ > 0 && fraction_ <= 1, "[kvsim] fraction is ", fraction_, ", expected above 0 and at most 1");
  } else if (name == "ring") {
    ring_ = rounds_ = true;
  } else if (name == "gossip") {
    gossip_ = alone_ = true;
    local_steps_ = options.get<std::int64_t>("steps", 1);
    require(local_steps_ >= 1, "[kvsim] steps is ", local_steps_, ", expected at least 1");
  } else if (name == "local") {
    alone_ = true;
  } else {
    throw InvalidArgument("unknown mode '" + name + "'; known: local ring gossip dist_sync dist_async dist_local");
  }
  options.reject_unknown("kvsim's mode '" + name + "'");
  check();

  for (const Layer& layer : model_.layers) whole_bytes_ += layer.bytes;
  queued_ = model_.layers.size() > 1 || model_.colocated > 0;
  cut_slices();
  const auto workers = static_cast<std::size_t>(model_.workers), servers = static_cast<std::size_t>(model_.servers);
  workers_.resize(workers);
  for (int w = 0; w < model_.slow_workers; ++w) workers_[static_cast<std::size_t>(w)].speed = model_.slow_factor;
  machines_.resize(workers + servers - static_cast<std::size_t>(model_.colocated));
  for (std::size_t m = 0; m < machines_.size(); ++m) {
    machines_[m].link = m < workers ? model_.worker_link : model_.server_link;
    machines_[m].shared = m < static_cast<std::size_t>(model_.colocated);
  }
  servers_.resize(servers);
  for (Server& server : servers_) server.free.assign(static_cast<std::size_t>(model_.server_threads), 0);
  cores_.resize(static_cast<std::size_t>(model_.shared_cores));
  pulled_.assign(workers * slices_.size(), 0);
  missing_.assign(workers * model_.layers.size(), 0);
  unacknowledged_ = missing_;
  need_.assign(missing_.size(), 0);
  ready_.assign(missing_.size(), 0);
  server_clock_.assign(workers, 0);
  clocks_[0] = model_.workers;
  paces_.resize(workers);
}

void Simulation::check() const {
  constexpr int kMost = 1 << 20;  // servers, and threads of each: more than any memory takes
  const auto sound = [](double number) { return number >= 0 && std::isfinite(number); };
  require(model_.workers >= 1 && model_.servers >= 1, "[kvsim] a job has at least one worker and one server");
  require(model_.servers <= kMost && model_.server_threads <= kMost, "[kvsim] servers, and threads of a server, are ",
          kMost, " at most");
  require(model_.iterations >= 1 && model_.warm_up >= 0 && model_.warm_up < 1,
          "[kvsim] iterations are at least 1, the warm-up is a share below 1");
  require(!model_.layers.empty(), "[kvsim] a model has at least one layer");
  double seconds = 0;
  for (const Layer& layer : model_.layers) {
    require(sound(layer.forward) && sound(layer.backward) && sound(layer.bytes),
            "[kvsim] a layer's numbers are at least 0 and finite");
    seconds += layer.forward + layer.backward;
  }
  for (const Link& link : {model_.worker_link, model_.server_link})
    require(sound(link.out_bytes_per_second) && sound(link.in_bytes_per_second) && sound(link.fixed_seconds),
            "[kvsim] a link's speeds and the time of a message are at least 0 and finite");
  for (const Cost& cost :
       {model_.worker_push, model_.worker_pull, model_.server_push, model_.server_pull, model_.server_apply})
    require(sound(cost.fixed_seconds) && sound(cost.seconds_per_byte),
            "[kvsim] processor times are at least 0 and finite");
  require(seconds > 0 || !alone_, "[kvsim] a step takes no time");
  require(model_.shares.empty() || model_.shares.size() == static_cast<std::size_t>(model_.servers),
          "[kvsim] there are ", model_.shares.size(), " shares for ", model_.servers, " servers");
  for (const double share : model_.shares) require(sound(share), "[kvsim] a server's share is ", share);
  require(model_.colocated >= 0 && model_.colocated <= std::min(model_.servers, model_.workers),
          "[kvsim] more servers stand beside workers than there are servers or workers");
  require(model_.server_threads >= 1 && model_.shared_cores >= 0 && sound(model_.latency_seconds) &&
              sound(model_.acknowledgement_seconds) && sound(model_.slice_bytes) && model_.slow_workers >= 0 &&
              model_.slow_workers <= model_.workers && model_.slow_factor > 0 && sound(model_.slow_factor),
          "[kvsim] threads, cores, latency, slice bytes and slow workers are at least 0 and finite, threads and the "
          "slow factor above 0, slow workers no more than workers");
}

// Without slice_bytes, each server with a share gets one slice of each layer. Otherwise layers are cut into equal
// slices. Each slice goes to the server that is furthest below its share.
void Simulation::cut_slices() {
  std::vector<double> shares = model_.shares;
  if (shares.empty()) shares.assign(static_cast<std::size_t>(model_.servers), 1);
  const double sum = std::accumulate(shares.begin(), shares.end(), 0.0);
  require(sum > 0, "[kvsim] the servers' shares are all 0");
  std::vector<double> given(shares.size(), 0);
  slices_of_layer_.resize(model_.layers.size());
  const auto add = [&](int layer, int server, double bytes) {
    slices_of_layer_[static_cast<std::size_t>(layer)].push_back(static_cast<std::int32_t>(slices_.size()));
    Slice slice;
    slice.layer = layer;
    slice.server = server;
    slice.bytes = bytes;
    slices_.push_back(slice);
  };
  for (int l = 0; l < static_cast<int>(model_.layers.size()); ++l) {
    const double bytes = model_.layers[static_cast<std::size_t>(l)].bytes;
    if (model_.slice_bytes == 0) {
      for (int s = 0; s < model_.servers; ++s)
        if (shares[static_cast<std::size_t>(s)] > 0) add(l, s, bytes * shares[static_cast<std::size_t>(s)] / sum);
      continue;
    }
    const double count = std::max(1.0, std::ceil(bytes / model_.slice_bytes - 1e-9));
    constexpr double kMostSlices = 1 << 24;
    require(count <= kMostSlices, "[kvsim] slices of ", model_.slice_bytes, " bytes cut a layer of ", bytes, " into ",
            count, ", more than ", kMostSlices);
    for (double i = 0; i < count; ++i) {
      std::size_t next = 0;
      double least = std::numeric_limits<double>::infinity();
      for (std::size_t s = 0; s < shares.size(); ++s) {
        const double filled = shares[s] > 0 ? (given[s] + bytes / count / 2) / shares[s] : least;
        if (filled < least) {
          least = filled;
          next = s;
        }
      }
      given[next] += bytes / count;
      add(l, static_cast<int>(next), bytes / count);
    }
  }
}

void Simulation::schedule(double time, Kind kind, int worker, int item, double last_byte) {
  Event event;
  event.time = time;
  event.last_byte = last_byte;
  event.kind = kind;
  event.worker = worker;
  event.item = item;
  events_.push(event);
}

Result Simulation::run(const std::function<void(double)>& progress) {
  const std::int64_t last = model_.iterations * model_.workers;
  // The warm-up is a whole number of steps for each worker, as is the run. In modes with rounds, measuring thus begins
  // and ends at the same point of a round.
  const std::int64_t first =
      static_cast<std::int64_t>(std::ceil(model_.warm_up * static_cast<double>(model_.iterations))) * model_.workers;
  for (int w = 0; w < model_.workers; ++w) begin_step(w, 0);
  std::int64_t told = 0;
  bool measuring = first == 0;
  while (steps_ < last) {
    require(!events_.empty(), "[kvsim] the job stands still after ", steps_, " steps");
    const Event event = events_.pop();
    now_ = event.time;
    handle(event);
    if (!measuring && steps_ >= first) {
      measuring = true;
      reset_measurement(now_);
    }
    if (progress && steps_ * 100 >= (told + 1) * last) {
      told = steps_ * 100 / last;
      progress(static_cast<double>(steps_) / static_cast<double>(last));
    }
  }
  return result(now_);
}

void Simulation::handle(const Event& event) {
  const int w = event.worker;
  switch (static_cast<Kind>(event.kind)) {
    case kStageDone:
      if (event.item == workers_[static_cast<std::size_t>(w)].attempt) pass_done(w, event.time);
      return;
    case kLinkFree: workers_[static_cast<std::size_t>(w)].sending = false; return send_next(w, event.time);
    case kFirstByte:
      arrive(w, event.item, event.time, event.last_byte);
      if (!queued_) send_next(w, workers_[static_cast<std::size_t>(w)].pushed_at);
      return;
    case kReceived: return received(w, event.item, event.time);
    case kAcknowledged: return acknowledged(w, event.item, event.time);
    case kPull: return pull(w, event.item, event.time, event.time);
    case kStepEnd: return step_end(w, event.time);
    case kReply: return send_reply(w, event.item, event.time);
    case kReplyFirstByte: return reply_arrives(w, event.item, event.time, event.last_byte);
    case kMeetingFirstByte:
      return schedule(take_weights(event.item, event.time, event.last_byte), kMeetingTaken, w, event.item);
    case kMeetingTaken: return answer_meeting(w, event.item, event.time);
    case kMeetingAnswer: return schedule(take_weights(w, event.time, event.last_byte), kMeetingOver, w, event.item);
    case kMeetingOver: return end_meeting(w, event.time);
    case kSynchronised:
      missing_[at_layer(w, event.item)] = 0;
      if (const Worker& worker = workers_[static_cast<std::size_t>(w)]; worker.waits && worker.stage == event.item)
        go_on(w, event.time);
      return;
  }
}

// Reserves a core for `cost` seconds. Returns the first moment from `from` on at which a core is idle for so long.
double Simulation::occupy_core(double from, double cost) {
  auto* core = &cores_.front();
  double begin = std::numeric_limits<double>::infinity();
  for (auto& candidate : cores_) {
    std::erase_if(candidate, [this](const auto& taken) { return taken.second <= now_; });
    double at = from;
    for (const auto& [taken, until] : candidate) {
      if (at + cost <= taken) break;
      at = std::max(at, until);
    }
    if (at < begin) {
      begin = at;
      core = &candidate;
    }
  }
  core->insert(std::upper_bound(core->begin(), core->end(), std::make_pair(begin, begin)), {begin, begin + cost});
  return begin;
}

double Simulation::occupy(std::vector<double>& threads, double from, double cost) {
  double& first = *std::min_element(threads.begin(), threads.end());
  const double begin = std::max(from, first);
  first = (cores_.empty() || cost == 0 ? begin : occupy_core(begin, cost)) + cost;
  return first;
}

double Simulation::occupy_worker(int w, double from, double cost) {
  Worker& worker = workers_[static_cast<std::size_t>(w)];
  std::vector<double> thread{worker.busy_until};
  return cost == 0 ? std::max(from, worker.busy_until) : worker.busy_until = occupy(thread, from, cost);
}

double Simulation::occupy_server(int server, double from, double cost) {
  Server& self = servers_[static_cast<std::size_t>(server)];
  self.busy += cost;
  return occupy(self.free, from, cost);
}

void Simulation::begin_step(int w, double now) {
  Worker& worker = workers_[static_cast<std::size_t>(w)];
  worker.stage = 0;
  const Draws draws(model_.seed, kCompute, static_cast<std::uint64_t>(w), static_cast<std::uint64_t>(worker.iteration));
  worker.factor = model_.compute.draw(draws) * worker.speed;
  go_on(w, now);
}

void Simulation::go_on(int w, double now) {
  Worker& worker = workers_[static_cast<std::size_t>(w)];
  worker.waits = false;
  const int layers = static_cast<int>(model_.layers.size());
  const int layer = worker.stage < layers ? worker.stage : 2 * layers - 1 - worker.stage;
  if (worker.stage < layers && missing_[at_layer(w, layer)] > 0) {
    worker.waits = true;
    return;
  }
  if (worker.stage == 0) {
    worker.round = std::max(worker.round, worker.newest);
    if (federated_ && worker.iteration % local_steps_ == 0 && !chosen(worker.round)[static_cast<std::size_t>(w)]) {
      // The worker is not drawn for this round. It waits for the weights of the next round that it is drawn for.
      do ++worker.round;
      while (!chosen(worker.round)[static_cast<std::size_t>(w)]);
      for (std::size_t l = 0; l < model_.layers.size(); ++l) {
        missing_[at_layer(w, static_cast<int>(l))] = static_cast<std::int32_t>(slices_of_layer_[l].size());
        need_[at_layer(w, static_cast<int>(l))] = worker.round;
        for (const std::int32_t slice : slices_of_layer_[l]) schedule(now + model_.latency_seconds, kPull, w, slice);
      }
      worker.waits = true;
      return;
    }
    if (bounded_) furthest_ahead_ = std::max(furthest_ahead_, worker.round - slowest_);
  }
  const Layer& pass = model_.layers[static_cast<std::size_t>(layer)];
  const double seconds = (worker.stage < layers ? pass.forward : pass.backward) * worker.factor;
  computed_seconds_ += seconds;
  schedule(now + seconds, kStageDone, w, worker.attempt);
}

void Simulation::pass_done(int w, double now) {
  Worker& worker = workers_[static_cast<std::size_t>(w)];
  const int layers = static_cast<int>(model_.layers.size());
  if (worker.stage >= layers && communicates(worker)) push_layer(w, 2 * layers - 1 - worker.stage, now);
  if (++worker.stage < 2 * layers) return go_on(w, now);
  if (worker.meeting_waits)
    worker.waits = true;
  else
    end_step(w, now);
}

void Simulation::end_step(int w, double now) {
  count_step(w, now);
  if (gossip_ && workers_[static_cast<std::size_t>(w)].iteration % local_steps_ == 0) begin_meeting(w, now);
  begin_step(w, now);
}

void Simulation::count_step(int w, double now) {
  Worker& worker = workers_[static_cast<std::size_t>(w)];
  if (communicates(worker)) ++worker.round;
  ++worker.iteration;
  ++steps_;
  ++counted_steps_;
  if (worker.last_step >= since_ && step_seconds_.size() < (std::size_t{1} << 22) && worker.iteration > 1)
    step_seconds_.push_back(static_cast<float>(now - worker.last_step));
  worker.last_step = now;
}

void Simulation::push_layer(int w, int layer, double now) {
  const auto& slices = slices_of_layer_[static_cast<std::size_t>(layer)];
  missing_[at_layer(w, layer)] = static_cast<std::int32_t>(slices.size());
  ready_[at_layer(w, layer)] = now;
  unacknowledged_[at_layer(w, layer)] = static_cast<std::int32_t>(slices.size());
  Worker& worker = workers_[static_cast<std::size_t>(w)];
  need_[at_layer(w, layer)] = worker.round + 1;
  worker.pushed_at = now;
  if (worker.layers_unacknowledged == 0 && worker.stage == static_cast<int>(model_.layers.size()))
    worker.layers_unacknowledged = static_cast<int>(model_.layers.size());
  // Each worker begins with a different server, so that not all send to the same one. In mode ring it begins with its
  // neighbour.
  const std::size_t first = static_cast<std::size_t>(w) + (ring_ ? 1 : 0);
  const std::size_t block = static_cast<std::size_t>(model_.servers);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const std::size_t begin = i / block * block, size = std::min(block, slices.size() - begin);
    worker.outbox.push_back(slices[begin + (i - begin + first) % size]);
  }
  send_next(w, now);
}

void Simulation::reset_measurement(double now) {
  since_ = now;
  counted_steps_ = applied_ = refused_ = rounds_closed_ = 0;
  bytes_ = computed_seconds_ = 0;
  delays_.clear();
  step_seconds_.clear();
  for (Machine& machine : machines_) machine.out_busy = machine.in_busy = 0;
  for (Server& server : servers_) server.busy = 0;
}

Result Simulation::result(double now) const {
  Result result;
  const double seconds = now - since_, workers = model_.workers;
  const auto share = [](double part, double whole) { return whole > 0 ? part / whole : 0; };
  // Busy times include time that is reserved beyond the end. So the share is limited to 1.
  const auto use = [&](double busy, double whole) { return std::min(1.0, share(busy, whole)); };
  result.steps_per_second = share(static_cast<double>(counted_steps_), seconds);
  result.rounds_per_second = share(static_cast<double>(rounds_closed_), seconds * static_cast<double>(slices_.size()));
  result.pushes_per_second = share(static_cast<double>(applied_), seconds);
  result.refused_share = share(static_cast<double>(refused_), static_cast<double>(refused_ + applied_));
  result.bytes_per_second = share(bytes_, seconds);
  result.waiting_share = std::max(0.0, 1 - share(computed_seconds_, seconds * workers));
  result.furthest_ahead = furthest_ahead_;
  result.simulated_seconds = now;
  result.events = events_.pushed();
  for (const Server& server : servers_)
    result.busiest_server =
        std::max(result.busiest_server, use(server.busy, seconds * static_cast<double>(model_.server_threads)));
  for (int s = 0; s < model_.servers; ++s) {
    const Machine& machine = machines_[static_cast<std::size_t>(machine_index(s))];
    result.busiest_server_link =
        std::max({result.busiest_server_link, use(machine.out_busy, seconds), use(machine.in_busy, seconds)});
  }

  double squares = 0;
  for (std::size_t delay = 0; delay < delays_.size(); ++delay) {
    if (delays_[delay] == 0) continue;
    result.delays.add(static_cast<std::int64_t>(delay), delays_[delay]);
    squares += static_cast<double>(delay) * static_cast<double>(delay) * static_cast<double>(delays_[delay]);
  }
  const double mean = result.delays.mean();
  if (result.delays.count() > 0)
    result.delay_deviation =
        std::sqrt(std::max(0.0, squares / static_cast<double>(result.delays.count()) - mean * mean));

  std::vector<float> steps = step_seconds_;
  std::sort(steps.begin(), steps.end());
  if (!steps.empty()) {
    result.step_seconds_mean = std::accumulate(steps.begin(), steps.end(), 0.0) / static_cast<double>(steps.size());
    const auto quantile = [&](double q) {
      return static_cast<double>(steps[static_cast<std::size_t>(q * static_cast<double>(steps.size() - 1))]);
    };
    result.step_seconds_p50 = quantile(0.5);
    result.step_seconds_p99 = quantile(0.99);
  }

  result.delays_and_ages = all_delays_;
  for (std::size_t i = 0; i < pulled_.size(); ++i) {
    const std::uint32_t version = slices_[i % slices_.size()].version;
    result.delays_and_ages += version - pulled_[i];
  }
  for (const Slice& slice : slices_)
    result.expected_delays_and_ages += static_cast<std::int64_t>(model_.workers - 1) * slice.version;
  return result;
}

}  // namespace paceline::sim
