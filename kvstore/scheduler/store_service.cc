#include "store_service.h"

#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/mutex.h>
#include <paceline/updater.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>
#include <optional>
#include <set>

#include "key_partition.h"
#include "parse_body.h"
#include "placement.h"
#include "replies.h"
#include "rows/table_layout.h"
#include "sparse.pb.h"
#include "store.pb.h"

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;

struct Declaration {
  std::string mode;
  std::vector<KeyInfo> keys;
};

// One collective call of init(), in three phases. First every worker declares its keys and gets the layout. Then one
// worker, the sender, provides the values. In the last phase every worker says that it holds the values.
struct InitCall {
  std::uint32_t number = 0;
  std::map<int, Declaration> declared;  // by rank
  std::map<int, Request> waiting;       // unanswered requests of the present phase
  std::optional<Layout> layout;         // set when the first phase is over
  std::string mismatch;                 // not empty: the error that every worker gets once all have declared
  bool refused = false;
  std::string why;        // not empty: why the sender could not send the values, which every worker gets to hear
  std::set<int> arrived;  // second phase: ranks that have asked
  int sender = 0;
  std::uint32_t attempt = 0;
  bool done = false;
  std::set<int> holding;  // third phase: ranks that hold the values
  bool over = false;
  Clock::time_point since = Clock::now();
};

// The filling of a table with its first rows. When the live worker with the lowest rank asks, it is told to send the
// rows. The other workers wait.
struct Filling {
  enum State { kOpen, kSending, kRefused, kDone };
  State state = kOpen;
  int sender = 0;
  std::string why;      // the sender's error, in state kRefused
  std::set<int> heard;  // ranks that got the refusal; when all live ones have, the table may be filled again
  std::map<int, Request> waiting;
  Clock::time_point since = Clock::now();
};

struct DeclaredTable {
  TableSpec spec;
  int worker = 0;  // rank that declared the table first
  Filling filling = {};
};

// Describes the first difference between two workers' declarations. Empty if they agree.
std::string difference(int rank_a, const std::vector<KeyInfo>& a, int rank_b, const std::vector<KeyInfo>& b) {
  std::map<std::string, const KeyInfo*> others;
  for (const KeyInfo& key : b) others[key.name] = &key;
  for (const KeyInfo& key : a) {
    const auto found = others.find(key.name);
    if (found == others.end())
      return str("worker ", rank_a, " initialises key '", key.name, "' and worker ", rank_b, " does not");
    if (!(key == *found->second))
      return str("key '", key.name, "' is ", key.describe(), " at worker ", rank_a, " and ", found->second->describe(),
                 " at worker ", rank_b);
    others.erase(found);
  }
  if (!others.empty())
    return str("worker ", rank_b, " initialises key '", others.begin()->first, "' and worker ", rank_a, " does not");
  return {};
}

