#pragma once
// A worker's part in mode ring: the all-reduce of gradients among the workers, without servers.
//
// Keys are cut into pieces of at most half a megabyte. Each piece has an owner, one of the live workers in turn. In a
// round every worker sends its gradients of a piece to the owner (reduce-scatter), which adds them up in rank order and
// sends their mean or sum to all (all-gather); each worker applies it to weights and optimizer state of its own. Where
// the optimizer has no state, the owner sends the new weights instead, and the others keep what arrived. So everybody
// holds everything: a worker that is lost takes nothing with it, and all hold the same bits, those of `dist_sync`. The
// bytes are those of a ring of neighbours, 2 (n - 1) / n of the model out and in per worker, in one round trip instead
// of 2 (n - 1) hops. Two workers that share no memory, the *twins*, send each other everything and both sum: the same
// bytes, and nothing comes back. Over several hosts, gradients are added up in each first (ring_hosts.h): then bytes
// are a host's, n counts hosts, and sums are by host.
//
// A step is a round. A worker promises that it is *over* a round when it will send no further gradient for it. An owner
// closes a round when it has, for every live worker, either the gradient or this promise. A worker that waits (at a
// barrier, for data, at the end) is *idle*, and makes the promise when it is asked. The delegate of a host closes
// rounds too. It sends the host's sum to the root, one at a time for each piece. It promises the rounds that it has
// *passed*: it will send no sum of its host for these.
//
// Every change of the roster begins a new *generation*, whose number is the roster's. Each worker drops the rounds that
// are not closed, tells the others the version of each piece, and fetches pieces in which another worker is ahead. Then
// it sends the open rounds again, to the new owners. Messages of an older generation are dropped. Messages of a newer
// generation wait until the receiver has reached it.
//
// If gradients are compressed, the owner decodes them while it sums. If the mean travels encoded too, the owner applies
// the same decoded mean as the others.
//
// All functions run on one thread of the peer unless their comment says otherwise, so nothing is locked.

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

// Over the network, a few messages of half a megabyte stay in the caches between the network and the sum. Over shared
// memory no bytes move, and only the number of messages costs time.
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
  std::shared_ptr<NDArray> shared;         // the same, where the store's weights may lie in it; else null
  std::uint64_t shared_version = 0;        // of its variable, after the last pull
  std::optional<std::uint64_t> last_step;  // the last in which it was pushed
  std::uint64_t call = 0;                  // the last call that pushes it, and its place there
  std::size_t place = 0;
};

// One call of push, pull or push_pull. It ends when its gradients are applied and its outputs are written.
struct RingCall {
  struct Item {
    RingKey* key;
    NDArray gradient;        // none: only pulled; its bytes where it is encoded
    NDArray out;             // none: only pushed
    std::uint64_t need = 0;  // number of rounds that must be over first
    std::shared_ptr<const EncodedGradient> encoded = nullptr;
    // Set within the task.
    std::shared_ptr<const void> owner;  // of the source
    const std::byte* source = nullptr;
    std::byte* target = nullptr;
    bool shared = false;  // the target is the key's shared array
  };

  std::vector<Item> items;
  std::uint64_t round = 0;
  std::int64_t examples = 0;
  int priority = 0;
  std::shared_ptr<Step> sent, applied;  // held until the owners have the gradients; until they are applied
  std::shared_ptr<Pending> pending;
  std::optional<Completion> completion;
  std::chrono::steady_clock::time_point since;
  int left = 0;     // pieces to apply and to write
  int unacked = 0;  // messages

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
  // Joins the job; blocks as Node::join() does, and throws the same.
  // `push` and `mean`: the codecs of gradients and of what they make together, null where they travel raw.
  RingPeer(const ClusterConfig& config, Aggregate aggregate, std::shared_ptr<const Codec> push,
           std::shared_ptr<const Codec> mean);
  ~RingPeer();

  // ---- any thread

  Node& node() { return *node_; }
  // Starts a call. Called within an engine task, when the gradients are ready.
  void start(std::shared_ptr<RingCall> call, Completion completion);
  // A step of this worker is over, and its gradients are at the owners.
  void end_step(std::uint64_t number);
  // Stops the peer. Calls that are not done fail. With `leave`, also leaves the job in good order.
  void close(bool leave);

  // ---- any thread; these block, and throw the error that the job failed of

