#pragma once
// A job as a run of events. simulation.cc holds the workers, simulation_network.cc the way between them and the
// servers, simulation_servers.cc the store's protocol, simulation_gossip.cc that of mode gossip.

#include <paceline/mode.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "event_queue.h"
#include "model.h"

namespace paceline::sim {

class Simulation {
 public:
  // Throws InvalidArgument on a model that makes no sense, naming the field.
  explicit Simulation(const Model& model);

  // `progress` is told the share of the steps done, a hundred times. Throws InvalidArgument where the job stands still.
  Result run(const std::function<void(double)>& progress = nullptr);

 private:
  enum Kind : std::int32_t {
    kStageDone,       // a forward or backward pass
    kLinkFree,        // the worker's last push has left: the next may
    kFirstByte,       // of a push, at the server's machine
    kReceived,        // all of it
    kAcknowledged,    // at the worker
    kPull,            // at the server
    kStepEnd,         // at the servers
    kReply,           // a reply is ready to leave
    kReplyFirstByte,  // at the worker's machine
    kSynchronised,    // a layer's weights are all there
    // Of a meeting, by the worker that began it and its partner.
    kMeetingFirstByte,  // at the partner's machine
    kMeetingTaken,      // the partner has moved: its answer leaves
    kMeetingAnswer,     // its first byte is at the worker's machine
    kMeetingOver,
  };

  struct Slice {
    int layer = 0;
    int server = 0;
    double bytes = 0;
    std::uint32_t version = 0;
    std::int64_t round = 0;  // the one that is open
    int contributed = 0;
    std::vector<std::int32_t> parked;  // workers whose pulls wait for the round
  };
  struct Worker {
    std::int64_t iteration = 0;
    std::int64_t round = 0;   // of its next contribution
    std::int64_t newest = 0;  // round that its weights come from
    std::int64_t contributed = -1;
    int stage = 0;    // passes done: forward 0..L-1, then backward L-1..0
    int attempt = 0;  // computations cancelled
    int layers_unacknowledged = 0;
    bool waits = false;
    bool sending = false;
    bool meets = false;
    bool meeting_waits = false;  // another one is to follow; until then the weights stay as they are
    double factor = 1;           // the draw of this step
    double speed = 1;
    double busy_until = 0;   // its processor, handling messages
    double heard_until = 0;  // the same, acknowledgements
    std::uint64_t acknowledgements = 0;
    double pushed_at = 0;
    double last_step = 0;
    std::vector<std::int32_t> outbox;  // slices in the order pushed
  };
  struct Machine {
    Link link;
    bool shared = false;  // by a worker and a server
    double out_free = 0, in_free = 0;
    double out_busy = 0, in_busy = 0;

    // The times that the message begins to leave and has come in.
    double occupy_out(double from, double cost) {
      const double begin = std::max(from, out_free);
      out_free = begin + cost;
      out_busy += cost;
      return begin;
    }
    double occupy_in(double from, double cost) {
      in_free = std::max(from, in_free) + cost;
      in_busy += cost;
      return in_free;
    }
  };
  struct Server {
    std::vector<double> free;  // when each thread is
    double busy = 0;
  };
  struct ParkedPull {
    std::int32_t worker, slice;
    double asked;
  };
  struct Pace {
    double began = 0;    // its present step, as the servers see it
    double seconds = 0;  // of its last step; 0: not known
  };

  void check() const;
  void cut_slices();
  void schedule(double time, Kind kind, int worker, int item, double last_byte = 0);
  void handle(const Event& event);

