#pragma once
// A worker's part in mode ring: the all-reduce of gradients among the workers, without servers.
//
// Keys are cut into pieces of at most 512 KiB. A piece is longer only if it is one row for a codec that encodes whole
// rows. The live workers take turns as owners of pieces. In a round every worker sends its gradient of a piece to the
// owner (reduce-scatter). The owner adds the gradients up in rank order, and sends their mean or sum to all workers
// (all-gather). Each worker applies the result to its own weights and optimizer state. If the optimizer has no state
// and the mean is not encoded, the owner sends the new weights instead, and the others take them over. Running
// statistics always travel as their mean.
//
// So every worker holds all weights and state, and the loss of a worker loses none of them. All workers hold the same
// bits. These are the bits of `dist_sync` if the mean is not encoded and nothing is added up per host. Each worker
// sends and receives 2(n-1)/n of the model's bytes, as in a ring of neighbours, but in one round trip instead of 2(n-1)
// hops.
//
// The workers of a ring of two are *twins* if they share no memory and encode no mean. Each sends the other all its
// gradients, and both add them up. This takes the same number of bytes, and no result is sent back. If there are
// several hosts with several workers, the gradients of each host are added up first (ring_hosts.h). Each of n hosts
// then sends and receives 2(n-1)/n of the model's bytes over the network.
//
// The gradients of a worker's step r belong to round r. A worker promises that it is *over* a round when it will send
// no further gradient for that round. An owner closes a round when it has, for every live worker, either the gradient
// or this promise. A worker that waits (at a barrier, for data, at the end) is *idle*, and makes the promise when it is
// asked. The delegate of a host closes rounds too, and sends the host's sum to the root. For each piece, only one sum
// of a host is in flight at a time. A worker promises that it has *passed* a round when it will send no further sum of
// its host for that round.
//
// Every change of the roster begins a new *generation*, whose number is the epoch of the roster. Each worker then drops
// the gradients that it has received for open rounds. It asks the others for the versions of their pieces, and fetches
// pieces of which another worker has a newer version, or one of a later load. Then it sends its own gradients of open
// rounds again, to the new owners. Gradients, results and promises of an older generation are dropped. Those of a newer
// generation wait until the receiver has reached it.
//
// If gradients are compressed, the owner decodes them while it sums. If the mean travels encoded too, the owner applies
// the same decoded mean as the others.
//
// All functions run on the peer's own thread unless their comment says otherwise, so its state needs no lock.

#include <paceline/backend.h>
#include <paceline/mutex.h>
#include <paceline/unique_function.h>
#include <paceline/updater.h>

#include <chrono>
#include <deque>
#include <future>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <type_traits>
#include <vector>

#include "allreduce/ring_hosts.h"
#include "key_partition.h"
#include "parse_body.h"
#include "payload.h"
#include "scheduler_client.h"
#include "send/outbox.h"
#include "send/transfer.h"
#include "workers.pb.h"

namespace paceline {

namespace wire {
class RingResult;
}

// The sizes of messages. Over the network, a few messages of this size stay in the caches until they are summed. Over
// shared memory no bytes move, so only the number of messages costs time.
constexpr std::size_t kNetworkMessageBytes = std::size_t{512} << 10;
constexpr std::size_t kSharedMessageBytes = std::size_t{2} << 20;

struct RingKey {
  struct Part {
    int piece = 0;
    std::int64_t begin = 0, end = 0;  // elements
  };

  KeyInfo info;
  std::vector<Part> parts;
  bool encodes_mean = false;
  Variable order;                          // written by every task about this key
  NDArray weight;                          // the array that holds the worker's weights
  std::shared_ptr<NDArray> shared;         // the array of init() if the store may use it (InitValue::shared); else null
  std::uint64_t shared_version = 0;        // version of the variable of `shared` after the last pull
  std::optional<std::uint64_t> last_step;  // the last step that pushed the key
  std::uint64_t call = 0;                  // the last call that pushes the key; `place`: the index of its item
  std::size_t place = 0;
};

// One call of push, pull or push_pull. It ends when its gradients are applied, its outputs are written, and no message
// still reads its gradients.
struct RingCall {
  struct Item {
    RingKey* key;
    NDArray gradient;        // none: the key is only pulled; the encoded bytes if it is encoded
    NDArray out;             // none: the key is only pushed
    std::uint64_t need = 0;  // number of rounds that must be applied before `out` is written
    std::shared_ptr<const EncodedGradient> encoded = nullptr;
    // Set by RingPeer::start().
    std::shared_ptr<const void> owner;  // keeps `source` alive
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    bool shared = false;       // `target` is the key's shared array
    bool overwritten = false;  // an output of the call is written into the memory of the gradient
  };

