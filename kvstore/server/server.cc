#include "server.h"

#include <malloc.h>
#include <paceline/compression.h>
#include <paceline/cores.h>
#include <paceline/detail/host_memory.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "payload.h"
#include "served_partition.h"
#include "server_control.h"

namespace paceline {
namespace {

constexpr std::uint64_t kBusy = 4 << 20;  // bytes in 200 ms
constexpr int kQuietLooks = 5;
constexpr std::size_t kShort = 64 << 10;  // bytes pushed and pulled; applying them takes less than waking a thread

// The codecs that workers name, each made once.
class CodecCache {
 public:
  // `own`: the user's codecs, which workers may name besides those of the library.
  explicit CodecCache(Extensions own) : own_(std::move(own)) {}

  // Throws Corrupt if `text` names no codec, or if too many different codecs were named.
  const std::shared_ptr<const Codec>& at(const std::string& text) {
    const auto found = codecs_.find(text);
    if (found != codecs_.end()) return found->second;
    if (codecs_.size() >= kMost) throw Corrupt(str("more than ", kMost, " codecs were named"));
    std::shared_ptr<const Codec> codec;
    try {
      codec = make_codec(Spec::parse(text), own_);
    } catch (const InvalidArgument& error) {
      throw Corrupt(str("a codec is named '", text, "': ", error.what()));
    }
    if (!codec) throw Corrupt(str("'", text, "' does not encode"));
    return codecs_.emplace(text, std::move(codec)).first->second;
  }

 private:
  static constexpr std::size_t kMost = 64;
  const Extensions own_;
  std::map<std::string, std::shared_ptr<const Codec>> codecs_;
};

void give_freed_memory_back() {
  detail::trim_host();
  // A sanitizer replaces the allocator. glibc's own is then not prepared for several threads, so malloc_trim() is
  // unsafe. Clang defines no macros for sanitizers, so its builds never call malloc_trim().
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
  malloc_trim(0);
#endif
}

}  // namespace

struct Server::Impl {
  PartitionTable table;
  CodecCache codecs;        // used by the request handler only
  const bool own_policies;  // the user has policies of their own, which may be slow
  WaitStats waits;
  std::unique_ptr<ServerControl> control;
  std::vector<std::unique_ptr<ServerShard>> shards;  // destroyed before the members above, which their threads use

  std::atomic<std::uint64_t> moved{0};  // approximate bytes received and sent

  Mutex mutex;
  CondVar changed;
  std::vector<Peer> workers PACELINE_GUARDED_BY(mutex);
  bool over PACELINE_GUARDED_BY(mutex) = false;
  bool stopped PACELINE_GUARDED_BY(mutex) = false;

  std::unique_ptr<Node> node;  // last: its handlers use the other members, so it is destroyed first

  Impl(const ClusterConfig& config, const Extensions& own, int shard_count, PartitionLog* log)
      : codecs(own), own_policies(!own.policies.empty()) {
    own.check();
    for (int i = 0; i < shard_count; ++i) shards.push_back(std::make_unique<ServerShard>(waits, i));
    control = std::make_unique<ServerControl>(config.servers, table, shards, waits, own, log);
    Node::Handlers handlers;
    handlers.on_request = [this](const Request& request) { on_request(request); };
    handlers.on_roster = [this](const Roster& roster) { on_roster(roster); };
    node = std::make_unique<Node>(config, std::move(handlers));
  }
  void on_request(const Request& request) {
    for (const Frame& frame : request.message().payload) moved += frame.size;
    answer_or_refuse(request, [&] {
      require(request.from().role == Role::kWorker, "a server answers workers only");
      switch (request.message().header.kind) {
        case MessageKind::kPushPull: return push_pull(request);
        case MessageKind::kStepEnd: return step_end(request);
        case MessageKind::kAgree: return agree(request);
        default:
          require(control->on_request(request, node->rank()), "a server does not answer messages of kind ",
                  static_cast<int>(request.message().header.kind));
      }
    });
  }

  void push_pull(const Request& request) {
    auto call = std::make_shared<PushPullCall>(request);
    const Message& message = call->request.message();
    if (!call->body.ParseFromString(message.body)) throw Corrupt("the body of a push cannot be parsed");
    check_examples(call->body.examples());
    const auto parts = static_cast<std::size_t>(call->body.parts_size());
    call->parts.resize(parts);
    for (const std::string& codec : call->body.codecs()) call->codecs.push_back(codecs.at(codec));
    std::size_t bytes = 0;
    PayloadReader payload(message.payload);
    for (std::size_t p = 0; p < parts; ++p) {
      const wire::Part& part = call->body.parts(static_cast<int>(p));
      PushPullCall::Part& served = call->parts[p];
      served.partition = &table.at(part.partition());
      if (part.push_size() != part.base_size()) throw Corrupt("a push without a version for each slice");
      const std::vector<DensePartition::Slice>& slices = served.partition->state.slices();
      served.gradients.reserve(static_cast<std::size_t>(part.push_size()));
      int encoded = 0;
      for (int i = 0; i < part.push_size(); ++i) {
        const std::uint32_t slice = part.push(i);
        if (slice >= slices.size()) throw Corrupt(str("partition ", part.partition(), " has no slice ", slice));
        PushedSlice pushed{nullptr, slices[slice].bytes, nullptr};
        if (const auto codec = call->codec(i < part.push_codec_size() ? part.push_codec(i) : 0)) {
          if (!slices[slice].encodable || encoded >= part.push_bytes_size())
            throw Corrupt(str("slice ", slice, " of partition ", part.partition(), " cannot come encoded"));
          pushed = {nullptr, part.push_bytes(encoded++), codec.get()};
        }
        pushed.data = payload.next(pushed.bytes);
        bytes += slices[slice].bytes;
        served.gradients.push_back(pushed);
      }
      for (int i = 0; i < part.pull_size(); ++i) {
        const std::uint32_t slice = part.pull(i);
        if (slice >= slices.size()) throw Corrupt(str("partition ", part.partition(), " has no slice ", slice));
        bytes += slices[slice].bytes;
        const auto codec = call->codec(i < part.pull_codec_size() ? part.pull_codec(i) : 0);
        if (codec && !(slices[slice].encodable && codec->suits_weights() && codec->state_names().empty()))
          throw Corrupt(str("slice ", slice, " of partition ", part.partition(), " cannot be pulled encoded"));
      }
    }
    payload.expect_end();
    moved += bytes;
    call->aligned = payload.take_copies();
    call->parts_left = static_cast<int>(parts) + 1;
    post_parts(call, bytes <= kShort && !own_policies);
    call->finish_part();
  }