  // Workers and network.
  void begin_step(int w, double now);
  void go_on(int w, double now);
  void pass_done(int w, double now);
  void end_step(int w, double now);
  void count_step(int w, double now);
  void push_layer(int w, int layer, double now);
  void send_next(int w, double now);
  double send(int w, int slice, double now);
  void arrive(int w, int slice, double now, double last_byte);
  void reply(int w, int slice, double at);
  void send_reply(int w, int slice, double at);
  void reply_arrives(int w, int slice, double now, double last_byte);
  void take(int w, int slice, double at);
  bool communicates(const Worker& worker) const { return !alone_ && (worker.iteration + 1) % local_steps_ == 0; }
  double occupy_core(double from, double cost);
  double occupy(std::vector<double>& threads, double from, double cost);
  double occupy_worker(int w, double from, double cost);
  double occupy_server(int server, double from, double cost);
  Machine& machine_of_worker(int w) { return machines_[static_cast<std::size_t>(w)]; }
  int machine_index(int server) const {
    return server < model_.colocated ? server : model_.workers + server - model_.colocated;
  }
  double small_arrives(const Machine& from, double at) const {
    return (model_.one_line ? std::max(at, from.out_free) : at) + model_.latency_seconds;
  }
  bool same_machine(int w, int server) const { return machine_index(server) == w; }

  // Mode gossip. A worker's meeting begins, or is to follow the one that is not over.
  void begin_meeting(int w, double now);
  void carry_weights(int from, double ready, Kind kind, int w, int partner);
  double take_weights(int to, double now, double last_byte);
  void answer_meeting(int w, int partner, double now);
  void end_meeting(int w, double now);

  // Servers.
  void received(int w, int slice, double now);
  void contribute(int w, int slice, double pushed);
  void close_round(int slice, double now);
  void cancel_late(int slice, std::int64_t round, double now);
  void acknowledge(int w, int slice, double at);
  void acknowledged(int w, int slice, double now);
  void pull(int w, int slice, double now, double asked);
  bool dynamic_bound_lets_go(int w, std::int64_t need, double asked) const;
  void answer(int w, int slice, double now);
  void step_end(int w, double now);
  int expected() const;
  const std::vector<bool>& chosen(std::int64_t round);
  std::uint32_t& pulled_version(int w, int slice) {
    return pulled_[static_cast<std::size_t>(w) * slices_.size() + static_cast<std::size_t>(slice)];
  }
  std::size_t at_layer(int w, int layer) const {
    return static_cast<std::size_t>(w) * model_.layers.size() + static_cast<std::size_t>(layer);
  }

  void reset_measurement(double now);
  Result result(double now) const;

  const Model model_;
  bool rounds_ = false, alone_ = false, ring_ = false, gossip_ = false, bounded_ = false, federated_ = false;
  bool queued_ = false;  // pushes leave one by one, by priority
  std::int64_t backup_ = 0, local_steps_ = 1, bound_ = std::numeric_limits<std::int64_t>::max();
  double fraction_ = 1;

  EventQueue events_;
  std::vector<Slice> slices_;
  std::vector<std::vector<std::int32_t>> slices_of_layer_;
  std::vector<Worker> workers_;
  std::vector<Machine> machines_;
  std::vector<Server> servers_;
  std::vector<std::vector<std::pair<double, double>>> cores_;  // when each is taken, in order; what is past is dropped
  double now_ = 0;
  std::vector<std::uint32_t> pulled_;  // by worker, then slice
  std::vector<std::int32_t> missing_;  // by worker, then layer: slices to come; the last counts until kSynchronised
  std::vector<std::int32_t> unacknowledged_;
  std::vector<std::int64_t> need_;  // the round that its weights must hold
  std::vector<double> ready_;       // when the last weights of a layer came
  double whole_bytes_ = 0;          // of all layers
  std::map<std::int64_t, std::vector<bool>> chosen_;

  std::int64_t slowest_ = 0;
  std::map<std::int64_t, int> clocks_;  // clock -> workers, as the servers know
  std::vector<std::int64_t> server_clock_;
  std::vector<ParkedPull> parked_;
  std::shared_ptr<const Mode> dynamic_;  // decides past bound_, where the mode names two bounds
  std::vector<Pace> paces_;
  std::size_t last_ = 0;  // of the slowest workers the one that will end its step last

  // Measured.
  std::int64_t steps_ = 0, counted_steps_ = 0, rounds_closed_ = 0, applied_ = 0, refused_ = 0, furthest_ahead_ = 0;
  std::int64_t all_delays_ = 0;
  double since_ = 0, bytes_ = 0, computed_seconds_ = 0;
  std::vector<std::int64_t> delays_;
  std::vector<float> step_seconds_;
};

}  // namespace paceline::sim
