#include "servers/averaging.h"

#include <paceline/detail/array_builder.h>
#include <paceline/error.h>
#include <paceline/staleness.h>
#include <paceline/updater.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include "checkpoint/saved_state.h"
#include "draw.h"
#include "servers/local_state.h"
#include "shared_failure.h"

namespace paceline {
namespace {

using Form = AveragingOptions::Form;

struct LocalKey {
  std::string name;
  int slice = 0;
  bool average = false;
  Shape shape;
  DType dtype = DType::kFloat32;
  NDArray array;              // the caller's array
  Variable weights;           // orders accesses to the weights in the updater
  NDArray base;               // the weights that were pulled last: the start of the round, or, if elastic, the centre
  NDArray sent;               // the array that is pushed to the servers
  std::int64_t examples = 0;  // seen since the last push to the servers
  bool updated = false;       // since the last push to the servers
  bool exchanged = false;     // in the present round
  std::uint64_t call = 0;     // number of the last push() that names the key
};

// The arguments of Backend::data_commit().
struct Commit {
  std::int64_t epoch = 0;
  PositionRanges done;
  std::string note;
};

class AveragingBackend final : public Backend {
 public:
  AveragingBackend(std::unique_ptr<ServersBackend> servers, const AveragingOptions& options, Engine& engine)
      : servers_(std::move(servers)), options_(options), engine_(engine) {
    if (options_.alpha == 0) options_.alpha = 0.9 / std::max(1, size());
    begin_round();
  }

  ~AveragingBackend() override {
    servers_.reset();  // tasks that wait for an answer fail now
    for (auto& [name, key] : keys_) engine_.wait_unused(key.weights);
  }

  int rank() const override { return servers_->rank(); }
  int size() const override { return servers_->size(); }
  int server_count() const override { return servers_->server_count(); }
  bool leads() const override { return servers_->leads(); }
  bool joined_late() const override { return servers_->joined_late(); }

  void init(const std::vector<InitValue>& values) override {
    std::vector<InitValue> bases;
    for (const InitValue& value : values) {
      NDArray base = value.value.to(Device{}).contiguous().clone();
      bases.push_back({value.key, std::move(base), value.average});
    }
    servers_->init(bases);
    const SavedStore job = joined_late() ? servers_->fetch_state() : SavedStore();
    for (std::size_t i = 0; i < values.size(); ++i) {
      LocalKey key;
      key.name = values[i].key;
      key.array = values[i].value;
      key.average = values[i].average;
      key.base = bases[i].value;
      key.shape = key.base.shape();
      key.dtype = key.base.dtype();
      key.weights = engine_.new_variable();
      key.sent = NDArray(key.shape, key.dtype, {}, engine_);
      key.base.wait();
      const auto kind = key.average ? SliceInfo::Kind::kAverage : SliceInfo::Kind::kGradient;
      const SliceInfo info{key.name, 0, key.base.size(), key.dtype, kind};
      key.slice = updater_->add_slice(info, key.base.data());
      // The schedule goes on from the examples of the job so far.
      if (const auto saved = job.keys.find(key.name); saved != job.keys.end())
        updater_->load_slice(key.slice, {{"weight", key.base}}, {.examples = saved->second.counters.examples});
      values[i].value.copy_from(key.base);
      values[i].value.wait();
      keys_.emplace(key.name, std::move(key));
    }
    begin_round();
  }

  void set_optimizer(const Spec& optimizer) override {
    drain();
    make_optimizer(optimizer);
    // Workers push the differences between old and new weights, and the servers subtract them as they are. In form
    // elastic, workers push their weights x, and the servers compute w <- w + alpha (x - w).
    Spec at_servers{"sgd", {{"lr", "1"}}};
    if (options_.form == Form::kElastic)
      at_servers.options = {{"lr", str(options_.alpha)}, {"rescale", "-1"}, {"weight_decay", "1"}};
    auto state = std::make_unique<LocalState>([this] { return local_state(); },
                                              [this](const NamedArrays& saved) { by_key(saved); });
    LocalState* const new_state = state.get();
    servers_->set_rules(at_servers, optimizer.text() + " at the workers", std::move(state));
    state_ = new_state;
    updater_->set_rules(optimizer, "none", {});
    optimizer_ = optimizer;
  }

