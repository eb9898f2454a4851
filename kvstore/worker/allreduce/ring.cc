#include "allreduce/ring.h"

#include <paceline/detail/array_builder.h>
#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/staleness.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <optional>

#include "allreduce/ring_keys.h"
#include "allreduce/ring_peer.h"
#include "allreduce/ring_state.h"
#include "parse_body.h"
#include "send/compressor.h"
#include "shared_failure.h"
#include "store.pb.h"
#include "transport/transport_setting.h"

namespace paceline {
namespace {

class RingBackend final : public Backend {
 public:
  RingBackend(const ClusterConfig& config, const StoreOptions& options, const RingSetting& setting)
      : engine_(options.engine ? *options.engine : default_engine()),
        workers_(config.workers),
        setting_(setting),
        compressor_(setting.compression, engine_),
        peer_(config, setting.aggregate, setting.compression.make(setting.compression.push),
              setting.compression.make(setting.compression.pull)),
        client_(peer_.node()),
        scheduler_(peer_.node(), PeerId{Role::kScheduler, 0}) {
    peer_.node().set_waiting([pending = pending_] { return pending->seconds_waiting(); });
    look_around();
    if (setting_.compression.active()) LOG(INFO) << setting_.compression.describe();
    Lock lock(mutex_);
    new_step(0);
  }

  ~RingBackend() override {
    {
      Lock lock(mutex_);
      sent_.reset();
      applied_.reset();
    }
    // If an exception unwinds the stack, this worker does not leave the job, so the others count it as lost.
    scheduler_.close();
    peer_.close(!finished_ && std::uncaught_exceptions() == 0);
    // Tasks that wait for a gradient still refer to this object. They fail when they start.
    pending_->wait_none();
  }

  int rank() const override { return peer_.node().rank(); }
  int size() const override { return workers_; }
  int server_count() const override { return 0; }
  bool leads() const override { return client_.leader() == rank(); }
  bool joined_late() const override { return joined_late_; }

  void init(const std::vector<InitValue>& values) override {
    std::map<std::string, NDArray> here;
    wire::InitRequest request;
    request.set_call(++init_calls_);
    const std::string compression = setting_.compression.text();
    request.set_mode((setting_.aggregate == Aggregate::kSum ? "ring:aggregate=sum" : "ring") +
                     (compression.empty() ? "" : " with " + compression));
    for (const InitValue& value : values) {
      const NDArray array = value.value.to(Device{}).contiguous();
      array.wait();
      KeyInfo key{value.key, array.dtype(), array.shape(), value.average};
      key.row = setting_.compression.row_of(key);
      write_key(key, request.add_keys());
      here.emplace(value.key, array);
    }
    const auto ask = [this](const wire::InitRequest& question) {
      return parse_body<wire::InitReply>(client_.ask(MessageKind::kInit, question));
    };
    const wire::InitRequest declaration = request;
    wire::InitReply reply = ask(declaration);
    request.clear_keys();
    const bool last = !reply.more();
    const int first_piece = add_keys(parse_layout(reply), values, here);
    for (bool held = false; !held;) {
      request.set_held(false);
      request.set_values(true);
      while (!reply.done()) {
        if (reply.sender() == static_cast<std::uint32_t>(rank())) peer_.keep_values();
        request.set_sender(reply.sender());
        reply = ask(request);
      }
      request.set_attempt(reply.attempt());
      if (joining_ && last) {
        const std::uint64_t first = peer_.enter();
        joining_ = false;
        set_clock(first);
        pull_all();
      } else {
        const std::optional<int> source = joining_ ? member() : static_cast<int>(reply.sender());
        if (!source)
          throw NetworkError(
              "the workers that had the weights were lost before this one, which has come back, "
              "could get them");
        try {
          if (*source != rank()) peer_.fetch(*source, false);
        } catch (const NetworkError&) {
          if (const std::exception_ptr failure = peer_.node().failure()) std::rethrow_exception(failure);
          reply = ask(declaration);  // asks which worker has the values now
          continue;
        }
        std::vector<PullItem> pulls;
        for (const InitValue& value : values) pulls.push_back({value.key, value.value});
        pull(pulls, 0);
        for (const PullItem& item : pulls) item.out.wait();
      }
      request.set_values(false);
      request.set_held(true);
      reply = ask(request);
      held = reply.attempt() == request.attempt();
      if (!held) peer_.forget_values(first_piece);
    }
  }