  std::vector<Item> items;
  std::uint64_t round = 0;
  std::int64_t examples = 0;
  int priority = 0;
  // `sent` is held until the owners have the gradients, and `applied` until the call ends.
  std::shared_ptr<Step> sent, applied;
  std::shared_ptr<Pending> pending;
  std::optional<Completion> completion;
  std::chrono::steady_clock::time_point since;
  int left = 0;       // pieces that are not yet applied, or not yet written to an output
  int unacked = 0;    // pushes of this generation without an answer
  int in_flight = 0;  // pushes of any generation without an answer, whose messages may still read the gradients

  explicit RingCall(std::shared_ptr<Pending> counted) : pending(std::move(counted)) { pending->add(); }
  ~RingCall() {
    if (applied)
      applied->delivery()->fail(
          std::make_exception_ptr(Error("a gradient was not pushed: what it is computed from has failed")));
    sent.reset();
    applied.reset();
    pending->remove();
  }
  void end(std::exception_ptr error);
};

class RingPeer {
 public:
  // Joins the job. Blocks and throws as Node::join() does. `push` and `mean`: the codecs of gradients, and of their
  // mean or sum; null: not encoded.
  RingPeer(const ClusterConfig& config, Aggregate aggregate, std::shared_ptr<const Codec> push,
           std::shared_ptr<const Codec> mean);
  ~RingPeer();

  // ---- any thread

  Node& node() { return *node_; }
  // Starts a call. Called within an engine task, when the gradients are ready.
  void start(std::shared_ptr<RingCall> call, Completion completion);
  // Records that step `number` of this worker has ended, and that its gradients are at the owners.
  void end_step(std::uint64_t number);
  // Stops the peer. Calls that are not done fail. With `leave`, first leaves the job, so the others do not count this
  // worker as lost.
  void close(bool leave);

  // ---- any thread; these functions block, and throw the error with which the job has failed

  // Adds the pieces of the keys in `layout`. `values` holds a value for each key. The pieces count as without weights
  // until keep_values() or fetch(). Returns the number of the first piece.
  int add_keys(const Layout& layout, const std::vector<RingKey*>& keys, const std::vector<NDArray>& values);
  // Makes the values of add_keys() the weights of all pieces that have none.
  void keep_values();
  // Undoes keep_values() and fetch() for the pieces from `piece` on: they count as without weights again.
  void forget_values(int piece);
  // Fetches weights, state and newer rules from worker `rank`. `all`: of all pieces; otherwise only of pieces without
  // weights.
  void fetch(int rank, bool all);
  // Brings this worker, which joined after the start, into the ring. The worker gets the weights, state and rules that
  // the others have at that time. It must have added all pieces of the ring before. Returns the first step that it can
  // contribute to.
  std::uint64_t enter();
  // `call` counts this worker's calls of set_rules(). Of several workers, the first to make a call changes the rules
  // for all. set_rules() and set_learning_rate() wait until the other workers in the ring have what this worker has
  // changed. A worker that enters later takes it over.
  void set_rules(std::uint32_t call, const Spec& optimizer);
  // The number of the last set_rules() that counts here, and its optimizer. The worker may have taken both over from
  // another worker.
  std::uint32_t optimizer_call();
  Spec optimizer();
  void set_learning_rate(double rate);
  // Makes this worker idle: no round waits for it, not even a round that already does. No push of this worker may be in
  // flight.
  void enter_idle(std::uint64_t clock);
  // Ends the idle state of enter_idle(). Returns the first step that the worker can contribute to: `clock` or a later
  // one. `settled`: nothing of a round before that step can arrive any more.
  std::uint64_t leave_idle(std::uint64_t clock, bool settled);
  // Waits until the other workers have received all results that this worker had to send.
  void flush();
  struct PieceState {
    int piece = 0;
    NamedArrays arrays;
    SliceCounters counters;
  };
  PieceState save(int piece);
  // The states fit the pieces and the rules.
  void load(const std::vector<PieceState>& states);
  StoreReport report();