  void set_learning_rate(double rate) override {
    drain();
    updater_->set_learning_rate(rate);
  }

  void push(const std::vector<PushItem>& items, std::int64_t examples, int priority) override {
    require(examples >= 0, "a push of ", examples, " examples");
    std::vector<LocalKey*> keys;
    ++calls_;
    for (const PushItem& item : items) {
      keys.push_back(&find(item.key, item.gradient, "the gradient"));
      if (std::exchange(keys.back()->call, calls_) == calls_)
        throw InvalidArgument("key '" + item.key + "' is pushed twice in one call");
    }
    if (!takes_part_) wait_for_own_round(priority);
    if (skipped_) return;
    for (std::size_t i = 0; i < items.size(); ++i) {
      LocalKey& key = *keys[i];
      const NDArray gradient = items[i].gradient.to(Device{}).contiguous();
      // The schedule of the learning rate counts the examples of the whole job.
      engine_.push({"store.update", {}, Lane::kCompute, priority}, std::array{gradient.variable()},
                   std::array{key.weights},
                   [this, slice = key.slice, gradient, seen = examples * share_](TaskContext&) {
                     updater_->apply(slice, {0, updater_->version(slice), seen, gradient.data()});
                   });
      key.examples += examples;
      key.updated = true;
    }
    if (steps_ + 1 >= options_.steps) meet(keys, priority);
  }

  void pull(const std::vector<PullItem>& items, int priority) override {
    for (const PullItem& item : items) {
      LocalKey& key = find(item.key, item.out, "the output");
      const bool direct = item.out.is_contiguous() && item.out.device() == Device{};
      const NDArray out =
          direct ? item.out : ArrayBuilder::host_side(item.out.shape(), key.dtype, item.out.device(), engine_);
      engine_.push({"store.read", {}, Lane::kCompute, priority}, std::array{key.weights}, std::array{out.variable()},
                   [this, slice = key.slice, out](TaskContext&) { updater_->read(slice, -1, out.data()); });
      if (!direct) item.out.copy_from(out, priority);
    }
  }

  void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights, std::int64_t examples,
                 int priority) override {
    push(gradients, examples, priority);
    pull(weights, priority);
  }

  void step_end() override {
    if (std::exchange(skipped_, false)) return;
    if (++steps_ >= options_.steps) end_round();
  }
  void reached(std::uint64_t step) override { servers_->reached(step); }

  GatheredValues all_gather(const std::string& name, const std::string& value) override {
    SharedFailure failure(rank());
    GatheredValues given = meet_all(name, value, failure);
    failure.rethrow();
    return given;
  }

  void put_fact(const std::string& name, const std::string& value) override { servers_->put_fact(name, value); }
  Facts facts(const std::string& prefix) override { return servers_->facts(prefix); }

  std::pair<int, int> data_part(std::int64_t epoch) override { return servers_->data_part(epoch); }
  void data_begin(std::int64_t epoch, const DataPlan& plan) override {
    end_round_of_commits();  // data_begin() gives back positions whose commit has not arrived
    servers_->data_begin(epoch, plan);
  }
  void data_commit(std::int64_t epoch, const PositionRanges& done, const std::string& note) override {
    // If this worker is lost before the servers have its weights, what it has learned from these positions is lost too.
    // So the commit is held back.
    const bool learned =
        std::any_of(keys_.begin(), keys_.end(), [](const auto& entry) { return entry.second.updated; });
    if (learned)
      hold({epoch, done, note});
    else
      servers_->data_commit(epoch, done, note);
  }
  PositionRanges data_committed(std::int64_t epoch) override {
    end_round_of_commits();
    return servers_->data_committed(epoch);
  }
  std::vector<std::string> data_notes(std::int64_t epoch) override { return servers_->data_notes(epoch); }
  PositionRanges data_take_over(std::int64_t epoch, bool wait, PieceSize size) override {
    if (wait) end_round_of_commits();
    return servers_->data_take_over(epoch, wait, size);
  }