  // Adds the pieces of `layout`; `values` are by key. The pieces do not have weights yet: see the next three functions.
  // Returns the number of the first piece.
  int add_keys(const Layout& layout, const std::vector<RingKey*>& keys, const std::vector<NDArray>& values);
  // Makes the values the weights of all pieces that have none.
  void keep_values();
  // Takes this back: the pieces from `piece` on are without weights again.
  void forget_values(int piece);
  // Fetches weights and state from another worker, of all pieces or of those without weights. A worker that is not in
  // the ring yet gets the rules too.
  void fetch(int rank, bool all);
  // Brings this worker, which came after the start, into the ring. It then has the weights, state and rules that the
  // others had at that time. Its pieces must be all pieces of the ring. Returns the first step that it can contribute
  // to.
  std::uint64_t enter();
  // `call` counts the calls of this worker. Calls that the ring had before this worker entered change nothing.
  void set_rules(std::uint32_t call, const Spec& optimizer);
  void set_learning_rate(double rate);
  // From now on no round waits for this worker, not even one that already does. None of its pushes may be in flight.
  void enter_idle(std::uint64_t clock);
  // Ends this. Returns the first step that the worker can contribute to, `clock` or a later one. `settled`: nothing of
  // an earlier round will arrive.
  std::uint64_t leave_idle(std::uint64_t clock, bool settled);
  // Waits until every other worker has received what this one had to send.
  void flush();
  struct PieceState {
    int piece = 0;
    NamedArrays arrays;
    SliceCounters counters;
  };
  PieceState save(int piece);
  void load(const std::vector<PieceState>& states);
  // Sets the error that fetch() from this worker throws from now on; null: none.
  void refuse_fetches(std::exception_ptr why);
  StoreReport report();