  // Posts one job per shard, so that a message of many parts costs few hand-overs.
  static void post_parts(const std::shared_ptr<PushPullCall>& call, bool short_work) {
    std::map<ServerShard*, std::vector<int>> jobs;
    for (std::size_t p = 0; p < call->parts.size(); ++p)
      jobs[call->parts[p].partition->shard].push_back(static_cast<int>(p));
    for (auto& [shard, parts] : jobs) {
      ServerShard::Job job = [call, parts = std::move(parts)](ServerShard& self) {
        for (const int part : parts) self.run(call, part);
      };
      short_work ? shard->post_short(std::move(job)) : shard->post(std::move(job));
    }
  }

  void step_end(const Request& request) {
    control->tell_cost();
    const auto body = std::make_shared<const wire::StepEnd>(parse_body<wire::StepEnd>(request.message()));
    node->reached(body->clock());
    const auto left = std::make_shared<std::atomic<std::size_t>>(shards.size());
    for (const auto& shard : shards) {
      shard->post([request, body, left](ServerShard& self) {
        self.step_end(request.from().rank, request.incarnation(), *body, [request, left](WorkerClocks::Range others) {
          if (left->fetch_sub(1) != 1) return;
          wire::StepEndReply reply;
          reply.set_slowest(others.slowest);
          reply.set_fastest(others.fastest);
          Message message;
          message.body = reply.SerializeAsString();
          request.reply(std::move(message));
        });
      });
    }
  }

  void agree(const Request& request) {
    const auto body = std::make_shared<const wire::AgreeRequest>(parse_body<wire::AgreeRequest>(request.message()));
    ServedPartition* const partition = &table.at(body->partition());
    if (body->slice() >= partition->state.slices().size())
      throw Corrupt(str("partition ", body->partition(), " has no slice ", body->slice()));
    partition->shard->post([request, body, partition](ServerShard& self) {
      answer_or_refuse(request, [&] { self.agree(request, *body, *partition); });
    });
  }

  void on_roster(const Roster& roster) {
    const auto shared = std::make_shared<const Roster>(roster);
    for (const auto& shard : shards) shard->post([shared](ServerShard& self) { self.set_roster(*shared); });
    control->set_live_workers(static_cast<int>(roster.live(Role::kWorker).size()));
    Lock lock(mutex);
    bool anybody = false;
    int present = 0;
    for (const Peer& peer : roster.peers) {
      if (peer.id.role != Role::kWorker) continue;
      anybody = true;
      const bool here = peer.alive && !peer.finished;
      present += here;
    }
    for (const Peer& known : workers) {
      const Peer* now = roster.find(known.id);
      const bool stays = now && now->incarnation == known.incarnation && now->alive && !now->finished;
      if (known.id.role == Role::kWorker && known.alive && !known.finished && !stays)
        forget(known, now && now->finished);
    }
    workers = roster.peers;
    over = anybody && present == 0;
    changed.notify_all();
  }

  void forget(const Peer& peer, bool finished) {
    if (!finished) LOG(WARNING) << name_of(peer.id) << " was lost; the job goes on without it";
    // The worker may be back already. Each shard runs its jobs in order, so this entry comes before the pulls of the
    // new incarnation.
    for (const auto& shard : shards) {
      shard->post([rank = peer.id.rank](ServerShard& self) { self.apply_to_all(LostEntry{{}, rank}); });
    }
  }

  // Returns false if stop() was called.
  bool run() {
    node->join();
    std::uint64_t moved_before = 0;
    for (int quiet = 0;;) {
      {
        const Lock lock(mutex);
        changed.wait_for(mutex, std::chrono::milliseconds(200),
                         [this]() PACELINE_REQUIRES(mutex) { return over || stopped; });
        if (over || stopped) return !stopped;
      }
      // malloc keeps freed memory for the next large messages (keep_freed_memory()). A quiet server gives it back.
      const std::uint64_t moved_now = moved;
      quiet = moved_now - moved_before > kBusy ? 0 : quiet + 1;
      moved_before = moved_now;
      if (quiet == kQuietLooks) give_freed_memory_back();
      if (const std::exception_ptr failure = node->failure()) std::rethrow_exception(failure);
    }
  }
};

Server::Server(const ClusterConfig& config, const Extensions& own, int shards, PartitionLog* log)
    : impl_(std::make_unique<Impl>(
          config, own, shards > 0 ? shards : std::clamp(core_budget() / 2, std::min(core_budget(), 2), 4), log)) {}

Server::~Server() = default;

void Server::run() {
  if (!impl_->run()) return impl_->node->close();
  impl_->control->log_report();
  impl_->node->leave();
}

void Server::stop() {
  Lock lock(impl_->mutex);
  impl_->stopped = true;
  impl_->changed.notify_all();
}

}  // namespace paceline