  StoreReport report() override { return servers_->report(); }

  StoreState save() override {
    SharedFailure failure(rank());
    meet_all({}, {}, failure);
    failure.hear(servers_->all_gather("/before save", failure.told()));
    failure.rethrow();
    return servers_->save();
  }

  void load(const StoreState& state) override {
    // What failed before is loaded anew.
    for (auto& [name, key] : keys_) {
      engine_.wait_unused(key.base.variable());
      engine_.wait_unused(key.weights);
    }
    servers_->load_made([&] { return to_workers(SavedStore::read(state)); }, [this] { take_loaded(); });
  }

  void finish() override {
    drain();
    std::vector<LocalKey*> rest;
    for (auto& [name, key] : keys_)
      if (key.updated) rest.push_back(&key);
    send(rest, 0);
    send_commits();
    servers_->finish();
  }

 private:
  LocalKey& find(const std::string& name, const NDArray& array, const char* use) {
    const auto found = keys_.find(name);
    require(found != keys_.end(), "key '", name, "' was not initialised");
    LocalKey& key = found->second;
    if (array.size() != key.shape.size() || array.dtype() != key.dtype)
      throw InvalidArgument(
          str(use, " of key '", name, "' is ", array.describe(), ", expected ", name_of(key.dtype), " ", key.shape));
    return key;
  }

  // A barrier after which all workers hold the same weights.
  GatheredValues meet_all(const std::string& name, const std::string& value, SharedFailure& failure) {
    failure.run([this] { end_round_of_commits(); });
    GatheredValues given = servers_->all_gather(name, value);
    if (keys_.empty()) return given;
    // All workers are in the same round now. They exchange what they have learned since the last round.
    for (auto& [name, key] : keys_) key.exchanged = false;
    failure.run([this] {
      end_round();
      drain();
    });
    if (options_.form != Form::kElastic) return given;
    failure.hear(servers_->all_gather("/round", failure.told()));
    if (!failure) failure.run([this] { take_centres(); });
    failure.hear(servers_->all_gather("/centre", failure.told()));  // no worker moves the centre before all have it
    return given;
  }

  void take_centres() {
    std::vector<PullItem> centres;
    for (auto& [name, key] : keys_) centres.push_back({name, key.base});
    servers_->pull(centres, 0);
    for (auto& [name, key] : keys_) take_base(key, 0);
    drain();
  }

  void begin_round() {
    steps_ = 0;
    takes_part_ = options_.takes_part(servers_->clock(), rank(), size());
    const int live = std::max(1, servers_->live_workers());
    share_ = options_.form == Form::kFederated ? options_.chosen(live) : live;
    for (auto& [name, key] : keys_) key.exchanged = false;
  }

  // Begins a round with the weights that were pulled after a load, and with the loaded state, if there is one.
  void take_loaded() {
    auto loaded = by_key(state_ ? state_->take_loaded() : NamedArrays());
    for (auto& [name, key] : keys_) {
      key.base.wait();
      auto& [arrays, counters] = loaded[name];
      arrays.emplace_back("weight", key.base);
      updater_->load_slice(key.slice, arrays, counters);
      key.updated = false;
      key.examples = 0;
      engine_.push({"store.load"}, {}, std::array{key.weights}, [](TaskContext&) {});  // an earlier failure is over
      pull({{name, key.array}}, 0);
      key.array.wait();
    }
    begin_round();
  }

  // Leaves the present round to the others. Drops the gradient of this step. The next step waits for the weights of the
  // next round that this worker takes part in.
  void wait_for_own_round(int priority) {
    servers_->enter();
    do servers_->step_end();
    while (!options_.takes_part(servers_->clock(), rank(), size()));
    begin_round();
    std::vector<PullItem> pulls;
    for (auto& [name, key] : keys_) pulls.push_back({name, key.base});
    servers_->pull_after(pulls, servers_->clock(), priority);
    for (auto& [name, key] : keys_) take_base(key, priority);
    skipped_ = true;
  }

  // Ends this worker's round. First exchanges the keys that this worker has not exchanged in the round.
  void end_round() {
    std::vector<LocalKey*> rest;
    for (auto& [name, key] : keys_)
      if (!key.exchanged) rest.push_back(&key);
    meet(rest, 0);
    send_commits();
    servers_->step_end();
    begin_round();
  }