 private:
  using Job = UniqueFunction<void()>;
  struct Given {
    std::shared_ptr<const void> owner;  // of the data
    const std::byte* data = nullptr;
    std::int64_t examples = 0;
    std::uint32_t workers = 1;    // that had part in it
    std::size_t encoded = 0;      // its bytes, where it is encoded
    std::uint64_t rate_call = 0;  // between twins: the learning rate that its worker knew, and whose call set it
    double rate = 0;
  };
  // The owner of runs in a request's payload. It keeps the request and the aligned copies alive.
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
    std::size_t group = 0;  // neighbours with one owner
    int slice = 0;          // in the updater
    bool valid = false;
    std::uint64_t version = 0;
    std::uint64_t next_round = 0;                        // after the last that was applied
    std::map<std::uint64_t, std::map<int, Given>> open;  // where they are summed: by round and rank
    std::uint64_t summed = 0;                            // after the last whose sum went up
    bool sum_under_way = false;
    std::shared_ptr<RingCall> mine;  // whose gradient is not applied yet
    Given given;                     // that gradient
    std::vector<Reader> readers;
  };
  struct Other {
    std::uint64_t incarnation = 0;
    bool near = false;  // on this host
    std::uint64_t over = 0, passed = 0;
    std::uint64_t heard = 0;  // number of its last kRingTell
    bool idle = false;
    std::uint64_t wanted = 0;  // what it was asked to tell
    int unacked_results = 0;
  };
  // The place of this worker in the sums of a group: the worker that it sends to, and the workers that it gets sums
  // from.
  struct Place {
    int above = -1;
    std::vector<int> below;
    int twin = -1;  // the other of twins; below, too

    int sends_to() const { return twin >= 0 ? twin : below.empty() ? above : -1; }  // its gradients as they are
    bool sends_results() const { return !below.empty() && twin < 0; }
  };
  // A result that this worker has passed on within the host. Its request is answered when all have received it.
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
  // Results of neighbouring pieces that go to the same workers in one message.
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
  void send(const std::shared_ptr<RingCall>& call, const std::vector<int>& pieces);
  void acked(std::uint64_t generation, const std::shared_ptr<RingCall>& call, std::uint64_t round, bool stale);
  void give(int number, std::uint64_t round, int from, Given given);
  void try_close(int number);
  bool may_be_idle(int rank) const;
  void close_round(int number);
  static std::size_t run_bytes(const Piece& piece, std::size_t encoded) { return encoded > 0 ? encoded : piece.bytes; }
  // Reads the next run of a payload; `encoded` as in Given. Throws Corrupt.
  static const std::byte* next_run(PayloadReader& payload, const Piece& piece, std::size_t encoded, const Codec* codec);
  Given together(const Piece& piece, const std::vector<Given>& parts) const;
  void add_sum(int number, std::uint64_t round, Given sum);
  void flush_sums();
  void send_sums(int rank, const Sums& sums);
  void add_result(int number, Result result, const std::shared_ptr<Relay>& relay = nullptr);
  void flush_results();
  void send_results(const std::vector<int>& ranks, const Results& results);
  // Results that others get from this worker.
  void pass_on(const Request& request, const wire::RingResult& body, const std::shared_ptr<Relay>& relay);
  void try_close_all();
  // Applies a round. `update` changes the weights, and writes them to `out`.
  void apply(int number, std::uint64_t round, const std::function<void(const RoundCopies& out)>& update);
  void use_rules(std::uint32_t call, const Spec& optimizer);
  wire::RingRules rules() const;
  void take_rules(const wire::RingRules& others);
  void take_rate(std::uint64_t call, double rate);  // that another worker has set
  void use_rate(double rate);
  // The learning rate of the twin that knew of the latest call. The result is the same at both twins.
  static double newest_rate(const std::map<int, Given>& contributions);
  void serve_readers(Piece& piece);
  void update_over();
  std::uint64_t host_over() const;
  void let_pass(std::uint64_t round);
  Message tell_message(std::uint64_t want);
  void tell(int rank, std::uint64_t want);
  void want_from(int rank, std::uint64_t over);
  bool settled_here(std::uint64_t need);
  void settle(std::uint64_t need);
  void check_settled();
  void fail_all(std::exception_ptr error);
  void take_places();
  bool shares_memory(int rank) const { return lends_memory_ && others_.at(rank).near; }
  std::size_t message_bytes(int rank) const { return shares_memory(rank) ? kSharedMessageBytes : kNetworkMessageBytes; }
  Outbox& outbox(int rank);
  // Sends a request. `on_answer` runs on the peer's thread. It gets no answer if the other worker is lost.
  void submit(int rank, Message message, int priority, std::function<void(std::optional<Message>)> on_answer);

  // ---- ring_recovery.cc: messages, generations
  void on_request(const Request& request);
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
  // `newer_only`: loads only pieces that are ahead of this worker's.
  void load_pieces(const std::vector<int>& numbers, const Message& answer, bool newer_only);
  void load_piece(const PieceState& state, std::uint64_t next_round);
  void take_held(std::vector<Request>& requests);
  void check_entered();
  void answer_fetch(const Request& request);
  void end_recovery();
  std::vector<std::vector<int>> batches(const std::vector<int>& numbers) const;

  const ClusterConfig config_;
  const bool lends_memory_;  // the transport does, to peers on the same host
  const Aggregate aggregate_;
  const std::shared_ptr<const Codec> push_codec_, mean_codec_;
  const std::unique_ptr<Updater> updater_ = make_updater();
  int rank_ = 0;
  std::deque<Piece> pieces_;
  std::size_t groups_ = 0;
  std::vector<int> live_;
  RingHosts hosts_;
  std::vector<Place> places_;                        // by group
  std::map<int, Other> others_;                      // live ones
  std::map<int, std::unique_ptr<Outbox>> outboxes_;  // kept until the end: an answer may be on its way through one
  std::uint64_t generation_ = 0;
  bool started_ = false, recovering_ = false, behind_ = false;
  bool worth_a_line_ = false;  // somebody was lost or has come since the last line about it
  bool newcomer_ = false;      // came after the start and is not in the ring yet
  std::optional<std::promise<std::uint64_t>> entering_;
  std::uint64_t entering_epoch_ = 0;
  std::map<std::uint64_t, std::size_t> given_;  // pieces that it pushed, by step
  std::uint64_t ended_ = 0;                     // steps that are over for this worker
  std::uint64_t over_ = 0;                      // the same, as far as the owners have what it contributed
  std::uint64_t passed_ = 0;                    // before which it sends no sums of its host's
  std::uint64_t told_ = 0, told_passed_ = 0, partial_ = 0, asked_ = 0;
  bool idle_ = false, told_idle_ = false;
  std::uint64_t tells_ = 0;
  std::multiset<std::uint64_t> unacked_;         // rounds of contributions
  std::multiset<std::uint64_t> sums_under_way_;  // rounds of sums of its host's
  std::uint64_t settled_ = 0, settling_ = 0;
  int settle_left_ = 0;
  std::vector<Settling> settle_requests_;
  std::vector<std::promise<void>> flushes_;
  std::vector<Request> held_, early_results_, early_fetches_;
  std::vector<std::uint64_t> frozen_;  // versions at the beginning of this generation, plus one
  std::uint64_t frozen_over_ = 0;
  std::map<int, std::vector<std::uint64_t>> states_;  // the others' versions
  int fetches_left_ = 0;
  std::exception_ptr failure_, refusal_;
  std::string optimizer_;
  std::uint32_t optimizer_call_ = 0;
  double rate_ = LearningRate().base(), used_rate_ = rate_;
  std::uint64_t rate_calls_ = 0;
  std::int64_t refused_ = 0, applied_ = 0;
  double waited_seconds_ = 0;
  std::int64_t sent_to_hosts_ = 0;

  std::map<std::vector<int>, Results> results_;  // by whom they go to
  std::map<int, Sums> sums_;                     // by the root

  Mutex mutex_;
  CondVar posted_;
  std::deque<Job> jobs_ PACELINE_GUARDED_BY(mutex_);
  bool stopping_ PACELINE_GUARDED_BY(mutex_) = false;
  std::thread thread_;
  std::unique_ptr<Node> node_;  // its threads use the others
};

}  // namespace paceline