  void set_optimizer(const Spec& optimizer) override {
    make_optimizer(optimizer);
    // After a barrier no round is open that one worker would apply by the old rules and another by the new ones.
    if (optimizer_calls_ > 0 && optimizer_calls_ >= peer_.optimizer_call()) barrier();
    client_.agree_on_rules(optimizer_calls_ + 1, optimizer.text());  // a refused call does not count
    pending_->wait_none();  // every worker applies the earlier pushes by the old rules
    peer_.set_rules(++optimizer_calls_, optimizer);
  }

  void set_learning_rate(double rate) override {
    require(rate >= 0, "the learning rate is ", rate, ", expected at least 0");
    peer_.set_learning_rate(rate);
  }

  void push(const std::vector<PushItem>& items, std::int64_t examples, int priority) override {
    push_pull(items, {}, examples, priority);
  }

  void pull(const std::vector<PullItem>& items, int priority) override { push_pull({}, items, 0, priority); }

  void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights, std::int64_t examples,
                 int priority) override {
    require(examples >= 0, "a push of ", examples, " examples");
    require(!joining_ || gradients.empty(),
            "the job has keys that this worker, which has come back, does not know: in ",
            "mode ring it initialises all of them before its first push");
    resume_if_paused();
    auto call = std::make_shared<RingCall>(pending_);
    std::vector<std::pair<NDArray, NDArray>> copies;
    {
      Lock lock(mutex_);
      collect(gradients, weights, priority, *call, copies);
      if (call->items.empty()) return;
      call->round = sent_->number();
      call->examples = examples;
      call->priority = priority;
      if (!gradients.empty()) {
        call->sent = sent_;
        call->applied = applied_;
      }
      const char* name = weights.empty() ? "store.push" : gradients.empty() ? "store.pull" : "store.push_pull";
      launch(name, std::move(call), priority);
    }
    for (const auto& [target, source] : copies) target.copy_from(source, priority);
  }

  void step_end() override {
    std::shared_ptr<Step> sent, applied;  // released outside the lock, because that may end the steps
    Lock lock(mutex_);
    const std::uint64_t number = sent_->number();
    sent = sent_;
    applied = applied_;
    new_step(number + 1);
    sent->close(sent_);
    applied->close(applied_);
    last_applied_ = applied;
  }
  void reached(std::uint64_t step) override { peer_.node().reached(step); }

  GatheredValues all_gather(const std::string& name, const std::string& value) override {
    // In a running job, the other workers have already passed the barriers before init().
    if (joining_ && joined_late_ && !client_.in_epoch()) return {};
    pending_->wait_none();
    if (!paused_) peer_.enter_idle(clock());
    GatheredValues given;
    try {
      given = client_.gather(client_.next_barrier(), clock(), joining_, name, value).second;
    } catch (...) {
      failed_.note(std::current_exception());  // this worker has left the rounds, which its pushes would miss
      throw;
    }
    // The owners have applied this worker's pushes, so no open round waits for this worker. Later rounds begin when the
    // first worker leaves the barrier, and this worker takes part in them.
    const std::uint64_t first = peer_.leave_idle(clock(), false);
    peer_.flush();  // the other workers then have the results of this worker's pieces
    const std::uint64_t next = client_.meet(client_.next_barrier(), first, joining_);
    paused_ = false;
    set_clock(peer_.leave_idle(next, true));
    client_.require_one_name();
    return given;
  }

  void put_fact(const std::string& name, const std::string& value) override { client_.put_fact(name, value); }
  Facts facts(const std::string& prefix) override { return client_.facts(prefix); }