class StoreService final : public SchedulerService {
 public:
  StoreService(int servers, double silence_seconds, std::shared_ptr<PlacementPolicy> policy)
      : has_servers_(servers > 0),
        policy_(policy ? std::move(policy) : make_balanced_placement(servers)),
        silence_(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(silence_seconds))),
        placement_(servers) {}

  bool on_request(const Request& request) override {
    const MessageKind kind = request.message().header.kind;
    if (kind != MessageKind::kInit && kind != MessageKind::kPlaceTables && kind != MessageKind::kFillTable &&
        kind != MessageKind::kSetOptimizer)
      return false;
    require(request.from().role == Role::kWorker, "only workers set up the store");
    Lock lock(mutex_);
    if (kind == MessageKind::kInit)
      on_init(request);
    else if (kind == MessageKind::kPlaceTables)
      on_tables(request);
    else if (kind == MessageKind::kFillTable)
      on_filling(request);
    else
      on_optimizer(request);
    return true;
  }

  void on_roster(const Roster& roster) override {
    Lock lock(mutex_);
    live_ = roster.live(Role::kWorker);
    std::map<int, std::uint64_t> incarnations;
    for (const Peer& peer : roster.peers)
      if (peer.id.role == Role::kWorker && peer.alive) incarnations[peer.id.rank] = peer.incarnation;
    incarnations.swap(incarnations_);
    const auto lost = [&](int rank) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
      const auto now = incarnations_.find(rank), before = incarnations.find(rank);
      return now == incarnations_.end() || (before != incarnations.end() && before->second != now->second);
    };
    for (auto& [number, call] : calls_) {
      std::erase_if(call.declared, [&](const auto& entry) { return lost(entry.first); });
      std::erase_if(call.waiting, [&](const auto& entry) { return lost(entry.first); });
      std::erase_if(call.arrived, lost);
      std::erase_if(call.holding, lost);
      if (!has_servers_ && call.done && !call.over && lost(call.sender)) replace_sender(call);
      finish_declarations(call);
      finish_values(call);
      finish_holding(call);
    }
    for (auto& [group, table] : tables_) {
      Filling& filling = table.filling;
      std::erase_if(filling.waiting, [&](const auto& entry) { return lost(entry.first); });
      std::erase_if(filling.heard, lost);
      if (filling.state == Filling::kSending && lost(filling.sender)) filling.state = Filling::kOpen;
      go_on(filling);
    }
  }

  void on_tick() override {
    Lock lock(mutex_);
    if (Clock::now() - named_ < silence_) return;
    named_ = Clock::now();
    for (const auto& [group, table] : tables_) {
      const Filling& filling = table.filling;
      if (filling.waiting.empty() || Clock::now() - filling.since < silence_ || live_.empty()) continue;
      LOG(WARNING) << "first rows of table '" << table.spec.name << "': " << filling.waiting.size()
                   << " workers have waited for "
                   << std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - filling.since).count()
                   << " s for worker " << (filling.state == Filling::kSending ? filling.sender : live_.front());
    }
    for (const auto& [number, call] : calls_) {
      if (call.waiting.empty() || Clock::now() - call.since < silence_) continue;
      std::string missing;
      for (const int rank : live_)
        if (call.done ? !call.holding.count(rank) : call.layout ? rank == call.sender : !call.declared.count(rank))
          missing += str(" worker ", rank);
      LOG(WARNING) << "init of keys: " << call.waiting.size() << " workers have waited for "
                   << std::chrono::duration_cast<std::chrono::seconds>(Clock::now() - call.since).count() << " s for"
                   << missing;
    }
  }

 private:
  void on_init(const Request& request) PACELINE_REQUIRES(mutex_) {
    const auto body = parse_body<wire::InitRequest>(request.message());
    if (body.call() == 0) throw Corrupt("init call 0: the first has number 1");
    // Workers number their calls from 1, so a new call has the next number. A larger number is not from a worker of
    // this job.
    if (body.call() > calls_.size() + 1) throw Corrupt(str("init call ", body.call(), " comes too early"));
    InitCall& call = calls_[body.call()];
    call.number = body.call();
    const int rank = request.from().rank;
    if (!call.why.empty()) return reply_why(request, call);
    if (body.held()) {
      if (body.attempt() != call.attempt) return reply_layout(request, call);
      if (!call.done) throw InvalidArgument("a worker holds values before they are at the servers");
      if (call.over) return reply_done(request, call);
      call.holding.insert(rank);
      call.waiting.insert_or_assign(rank, request);
      return finish_holding(call);
    }
    if (body.values()) {
      if (!call.layout) throw InvalidArgument("a worker sent values before the keys were declared");
      if (call.done) return reply_done(request, call);
      // A worker that has not heard of the former sender's loss has not sent its values, even if it is the sender now.
      // Tell it the present sender.
      if (static_cast<int>(body.sender()) != call.sender) return reply_layout(request, call);
      if (has_servers_ && !body.why().empty() && rank == call.sender) {
        call.why = body.why();
        give_values_up(call);
        return request.reply({});
      }
      call.arrived.insert(rank);
      call.waiting.insert_or_assign(rank, request);
      return finish_values(call);
    }
    if (call.refused) throw InvalidArgument(call.mismatch);
    if (call.layout) return declare_late(request, body, call);
    Declaration declaration{body.mode(), {}};
    for (const auto& key : body.keys()) declaration.keys.push_back(parse_key(key));
    call.declared.insert_or_assign(rank, std::move(declaration));
    call.waiting.insert_or_assign(rank, request);
    finish_declarations(call);
  }

  // Answers a worker that declares keys after the layout was made: a returned worker, or a repeated request.
  void declare_late(const Request& request, const wire::InitRequest& body, const InitCall& call) const
      PACELINE_REQUIRES(mutex_) {
    const int rank = request.from().rank;
    require(body.mode() == mode_, "worker ", rank, " runs mode ", body.mode(), ", but the job runs ", mode_);
    std::vector<KeyInfo> keys;
    for (const auto& key : body.keys()) keys.push_back(parse_key(key));
    const std::string mismatch = difference(call.sender, call.layout->keys, rank, keys);
    if (!mismatch.empty()) throw InvalidArgument(mismatch);
    reply_layout(request, call);
  }

  void finish_declarations(InitCall& call) PACELINE_REQUIRES(mutex_) {
    if (call.layout || call.refused || !all_live(call.declared)) return;
    const int first = call.declared.begin()->first;
    const std::vector<KeyInfo>& keys = call.declared.begin()->second.keys;
    if (mode_.empty()) {
      mode_ = call.declared.begin()->second.mode;
      mode_from_ = first;
    }
    for (const auto& [rank, its] : call.declared) {
      if (call.mismatch.empty() && its.mode != mode_)
        call.mismatch = str("worker ", rank, " runs mode ", its.mode, ", but worker ", mode_from_, " runs ", mode_);
      if (call.mismatch.empty()) call.mismatch = difference(first, keys, rank, its.keys);
    }
    if (call.mismatch.empty()) call.mismatch = refuse_keys(keys);
    if (call.mismatch.empty()) place_keys(call, keys);
    auto waiting = std::move(call.waiting);
    call.waiting.clear();
    call.refused = !call.mismatch.empty();
    if (call.refused) {
      for (const auto& [rank, request] : waiting) request.refuse(InvalidArgument(call.mismatch));
      return;
    }
    call.sender = live_.empty() ? first : live_.front();
    call.declared.clear();
    call.since = Clock::now();
    for (const auto& [rank, request] : waiting) reply_layout(request, call);
  }

  void place_keys(InitCall& call, const std::vector<KeyInfo>& keys) PACELINE_REQUIRES(mutex_) {
    Layout layout = make_layout(keys, std::max(placement_.servers(), 1), bytes_, partitions_);
    const std::vector<std::int64_t> bytes = partition_bytes(layout);
    if (has_servers_) {
      try {
        place(kDenseKeys, bytes.size(), policy_->place_keys(bytes));
      } catch (const std::exception& error) {
        call.mismatch = error.what();
        return;
      }
    }
    for (const KeyInfo& key : keys) known_keys_.insert(key.name);
    bytes_ = std::accumulate(bytes.begin(), bytes.end(), bytes_);
    partitions_ += static_cast<int>(bytes.size());
    call.layout = std::move(layout);
  }

  // Places the next `count` partitions of a group.
  void place(PartitionGroup group, std::size_t count, const std::vector<int>& servers) PACELINE_REQUIRES(mutex_) {
    require(servers.size() == count, "the placement policy names ", servers.size(), " servers for ", count,
            " partitions");
    placement_.add(group, placement_.partitions(group), servers);
  }

  void on_tables(const Request& request) PACELINE_REQUIRES(mutex_) {
    require(has_servers_, "a job without servers has no tables on servers");
    const auto body = parse_body<wire::PlaceTablesRequest>(request.message());
    wire::PlaceTablesReply answer;
    for (const wire::DeclareTable& declared : body.tables()) {
      const PartitionGroup group = place_table(parse_table(declared), request.from().rank);
      placement_.write(group, 0, placement_.partitions(group), answer.add_placements());
    }
    reply(request, answer);
  }

  PartitionGroup place_table(const TableSpec& spec, int worker) PACELINE_REQUIRES(mutex_) {
    const PartitionGroup group = hash_key(spec.name);
    if (const auto known = tables_.find(group); known != tables_.end()) {
      const TableSpec& other = known->second.spec;
      require(other.name == spec.name, "tables '", other.name, "' and '", spec.name,
              "' have the same 64-bit hash; rename one");
      require(same_table(other, spec), "table '", spec.name, "' is ", describe(spec), " at worker ", worker, " and ",
              describe(other), " at worker ", known->second.worker);
      return group;
    }
    const int partitions = TableLayout::partitions_for(spec, placement_.servers());
    place(group, static_cast<std::size_t>(partitions), policy_->place_table(spec, partitions));
    tables_.emplace(group, DeclaredTable{spec, worker});
    return group;
  }

  void on_filling(const Request& request) PACELINE_REQUIRES(mutex_) {
    const auto body = parse_body<wire::FillTableRequest>(request.message());
    const auto found = tables_.find(body.table());
    require(found != tables_.end(), "a table was filled before it was declared");
    Filling& filling = found->second.filling;
    const int rank = request.from().rank;
    if (body.state() != wire::FillTableRequest::ASKS) {
      if (filling.state == Filling::kSending && filling.sender == rank) {
        filling.state = body.state() == wire::FillTableRequest::HAS_SENT ? Filling::kDone : Filling::kRefused;
        filling.why = body.why();
        filling.heard = {rank};
      }
      reply_filled(request, filling);
    } else if (filling.state == Filling::kDone) {
      return reply_filled(request, filling);
    } else {
      if (filling.waiting.empty()) filling.since = Clock::now();
      filling.waiting.insert_or_assign(rank, request);
    }
    go_on(filling);
  }

  // Answers the workers that need not wait any longer.
  void go_on(Filling& filling) PACELINE_REQUIRES(mutex_) {
    if (filling.state == Filling::kRefused) {
      std::erase_if(filling.waiting, [&](const auto& entry) {
        const bool hears = filling.heard.insert(entry.first).second;
        if (hears) entry.second.refuse(InvalidArgument(filling.why));
        return hears;
      });
      if (all_live(filling.heard)) filling.state = Filling::kOpen;
    }
    if (filling.state == Filling::kDone)
      for (auto& [rank, request] : std::exchange(filling.waiting, {})) reply_filled(request, filling);
    if (filling.state != Filling::kOpen || live_.empty()) return;
    const auto first = filling.waiting.find(live_.front());
    if (first == filling.waiting.end()) return;
    filling.state = Filling::kSending;
    filling.sender = first->first;
    reply_filled(first->second, filling);
    filling.waiting.erase(first);
  }

  static void reply_filled(const Request& request, const Filling& filling) {
    wire::FillTableReply answer;
    answer.set_filled(filling.state == Filling::kDone);
    reply(request, answer);
  }

  std::string refuse_keys(const std::vector<KeyInfo>& keys) const PACELINE_REQUIRES(mutex_) {
    std::set<std::string> names;
    for (const KeyInfo& key : keys) {
      if (!names.insert(key.name).second || known_keys_.count(key.name))
        return "key '" + key.name + "' is initialised twice";
      if (key.dtype != DType::kFloat32 && key.dtype != DType::kFloat64)
        return "key '" + key.name + "' is " + name_of(key.dtype) + "; the store holds float32 and float64";
    }
    return {};
  }

  // The sender's request says that its values are in place. If the sender is lost before that, the live worker with the
  // lowest rank becomes the sender.
  void finish_values(InitCall& call) PACELINE_REQUIRES(mutex_) {
    if (!call.layout || call.done || live_.empty()) return;
    const bool sender_lives = std::binary_search(live_.begin(), live_.end(), call.sender);
    if (sender_lives && call.arrived.count(call.sender)) {
      call.done = true;
    } else if (sender_lives) {
      return;
    } else {
      call.sender = live_.front();
      call.arrived.clear();
    }
    auto waiting = std::move(call.waiting);
    call.waiting.clear();
    for (const auto& [rank, request] : waiting) {
      if (call.done)
        reply_done(request, call);
      else
        reply_layout(request, call);
    }
  }

  // Ends the call for all workers. A later call may declare its keys again. The call's partitions stay where they are
  // placed, and servers that have some of the values keep them.
  void give_values_up(InitCall& call) PACELINE_REQUIRES(mutex_) {
    values_given_up_ = true;
    for (const KeyInfo& key : call.layout->keys) known_keys_.erase(key.name);
    for (const auto& [rank, request] : std::exchange(call.waiting, {})) reply_why(request, call);
  }

  static void reply_why(const Request& request, const InitCall& call) {
    wire::InitReply answer;
    answer.set_why(call.why);
    reply(request, answer);
  }

  void finish_holding(InitCall& call) PACELINE_REQUIRES(mutex_) {
    if (!call.done || call.over || !all_live(call.holding)) return;
    call.over = true;
    auto waiting = std::move(call.waiting);
    call.waiting.clear();
    for (const auto& [rank, request] : waiting) reply_done(request, call);
  }

  // Without servers, only the sender and the workers in `holding` have the values. One of these workers replaces a lost
  // sender. If there is none, the second phase starts again.
  void replace_sender(InitCall& call) PACELINE_REQUIRES(mutex_) {
    if (!call.holding.empty()) {
      call.sender = *call.holding.begin();
      return;
    }
    call.done = false;
    ++call.attempt;
  }

  template <class Map>
  bool all_live(const Map& present) const PACELINE_REQUIRES(mutex_) {
    return !live_.empty() && std::all_of(live_.begin(), live_.end(), [&](int rank) { return present.count(rank) > 0; });
  }

  static void reply_done(const Request& request, const InitCall& call) {
    wire::InitReply answer;
    answer.set_done(true);
    answer.set_sender(static_cast<std::uint32_t>(call.sender));
    answer.set_attempt(call.attempt);
    reply(request, answer);
  }

  void reply_layout(const Request& request, const InitCall& call) const PACELINE_REQUIRES(mutex_) {
    wire::InitReply answer;
    const auto next = calls_.find(call.number + 1);
    answer.set_more(next != calls_.end() && next->second.layout);
    answer.set_attempt(call.attempt);
    answer.set_done(call.done);
    answer.set_sender(static_cast<std::uint32_t>(call.sender));
    write_layout(*call.layout, &answer);
    const std::vector<KeyPartition>& partitions = call.layout->partitions;
    if (has_servers_ && !partitions.empty()) {
      // A worker that joined after values were given up has not heard of the partitions that were placed for them.
      const int first = values_given_up_ ? 0 : partitions.front().id;
      const int end = partitions.front().id + static_cast<int>(partitions.size());
      placement_.write(kDenseKeys, first, end - first, answer.mutable_placement());
    }
    reply(request, answer);
  }

  void on_optimizer(const Request& request) PACELINE_REQUIRES(mutex_) {
    const auto body = parse_body<wire::OptimizerRequest>(request.message());
    if (body.call() > rules_.size() + 1) throw Corrupt(str("set_optimizer call ", body.call(), " comes too early"));
    const auto [entry, first] = rules_.try_emplace(body.call(), request.from().rank, body.rules());
    const auto& [rank, text] = entry->second;
    require(text == body.rules(), "worker ", request.from().rank, " sets the optimizer ", body.rules(), ", but worker ",
            rank, " has set ", text);
    request.reply({});
  }

  const bool has_servers_;
  const std::shared_ptr<PlacementPolicy> policy_;
  const Clock::duration silence_;
  Mutex mutex_;
  Placement placement_ PACELINE_GUARDED_BY(mutex_);
  std::vector<int> live_ PACELINE_GUARDED_BY(mutex_);
  std::map<int, std::uint64_t> incarnations_ PACELINE_GUARDED_BY(mutex_);
  std::map<std::uint32_t, InitCall> calls_ PACELINE_GUARDED_BY(mutex_);
  std::set<std::string> known_keys_ PACELINE_GUARDED_BY(mutex_);
  bool values_given_up_ PACELINE_GUARDED_BY(mutex_) = false;  // of some call of init
  std::string mode_ PACELINE_GUARDED_BY(mutex_);  // the mode of worker `mode_from_`, which all workers must run
  int mode_from_ PACELINE_GUARDED_BY(mutex_) = 0;
  int partitions_ PACELINE_GUARDED_BY(mutex_) = 0;      // of dense keys
  std::int64_t bytes_ PACELINE_GUARDED_BY(mutex_) = 0;  // of dense keys
  std::map<PartitionGroup, DeclaredTable> tables_ PACELINE_GUARDED_BY(mutex_);
  std::map<std::uint32_t, std::pair<int, std::string>> rules_
      PACELINE_GUARDED_BY(mutex_);  // call -> rank that set the optimizer first, and its text
  Clock::time_point named_ PACELINE_GUARDED_BY(mutex_) = Clock::now();
};

}  // namespace

std::unique_ptr<SchedulerService> make_store_service(int servers, double silence_seconds,
                                                     std::shared_ptr<PlacementPolicy> policy) {
  return std::make_unique<StoreService>(servers, silence_seconds, std::move(policy));
}

}  // namespace paceline