  // Ends the round if commits are held back, because other workers may wait for them.
  void end_round_of_commits() {
    if (!commits_.empty()) end_round();
  }

  // Holds a commit back. Positions without a note join the commit before them, so that a round needs few commits.
  void hold(Commit commit) {
    if (!commits_.empty() && commits_.back().epoch == commit.epoch && commits_.back().note.empty() &&
        commit.note.empty())
      commits_.back().done.insert(commits_.back().done.end(), commit.done.begin(), commit.done.end());
    else
      commits_.push_back(std::move(commit));
  }

  // Sends the held commits, which count when the earlier pushes of the round are answered.
  void send_commits() {
    for (const auto& [epoch, done, note] : std::exchange(commits_, {})) servers_->data_commit(epoch, done, note);
  }

  // Tasks: pushes what was learned since the last exchange, and takes over the new weights from the servers.
  void meet(const std::vector<LocalKey*>& keys, int priority) {
    if (keys.empty()) return;
    servers_->enter();
    if (options_.form == Form::kElastic)
      for (LocalKey* key : keys) key->updated = true;  // every key is drawn to the centre, even if it was not updated
    send(keys, priority);
    std::vector<PullItem> pulls;
    for (LocalKey* key : keys) {
      key->exchanged = true;
      pulls.push_back({key->name, key->base});
    }
    if (options_.form != Form::kElastic) servers_->pull_after(pulls, servers_->clock() + 1, priority);
    for (LocalKey* key : keys) {
      if (options_.form == Form::kElastic && !key->average)
        take_elastic(*key, priority);
      else
        take_base(*key, priority);
    }
  }

  void send(const std::vector<LocalKey*>& keys, int priority) {
    std::map<std::int64_t, std::pair<std::vector<PushItem>, std::vector<PullItem>>> calls;  // by number of examples
    for (LocalKey* key : keys) {
      if (!key->updated) continue;
      const bool difference = options_.form != Form::kElastic && !key->average;
      // The task does not name the base as read. If the pull of the base has failed, the weights that were pulled
      // before are still there, and the round goes on from them.
      engine_.push({"store.send", {}, Lane::kCompute, priority}, std::array{key->weights},
                   std::array{key->sent.variable(), key->base.variable()},
                   [this, slice = key->slice, base = key->base, sent = key->sent, difference](TaskContext&) {
                     updater_->read(slice, -1, sent.data());
                     if (difference) subtract_from(sent.dtype(), base.data(), sent.size(), sent.data());
                   });
      auto& [pushes, pulls] = calls[key->examples];
      pushes.push_back({key->name, key->sent});
      // Pull the centre after this push, in one message, so that no other push comes between.
      if (options_.form == Form::kElastic) pulls.push_back({key->name, key->base});
      key->examples = 0;
      key->updated = false;
    }
    for (const auto& [examples, items] : calls) servers_->push_pull(items.first, items.second, examples, priority);
  }

  void take_base(LocalKey& key, int priority) {
    engine_.push({"store.take", {}, Lane::kCompute, priority}, std::array{key.base.variable()}, std::array{key.weights},
                 [this, slice = key.slice, base = key.base](TaskContext&) {
                   updater_->change(slice, [&](void* weight) { std::memcpy(weight, base.data(), base.bytes()); });
                 });
  }

  void take_elastic(LocalKey& key, int priority) {
    engine_.push({"store.take", {}, Lane::kCompute, priority}, std::array{key.base.variable()}, std::array{key.weights},
                 [this, slice = key.slice, base = key.base](TaskContext&) {
                   // The centre has already moved by alpha of the distance. The worker moves by the same amount, which
                   // is this share of the rest.
                   const double share = options_.alpha / (1 - options_.alpha);
                   updater_->change(slice,
                                    [&](void* weight) { draw(base.dtype(), base.data(), share, base.size(), weight); });
                 });
  }

  void drain() {
    for (auto& [name, key] : keys_) {
      key.base.wait();  // throws the error if the pull of the base has failed
      engine_.wait_unused(key.weights);
    }
  }