 private:
  using Job = UniqueFunction<void()>;
  // Orders the states of a piece: the number of loads, then the version. A load may bring an older version.
  using Age = std::pair<std::uint64_t, std::uint64_t>;
  struct Given {
    std::shared_ptr<const void> owner;  // keeps `data` alive
    const std::byte* data = nullptr;
    std::int64_t examples = 0;
    std::uint32_t workers = 1;    // number of workers whose gradients are in `data`
    std::size_t encoded = 0;      // size of `data` if it is encoded; 0: not encoded
    std::uint64_t rate_call = 0;  // for twins: the latest set_learning_rate() that the sender knew, by number
    double rate = 0;
    bool overwritten = false;  // as in RingCall::Item
  };
  // The owner of data in a request's payload. It keeps the request alive, and the copies that were made for alignment.
  struct Arrived {
    Request request;
    std::vector<std::unique_ptr<std::byte[]>> copies;
  };
  struct Reader {
    std::shared_ptr<RingCall> call;
    std::byte* out = nullptr;
    std::uint64_t need = 0;
    bool shared = false;  // as in RingCall::Item
  };
  struct Piece {
    RingKey* key = nullptr;
    std::int64_t begin = 0, end = 0;  // elements of the key
    std::size_t bytes = 0;
    std::size_t group = 0;  // neighbouring pieces with one owner form a group
    int slice = 0;          // number in the updater
    bool valid = false;
    std::uint64_t loads = 0;  // number of load() calls in the ring whose state the piece has taken
    std::uint64_t version = 0;
    std::uint64_t next_round = 0;                        // the round after the last applied one
    std::map<std::uint64_t, std::map<int, Given>> open;  // gradients that this worker sums, by round and rank
    std::uint64_t summed = 0;                            // the round after the last one whose sum goes to the root
    bool sum_under_way = false;
    std::shared_ptr<RingCall> mine;  // the call whose gradient of this piece is not applied yet
    Given given;                     // the gradient of `mine`
    std::vector<Reader> readers;
  };
  struct Other {
    std::uint64_t incarnation = 0;
    bool near = false;  // on this host
    std::uint64_t over = 0, passed = 0;
    std::uint64_t heard = 0;  // number of its last kRingTell
    bool idle = false;
    std::uint64_t wanted = 0;  // the largest `want` that this worker has sent to it
    int unacked_results = 0;
  };
  // The place of this worker in the sums of a group. `above`: the worker that it sends its part to; -1: none. `below`:
  // the workers that send it their parts. sends_to(): the worker that gets this worker's own gradients; -1: none.
  struct Place {
    int above = -1;
    std::vector<int> below;
    int twin = -1;  // the other twin, which is in `below` as well; -1: none

    int sends_to() const { return twin >= 0 ? twin : below.empty() ? above : -1; }
    bool sends_results() const { return !below.empty() && twin < 0; }
  };
  // A received result that this worker passes on. `request` is answered when all workers below have received the
  // result.
  struct Relay {
    Request request;
    int left = 0;
  };
  struct Result {
    std::uint64_t round = 0;
    std::int64_t examples = 0;
    double rate = 0;
    std::uint64_t version = 0;
    bool weights = false;
    std::shared_ptr<const std::byte[]> data;
    std::size_t encoded = 0;  // as in Given
  };
  // Results of pieces that go to the same workers in one message.
  struct Results {
    std::size_t bytes = 0;
    std::vector<int> pieces;
    std::vector<Result> results;
    std::set<std::shared_ptr<Relay>> relays;
  };
  struct Sums {
    std::uint64_t round = 0;
    std::size_t bytes = 0;
    std::vector<int> pieces;
    std::vector<Given> sums;
  };
  struct Settling {
    Request request;
    std::uint64_t need = 0;
    int from = 0;
  };