  std::pair<int, int> data_part(std::int64_t epoch) override { return client_.data_part(epoch); }
  void data_begin(std::int64_t epoch, const DataPlan& plan) override {
    pending_->wait_none();  // data_begin() gives back positions whose commit has not arrived
    client_.data_begin(epoch, plan);
  }
  void data_commit(std::int64_t epoch, const PositionRanges& done, const std::string& note) override {
    // Positions count as delivered when the gradients that were computed from them are applied. A step may have ended
    // before its positions are committed, so the failure of any earlier push counts.
    Delivery::Action send = client_.commit(scheduler_, pending_, failed_, epoch, done, note);
    std::shared_ptr<Step> step;
    {
      Lock lock(mutex_);
      step = pushed_in_step_ ? applied_ : last_applied_.lock();
    }
    if (step)
      step->delivery()->then(std::move(send));
    else
      send(nullptr);
  }
  PositionRanges data_committed(std::int64_t epoch) override {
    pending_->wait_none();  // this worker's own commits
    return client_.data_committed(epoch);
  }
  std::vector<std::string> data_notes(std::int64_t epoch) override { return client_.data_notes(epoch); }
  PositionRanges data_take_over(std::int64_t epoch, bool wait, PieceSize size) override {
    if (wait && !paused_ && !joining_) {
      pending_->wait_none();
      peer_.enter_idle(clock());
      paused_ = true;
    }
    require_delivered(failed_);
    return client_.data_take_over(epoch, wait, size);
  }

  StoreReport report() override {
    StoreReport report = peer_.report();
    Lock lock(mutex_);
    compressor_.add_to(report);
    return report;
  }
  StoreState save() override;
  void load(const StoreState& state) override;

  void finish() override {
    if (std::exchange(finished_, true)) return;
    pending_->wait_none();
    peer_.enter_idle(clock());
    peer_.flush();
    peer_.node().leave();
    Lock lock(mutex_);
    compressor_.log_figures();
  }

 private:
  void collect(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights, int priority,
               RingCall& call, std::vector<std::pair<NDArray, NDArray>>& copies) PACELINE_REQUIRES(mutex_) {
    const std::uint64_t step = sent_->number(), number = ++calls_;
    call.items.reserve(std::max(gradients.size(), weights.size()));
    for (const PushItem& item : gradients) {
      RingKey& key = find_key(keys_, item.key, item.gradient, "the gradient");
      if (key.last_step == step)
        throw InvalidArgument(str("worker ", rank(), " pushed key '", item.key, "' twice in step ", step,
                                  "; call step_end() between steps"));
      if (key.call == number) throw InvalidArgument("key '" + item.key + "' is pushed twice in one call");
      expect_unwritten(key);
      key.call = number;
    }
    for (const PullItem& item : weights) expect_unwritten(find_key(keys_, item.key, item.out, "the output"));
    // All arguments are valid, so the call takes effect from here on.
    for (const PushItem& item : gradients) {
      RingKey& key = *keys_.at(item.key);
      key.place = call.items.size();
      RingCall::Item& added = call.items.emplace_back();
      added.key = &key;
      added.gradient = item.gradient.to(Device{}).contiguous();
      added.encoded = compressor_.encode(key.info, key.parts, added.gradient, rank(), workers_, priority);
      if (added.encoded) added.gradient = added.encoded->bytes;
    }
    for (const PushItem& item : gradients) keys_.at(item.key)->last_step = step;
    pushed_in_step_ = pushed_in_step_ || !gradients.empty();
    for (const PullItem& item : weights) {
      RingKey& key = *keys_.at(item.key);
      NDArray out = item.out;
      if (!out.is_contiguous() || out.device() != Device{}) {
        out = ArrayBuilder::host_side(item.out.shape(), key.info.dtype, item.out.device(), engine_);
        copies.emplace_back(item.out, out);
      }
      key.weight = out.shape() == key.info.shape ? out : out.view(key.info.shape);
      const bool with_push = key.call == number && call.items[key.place].out.is_none();
      RingCall::Item& entry = with_push ? call.items[key.place] : call.items.emplace_back();
      entry.key = &key;
      entry.out = out;
      // If the key was pushed in this step, the pull gets the weights for the next step.
      entry.need = key.last_step == step ? step + 1 : step;
    }
  }