  NamedArrays local_state() {
    drain();
    NamedArrays arrays;
    for (const auto& [name, key] : keys_) {
      SliceCounters counters;
      for (const auto& [slot, array] : updater_->save_slice(key.slice, &counters))
        if (slot != "weight") arrays.emplace_back(name + "/" + slot, array);
      arrays.emplace_back(name + "/" + kCounters, pack(counters));
    }
    return arrays;
  }

  // Sorts the state of a worker by keys. Throws InvalidArgument if the updater would refuse it.
  std::map<std::string, std::pair<NamedArrays, SliceCounters>> by_key(const NamedArrays& state) const {
    const std::vector<std::string> known = make_optimizer(optimizer_)->state_names();
    std::map<std::string, std::pair<NamedArrays, SliceCounters>> sorted;
    for (const auto& [name, array] : state) {
      const std::size_t slash = name.rfind('/');
      const std::string slot = name.substr(slash + 1);
      const auto key = keys_.find(name.substr(0, slash));
      if (key == keys_.end()) continue;
      auto& [arrays, counters] = sorted[key->first];
      const bool counts = slot == kCounters;
      require(counts || std::ranges::count(known, slot) > 0, "key '", key->first, "' has no state '", slot,
              "' under these rules");
      require(array.size() == (counts ? 2 : key->second.shape.size()) &&
                  array.dtype() == (counts ? DType::kFloat64 : key->second.dtype),
              "state '", slot, "' of key '", key->first, "' is ", array.describe(), " in the checkpoint");
      if (!counts) {
        arrays.emplace_back(slot, array);
        continue;
      }
      const std::vector<double> numbers = array.to_vector<double>();
      constexpr double kMost = std::int64_t{1} << 53;  // up to there a double counts exactly
      for (const double number : numbers)
        require(number >= 0 && number <= kMost, "state '", slot, "' of key '", key->first, "' counts ", number);
      counters.examples = static_cast<std::int64_t>(numbers[0]);
      counters.optimizer_updates = static_cast<std::int64_t>(numbers[1]);
    }
    return sorted;
  }

  // Adapts the state of a checkpoint of any mode to this one.
  StoreState to_workers(SavedStore store) const {
    store.require_known(keys_);
    adapt_state(store, *make_optimizer(optimizer_), *make_staleness("none", {}), false);
    divide_among_workers(store, size());
    return store.write();
  }

  std::unique_ptr<ServersBackend> servers_;
  AveragingOptions options_;
  Engine& engine_;
  const std::unique_ptr<Updater> updater_ = make_updater();
  std::map<std::string, LocalKey> keys_;
  Spec optimizer_{"sgd", {}};
  LocalState* state_ = nullptr;  // owned by servers_
  std::uint64_t calls_ = 0;      // number of calls of push()
  std::int64_t steps_ = 0;       // steps of the present round
  std::int64_t share_ = 1;       // number of live workers that train in a round
  std::vector<Commit> commits_;  // held back until the round ends
  bool takes_part_ = true;       // in the present round
  bool skipped_ = false;         // this step's gradient is dropped
};

}  // namespace

void check_averaging(const ModeSetting& setting, const AveragingOptions& averaging) {
  require(setting.staleness.empty() || setting.staleness == "none",
          "mode dist_local pushes no gradients that a staleness policy could correct; leave staleness=",
          setting.staleness, " out");
  const auto codec = setting.compression.make(setting.compression.push);
  require(!codec || !codec->votes(), "compression '", setting.compression.push.text(),
          "' has the workers vote, and mode dist_local averages differences of weights; name another codec");
  require(!setting.compression.active() || averaging.form != Form::kElastic,
          "averaging=elastic sends weights, which compression would change; use averaging=average with it");
}

std::unique_ptr<Backend> make_averaging_backend(std::unique_ptr<ServersBackend> servers,
                                                const AveragingOptions& averaging, const StoreOptions& options) {
  return std::make_unique<AveragingBackend>(std::move(servers), averaging,
                                            options.engine ? *options.engine : default_engine());
}

}  // namespace paceline
