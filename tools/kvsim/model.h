#pragma once
// What kvsim simulates: machines, costs and the job. README.md says what each stands for and how to measure it.

#include <paceline/histogram.h>
#include <paceline/options.h>

#include <cstdint>
#include <string>
#include <vector>

#include "time_law.h"

namespace paceline::sim {

// One message occupies a link's direction for `fixed_seconds` plus its bytes over the speed; 0: infinitely fast.
struct Link {
  double out_bytes_per_second = 0;
  double in_bytes_per_second = 0;
  double fixed_seconds = 0;

  double out(double bytes) const {
    return fixed_seconds + (out_bytes_per_second > 0 ? bytes / out_bytes_per_second : 0);
  }
  double in(double bytes) const { return fixed_seconds + (in_bytes_per_second > 0 ? bytes / in_bytes_per_second : 0); }
};

// Processor time of handling one message.
struct Cost {
  double fixed_seconds = 0;
  double seconds_per_byte = 0;

  double of(double bytes) const { return fixed_seconds + bytes * seconds_per_byte; }
};

// Forward passes run from the first layer to the last, backward passes the other way; a layer is pushed when its
// backward pass ends, and its next forward pass waits for the weights. Times are multiplied by the draw of `compute`.
struct Layer {
  double forward = 0;
  double backward = 1;
  double bytes = 0;
};

struct Model {
  // local, ring, gossip[:steps=H], dist_sync[:backup=b], dist_async[:bound=s or lo..hi],
  // dist_local:steps=H[,averaging=average|elastic|federated,fraction=F]. Keys that change no times (staleness,
  // transport, ...) are the caller's to remove.
  Spec mode{"dist_async", {}};
  int workers = 1;
  int servers = 1;
  std::vector<Layer> layers = std::vector<Layer>(1);
  double slice_bytes = 0;      // 0: a layer's share of each server is one slice
  std::vector<double> shares;  // of the servers; empty: equal
  bool by_priority = true;     // front layers leave first; false: in the order pushed

  TimeLaw compute = TimeLaw::constant(1);
  int slow_workers = 0;  // the first ones
  double slow_factor = 1;

  Link worker_link, server_link;
  int colocated = 0;  // the first servers run on the first workers' machines and share their links
  double latency_seconds = 0;
  Cost worker_push, worker_pull;
  Cost server_push, server_pull, server_apply;  // apply: once a round, in the modes that have rounds
  TimeLaw service = TimeLaw::constant(1);       // multiplies the cost of a push at its server
  // A worker handles acknowledgements one after the other, each in a time between 0 and twice this. Where several
  // workers hear at once, that decides whose pulls come first.
  double acknowledgement_seconds = 0;
  int server_threads = 1;
  int shared_cores = 0;  // all processes of the job share so many cores; 0: nobody shares

  bool one_line = false;         // small messages leave a machine behind the large ones that came first
  bool pull_after_call = false;  // a layer's pulls leave when all its pushes are acknowledged, not each by itself
  bool cancel_late = false;      // who comes too late for its round stops computing and joins the next

  std::int64_t iterations = 100;  // steps of the job, over its workers
  double warm_up = 0.1;           // share of the steps that is not measured
  std::uint64_t seed = 1;
};

struct Result {
  double steps_per_second = 0;   // of all workers
  double rounds_per_second = 0;  // in the modes that have rounds
  double pushes_per_second = 0;  // slices applied
  double refused_share = 0;      // of the slices pushed: late for their round
  double bytes_per_second = 0;   // both ways
  double waiting_share = 0;      // of the workers' time: not computing
  double step_seconds_mean = 0, step_seconds_p50 = 0, step_seconds_p99 = 0;
  Histogram delays;  // updates between pull and push, of the slices applied
  double delay_deviation = 0;
  std::int64_t furthest_ahead = 0;                     // most clocks that a computing worker led the slowest by
  double busiest_server = 0, busiest_server_link = 0;  // utilisations
  double simulated_seconds = 0;
  std::uint64_t events = 0;
  // T1.1: over every slice, delays applied plus ages outstanding, and (workers - 1) * updates; since the start.
  std::int64_t delays_and_ages = 0, expected_delays_and_ages = 0;
};

}  // namespace paceline::sim