  void launch(const char* name, std::shared_ptr<RingCall> call, int priority) PACELINE_REQUIRES(mutex_) {
    std::vector<Variable> reads, writes;
    std::vector<RingKey*> shared;
    for (const RingCall::Item& item : call->items) {
      if (!item.gradient.is_none())
        reads.push_back(item.gradient.variable());
      else if (item.key->call != calls_)   // not pushed in this call
        reads.push_back(item.key->order);  // so that the pull fails if an earlier push has failed
      writes.push_back(item.key->order);
      if (item.out.is_none()) continue;
      writes.push_back(item.out.variable());
      if (item.key->shared && item.out.shares_memory_with(*item.key->shared)) shared.push_back(item.key);
    }
    engine_.push_async({name, {}, Lane::kCommunication, priority}, reads, writes,
                       [this, call = std::move(call)](TaskContext&, Completion completion) {
                         // Passes a copy of `call`. The closure keeps its own reference, so the destructor of this
                         // backend waits until start() returns.
                         peer_.start(call, std::move(completion));
                       });
    for (RingKey* key : shared) key->shared_version = key->shared->variable().version();
  }

  // Returns the number of the first new piece.
  int add_keys(const Layout& layout, const std::vector<InitValue>& values, const std::map<std::string, NDArray>& here) {
    std::vector<RingKey*> keys;
    std::vector<NDArray> arrays;
    Lock lock(mutex_);
    for (const KeyInfo& info : layout.keys) {
      auto key = std::make_unique<RingKey>();
      key->info = info;
      key->encodes_mean = compressor_.pull_codec(info) != nullptr;
      key->order = engine_.new_variable();
      keys.push_back(key.get());
      arrays.push_back(here.at(info.name));
      keys_[info.name] = std::move(key);
    }
    take_arrays(keys_, values);
    return peer_.add_keys(layout, keys, arrays);
  }

  // Another worker in the ring, if there is one.
  std::optional<int> member() const {
    for (const Peer& peer : peer_.node().roster().peers)
      if (peer.id.role == Role::kWorker && peer.alive && peer.entered && peer.id.rank != rank()) return peer.id.rank;
    return std::nullopt;
  }

  // Copies the weights of all keys to the arrays that hold the worker's weights. Earlier writes of the caller to shared
  // arrays are allowed, and are overwritten.
  void pull_all() {
    std::vector<PullItem> pulls;
    {
      Lock lock(mutex_);
      for (const auto& [name, key] : keys_) {
        pulls.push_back({name, key->weight});
        key->order = engine_.new_variable();  // no call is in flight, and an earlier push may have failed
        if (key->shared) key->shared_version = key->shared->variable().version();
      }
    }
    pull(pulls, 0);
    for (const PullItem& item : pulls) item.out.wait();
  }

  void look_around() {
    for (;;) {
      const auto [passed, late] = client_.standing();
      joining_ = late;
      joined_late_ = late && passed > 0;
      if (!late || passed % 2 == 0) return;
      // A barrier consists of two meetings, and the other workers are between the two. They go on when this worker
      // comes to the second.
      client_.meet(passed + 1, 0, true);
    }
  }

  void new_step(std::uint64_t number) PACELINE_REQUIRES(mutex_) {
    sent_ = std::make_shared<Step>(number, [this](std::uint64_t ended) { peer_.end_step(ended); });
    applied_ = std::make_shared<Step>(number, nullptr, &failed_);
    pushed_in_step_ = false;
  }

  std::uint64_t clock() {
    Lock lock(mutex_);
    return sent_->number();
  }

  void set_clock(std::uint64_t clock) {
    Lock lock(mutex_);
    if (sent_->number() == clock) return;
    sent_->cancel();
    new_step(clock);
  }