  // ---- ring_peer.cc, ring_rounds.cc, ring_calls.cc: rounds
  void post(Job job);
  // Runs `action` on the peer's thread and waits for it.
  template <class Action>
  auto on_thread(Action action) {
    using Result = std::invoke_result_t<Action>;
    const auto promise = std::make_shared<std::promise<Result>>();
    post([this, promise, action = std::move(action)]() mutable {
      try {
        if (failure_) std::rethrow_exception(failure_);
        if constexpr (std::is_void_v<Result>) {
          action();
          promise->set_value();
        } else {
          promise->set_value(action());
        }
      } catch (...) {
        promise->set_exception(std::current_exception());
      }
    });
    return promise->get_future().get();
  }
  void loop();
  void after_job();
  void run(const std::shared_ptr<RingCall>& call);
  void finish(const std::shared_ptr<RingCall>& call);
  void end_if_done(const std::shared_ptr<RingCall>& call);
  void send(const std::shared_ptr<RingCall>& call, const std::vector<int>& pieces);
  void acked(std::uint64_t generation, const std::shared_ptr<RingCall>& call, std::uint64_t round, bool stale);
  void give(int number, std::uint64_t round, int from, Given given);
  void try_close(int number);
  bool may_be_idle(int rank) const;
  void close_round(int number);
  static std::size_t run_bytes(const Piece& piece, std::size_t encoded) { return encoded > 0 ? encoded : piece.bytes; }
  // Reads the data of the next piece in a payload. `encoded` is as in Given. Throws Corrupt if the data cannot belong
  // to the piece.
  static const std::byte* next_run(PayloadReader& payload, const Piece& piece, std::size_t encoded, const Codec* codec);
  Given together(const Piece& piece, const std::vector<Given>& parts) const;
  void add_sum(int number, std::uint64_t round, Given sum);
  void flush_sums();
  void send_sums(int rank, const Sums& sums);
  void add_result(int number, Result result, const std::shared_ptr<Relay>& relay = nullptr);
  void flush_results();
  void send_results(const std::vector<int>& ranks, const Results& results);
  // Passes a received result on to the workers that get results from this one.
  void pass_on(const Request& request, const wire::RingResult& body, const std::shared_ptr<Relay>& relay);
  void try_close_all();
  // Applies a round. `update` changes the weights, and writes the copies that `out` asks for.
  void apply(int number, std::uint64_t round, const std::function<void(const RoundCopies& out)>& update);
  void use_rules(std::uint32_t call, const Spec& optimizer);
  // Runs `change` on the peer's thread. If it returns true, waits until the other workers have the new rules. Runs on
  // any other thread.
  void change_rules(const std::function<bool()>& change);
  wire::RingRules rules() const;
  // Takes over the optimizer of a later set_rules(), and a newer rate.
  void take_rules(const wire::RingRules& others);
  // Takes over a newer rate of another worker. `rate_of`: as the member with this name.
  void take_rate(std::uint32_t rate_of, std::uint64_t call, double rate);
  void use_rate(double rate);
  // The learning rate of the twin that knew the later call of set_learning_rate(). Both twins compute the same rate.
  static double newest_rate(const std::map<int, Given>& contributions);
  void serve_readers(Piece& piece);
  void update_over();
  std::uint64_t host_over() const;
  void let_pass(std::uint64_t round);
  Message tell_message(std::uint64_t want, bool with_rules = false);
  void tell(int rank, std::uint64_t want);
  void want_from(int rank, std::uint64_t over);
  bool settled_here(std::uint64_t need);
  void settle(std::uint64_t need);
  void check_settled();
  void fail_all(const std::exception_ptr& error);
  void take_places();
  bool shares_memory(int rank) const { return lends_memory_ && others_.at(rank).near; }
  std::size_t message_bytes(int rank) const { return shares_memory(rank) ? kSharedMessageBytes : kNetworkMessageBytes; }
  Outbox& outbox(int rank);
  // Sends a request. `on_answer` runs on the peer's thread, and gets nullopt if the other worker is lost.
  void submit(int rank, Message message, int priority, std::function<void(std::optional<Message>)> on_answer);