  // Of several threads that push after a pause, one resumes and the others wait for it.
  void resume_if_paused() {
    if (!paused_) return;
    const Lock lock(resume_mutex_);
    if (!paused_) return;
    set_clock(peer_.leave_idle(clock(), false));
    paused_ = false;
  }

  Engine& engine_;
  const int workers_;
  const RingSetting setting_;
  Compressor compressor_ PACELINE_GUARDED_BY(mutex_);
  Answers failed_;  // the first error of a push; what is committed from then on does not count as delivered
  mutable RingPeer peer_;
  SchedulerClient client_;
  Outbox scheduler_;
  const std::shared_ptr<Pending> pending_ = std::make_shared<Pending>();

  Mutex mutex_;  // calls of push, pull and step_end may come from several threads
  RingKeys keys_ PACELINE_GUARDED_BY(mutex_);
  std::uint64_t calls_ PACELINE_GUARDED_BY(mutex_) = 0;
  bool pushed_in_step_ PACELINE_GUARDED_BY(mutex_) = false;
  std::shared_ptr<Step> sent_ PACELINE_GUARDED_BY(mutex_), applied_ PACELINE_GUARDED_BY(mutex_);
  std::weak_ptr<Step> last_applied_ PACELINE_GUARDED_BY(mutex_);

  std::uint32_t init_calls_ = 0, optimizer_calls_ = 0;
  Mutex resume_mutex_;
  std::atomic<bool> paused_ = false;
  bool finished_ = false;
  bool warned_ = false;       // of what checkpoints lack
  bool joining_ = false;      // this worker joined after the start, and is not in the ring yet
  bool joined_late_ = false;  // the others had passed a barrier when this worker joined
};

// Every worker holds all weights and state, so the leader can save them alone.
StoreState RingBackend::save() {
  barrier();
  StoreState state;
  const int leader = client_.met_leader();
  SharedFailure failure(rank());
  if (leader == rank())
    failure.run([&] {
      Lock lock(mutex_);
      state = gather(keys_, peer_, engine_).write();
      state.counters.emplace_back("workers", std::to_string(workers_));
      const auto& codec = compressor_.push_codec();
      if (codec && !codec->codec->state_names().empty() && !std::exchange(warned_, true))
        LOG(WARNING) << "a checkpoint of mode ring lacks the state of its codec: what pushes have not yet delivered is "
                        "lost when a job resumes";
    });
  failure.hear(all_gather("/saved", failure.told()), leader);
  failure.rethrow();
  return state;
}

void RingBackend::load(const StoreState& state) {
  barrier();
  const int leader = client_.met_leader();
  SharedFailure failure(rank());
  if (leader == rank())
    failure.run_for_all([&] {
      Lock lock(mutex_);
      SavedStore store = SavedStore::read(state);
      store.require_known(keys_);
      adapt_state(store, *make_optimizer(peer_.optimizer()), *make_staleness("none", {}), false);
      if (std::ranges::any_of(store.workers, [](const auto& worker) { return !worker.second.empty(); }))
        LOG(WARNING) << "the checkpoint's state of workers is not used in mode ring";
      peer_.load(cut(store, keys_));
    });
  // All workers get the same answer, so either all of them go on or none.
  failure.hear(all_gather("/load", failure.told()), leader);
  failure.rethrow();
  if (leader != rank()) failure.run([&] { peer_.fetch(leader, true); });
  failure.hear(all_gather("/loaded", failure.told()));
  {
    Lock lock(mutex_);
    compressor_.forget_state();  // the state belongs to gradients before the load
  }
  pull_all();
  failure.rethrow(kLoadedInPart);
}

}  // namespace

std::unique_ptr<Backend> make_ring_backend(const ClusterConfig& config, const Spec& mode, const StoreOptions& options) {
  const RingSetting setting = check_ring(mode, config, options.own);
  ClusterConfig own = config;
  if (const std::string transport = Options(mode.options).get("transport", ""); !transport.empty())
    own.transport = transport;
  return std::make_unique<RingBackend>(own, options, setting);
}

}  // namespace paceline