  // ---- ring_recovery.cc: messages, generations
  void on_request(const Request& request);
  // A message of a generation before this worker's first one was meant for its earlier life.
  bool is_over(std::uint64_t generation) const {
    return started_ ? generation < generation_ : generation <= generation_;
  }
  bool in_step(const Request& request, std::uint64_t generation);
  void on_push(const Request& request);
  void on_result(const Request& request);
  bool take_result(const Request& request);
  void on_tell(const Request& request);
  void on_ask(const Request& request);
  void on_roster(const Roster& roster);
  void begin_generation();
  void take_state(int rank, const Message& answer);
  void fetch_missing();
  // `newer_only`: loads a piece only if it is newer than this worker's, or if this worker's piece has no weights. State
  // of older rules begins anew unless the present rules keep the same state.
  void load_pieces(const std::vector<int>& numbers, const Message& answer, bool newer_only);
  void load_piece(const PieceState& state, std::uint64_t next_round);
  void take_held(std::vector<Request>& requests);
  void check_entered();
  void answer_fetch(const Request& request);
  void end_recovery();
  std::vector<std::vector<int>> batches(const std::vector<int>& numbers) const;

  const ClusterConfig config_;
  const bool lends_memory_;  // the transport lends memory to peers on the same host
  const Aggregate aggregate_;
  const std::shared_ptr<const Codec> push_codec_, mean_codec_;
  const std::unique_ptr<Updater> updater_ = make_updater();
  int rank_ = 0;
  std::deque<Piece> pieces_;
  std::size_t groups_ = 0;
  std::vector<int> live_;
  RingHosts hosts_;
  std::vector<Place> places_;                        // by group
  std::map<int, Other> others_;                      // the other live workers, by rank
  std::map<int, std::unique_ptr<Outbox>> outboxes_;  // kept to the end, because answers may still be in flight
  std::uint64_t generation_ = 0;                     // before `started_`: the latest epoch whose ring lacks this worker
  bool started_ = false, recovering_ = false, behind_ = false;
  bool worth_a_line_ = false;  // a worker was lost or has joined since the last log line about it
  bool newcomer_ = false;      // this worker joined after the start, and is not in the ring yet
  std::optional<std::promise<std::uint64_t>> entering_;
  std::uint64_t entering_epoch_ = 0;
  std::map<std::uint64_t, std::size_t> given_;  // number of pieces that this worker pushed, by step
  std::uint64_t ended_ = 0;                     // this worker pushes no new gradient for rounds before this one
  std::uint64_t over_ = 0;                      // as `ended_`, and the owners have all gradients of these rounds
  std::uint64_t passed_ = 0;                    // this worker sends no more sums of its host for rounds before this one
  std::uint64_t told_ = 0, told_passed_ = 0, partial_ = 0, asked_ = 0;
  bool idle_ = false, told_idle_ = false;
  std::uint64_t tells_ = 0;
  std::multiset<std::uint64_t> unacked_;                 // rounds of pushes of this generation that are not answered
  std::set<std::shared_ptr<RingCall>> calls_in_flight_;  // calls with unanswered pushes of any generation
  std::multiset<std::uint64_t> sums_under_way_;          // rounds of sums of its host that are not answered
  std::uint64_t settled_ = 0, settling_ = 0;
  int settle_left_ = 0;
  std::vector<Settling> settle_requests_;
  std::vector<std::promise<void>> flushes_;
  std::vector<Request> held_, early_results_, early_fetches_;
  std::vector<Age> frozen_;  // at the beginning of this generation, with the version plus one; 0, 0: no weights
  std::uint64_t frozen_over_ = 0;
  std::map<int, std::vector<Age>> states_;  // of the other workers, as in frozen_
  int fetches_left_ = 0;
  std::exception_ptr failure_;
  std::string optimizer_ = "sgd";
  std::uint32_t optimizer_call_ = 0;
  double rate_ = LearningRate().base(), used_rate_ = rate_;
  std::uint64_t rate_calls_ = 0;
  std::uint32_t rate_of_ = 0;  // `rate_` was set under the rules of this call of set_rules(), at some worker
  std::int64_t refused_ = 0, applied_ = 0;
  double waited_seconds_ = 0;
  std::int64_t sent_to_hosts_ = 0;

  std::map<std::vector<int>, Results> results_;  // by the ranks that get them
  std::map<int, Sums> sums_;                     // by the rank of the root

  Mutex mutex_;
  CondVar posted_;
  std::deque<Job> jobs_ PACELINE_GUARDED_BY(mutex_);
  bool stopping_ PACELINE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
  std::unique_ptr<Node> node_;  // last, because its threads use the other members
};

}  // namespace paceline
