#include "local/local.h"

#include <paceline/detail/array_builder.h>
#include <paceline/kernel.h>
#include <paceline/log.h>
#include <paceline/mutex.h>
#include <paceline/updater.h>

#include <algorithm>
#include <map>

#include "checkpoint/saved_state.h"
#include "local/device_group.h"
#include "local/in_place_weights.h"
#include "local/local_tables.h"

namespace paceline {
namespace {

struct LocalKey {
  std::string name;
  int slice = 0;
  bool average = false;
  Shape shape;
  DType dtype = DType::kFloat32;
  Variable weights;                             // orders accesses to the weights
  NDArray array;                                // the caller's array
  std::unique_ptr<InPlaceKey> there = nullptr;  // weights that are updated in place; null: they are in the updater
  std::uint64_t call = 0;                       // number of the last call that names the key
  std::size_t place = 0;                        // index of the key in that call's list
};

class InThisProcess final : public LocalBackend {
 public:
  InThisProcess(const StoreOptions& options, const LocalSettings& settings)
      : engine_(options.engine ? *options.engine : default_engine()), settings_(settings) {}

  ~InThisProcess() override {
    for (auto& [name, key] : keys_) engine_.wait_unused(key.weights);
  }

  int rank() const override { return 0; }
  int size() const override { return 1; }
  int server_count() const override { return 0; }
  bool leads() const override { return true; }
  bool holds_tables() const override { return true; }

  void init(const std::vector<InitValue>& values) override {
    for (const InitValue& value : values) {
      require(keys_.count(value.key) == 0, "key '", value.key, "' is initialised twice");
      if (settings_.updates_in_place && InPlaceWeights::takes(value)) {
        std::unique_ptr<InPlaceKey> there = in_place_.add(value);
        const NDArray& weight = there->weight;
        weight.wait();
        keys_.emplace(value.key, LocalKey{value.key, 0, value.average, weight.shape(), weight.dtype(),
                                          weight.variable(), value.value, std::move(there)});
        continue;
      }
      const NDArray array = value.value.to(Device{}).contiguous();
      array.wait();
      LocalKey key{value.key, 0, value.average, array.shape(), array.dtype(), engine_.new_variable(), value.value};
      const auto kind = value.average ? SliceInfo::Kind::kAverage : SliceInfo::Kind::kGradient;
      const SliceInfo info{value.key, 0, array.size(), array.dtype(), kind};
      key.slice = updater_->add_slice(info, array.data());
      keys_.emplace(value.key, std::move(key));
    }
  }

  void set_optimizer(const Spec& optimizer) override {
    drain();
    updater_->set_rules(optimizer, "none", {});
    std::vector<InPlaceKey*> there;
    for (auto& [name, key] : keys_)
      if (key.there) there.push_back(key.there.get());
    in_place_.set_optimizer(optimizer, there);
    tables_.set_rules(RowRules::make(optimizer, "none", {}));
    optimizer_ = optimizer;
  }

  void set_learning_rate(double rate) override {
    drain();
    updater_->set_learning_rate(rate);
    in_place_.set_learning_rate(rate);
    tables_.set_learning_rate(rate);
  }

  void push(const std::vector<PushItem>& items, std::int64_t examples, int priority) override {
    push_pull(items, {}, examples, priority);
  }

  void pull(const std::vector<PullItem>& items, int priority) override {
    std::vector<NDArray> read;
    std::vector<Spread> spreads;
    Lock lock(mutex_);
    ++calls_;
    for (const PullItem& item : items) {
      LocalKey& key = find(item.key, item.out, "the output");
      if (key.there) {
        const NDArray& weight = key.there->weight;
        if (item.out.data() == weight.data() && item.out.is_contiguous()) continue;
        if (is_first(key, spreads.size())) spreads.push_back({&key, {}});
        spreads[key.place].outs.push_back(item.out);
        continue;
      }
      if (!is_first(key, read.size())) {
        fills(key, item.out);
        item.out.copy_from(read[key.place].view(item.out.shape()), priority);
        continue;
      }
      fills(key, item.out);
      const bool direct = is_direct(item.out);
      const NDArray out =
          direct ? item.out : ArrayBuilder::host_side(item.out.shape(), key.dtype, item.out.device(), engine_);
      if (!direct) fills(key, out);  // NCCL may report a failure between the two tasks
      engine_.push({"store.read", {}, Lane::kCompute, priority}, std::array{key.weights}, std::array{out.variable()},
                   [this, slice = key.slice, out](TaskContext&) { updater_->read(slice, -1, out.data()); });
      if (!direct) item.out.copy_from(out, priority);
      read.push_back(out);
    }
    spread(spreads, priority);
  }

  // The task that updates a key in the updater also fills one output of the key, the first one that is contiguous and
  // on the CPU.
  void push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights, std::int64_t examples,
                 int priority) override {
    require(examples >= 0, "a push of ", examples, " examples");
    struct Pushed {
      LocalKey* key;
      NDArray gradient;
      std::vector<NDArray> others;
      NDArray out;
    };
    std::vector<Pushed> pushes;
    std::vector<PullItem> reads;
    std::vector<InPlaceWeights::Push> there;
    pushes.reserve(gradients.size());
    {
      Lock lock(mutex_);
      ++calls_;
      for (const PushItem& item : gradients) {
        LocalKey& key = find(item.key, item.gradient, "the gradient");
        if (is_first(key, pushes.size()))
          pushes.push_back({&key, item.gradient, {}, {}});
        else if (settings_.several_devices)
          pushes[key.place].others.push_back(item.gradient);
        else
          throw InvalidArgument("key '" + item.key + "' is pushed twice in one call");
      }
      for (const PullItem& item : weights) {
        const LocalKey& key = find(item.key, item.out, "the output");
        Pushed* pushed = key.call == calls_ ? &pushes[key.place] : nullptr;
        if (pushed && !key.there && pushed->out.is_none() && is_direct(item.out) &&
            item.out.variable() != pushed->gradient.variable())
          pushed->out = item.out;
        else
          reads.push_back(item);
      }
      Together sums;
      for (Pushed& pushed : pushes)
        if (!pushed.others.empty())
          pushed.gradient = combine(*pushed.key, pushed.gradient, pushed.others, priority, sums);
      launch("store.sum", sums, priority);
      std::vector<std::shared_ptr<DeviceGroup>> groups;
      for (const auto& [devices, group] : groups_)
        if (group) groups.push_back(group);
      for (Pushed& pushed : pushes) {
        const bool averages = pushed.key->average || settings_.aggregate == Aggregate::kMean;
        if (averages && !pushed.others.empty())
          kernels::scale(1.0 / static_cast<double>(1 + pushed.others.size()), pushed.gradient, priority);
        if (InPlaceKey* const key = pushed.key->there.get()) {
          there.push_back({key, pushed.gradient.to(key->weight.device()).contiguous()});
          continue;
        }
        const NDArray gradient = pushed.gradient.to(Device{}).contiguous();
        std::vector<Variable> read{gradient.variable()}, written{pushed.key->weights};
        // If NCCL reports a failure after the copy to the host was pushed, the sum is poisoned, but its copy is not. So
        // the update reads the sum too.
        if (!pushed.others.empty()) read.push_back(pushed.gradient.variable());
        if (!pushed.out.is_none()) {
          fills(*pushed.key, pushed.out);
          written.push_back(pushed.out.variable());
        }
        engine_.push({"store.update", {}, Lane::kCompute, priority}, read, written,
                     [this, key = pushed.key, gradient, out = pushed.out, examples, groups](TaskContext&) {
                       for (const auto& group : groups) group->require_kept(key->weights);
                       const Contribution contribution{0, updater_->version(key->slice), examples, gradient.data()};
                       updater_->apply(key->slice, contribution, out.is_none() ? nullptr : out.data());
                     });
      }
      in_place_.push(there, examples, priority);
    }
    if (!reads.empty()) pull(reads, priority);
  }

  void init_tables(const std::vector<TableSpec>& tables) override { tables_.init(tables); }
  void fill_table(const std::string& table, const FirstRows& values) override { tables_.fill(table, values); }
  void push_pull_rows(const std::vector<RowPush>& pushes, const std::vector<RowPull>& pulls, std::int64_t examples,
                      int priority) override {
    tables_.push_pull(pushes, pulls, examples, priority);
  }

  void step_end() override {}
  GatheredValues all_gather(const std::string& name, const std::string& value) override {
    drain();
    return name.empty() ? GatheredValues() : GatheredValues{{0, value}};
  }
  void put_fact(const std::string& name, const std::string& value) override { facts_[name] = value; }
  Facts facts(const std::string& prefix) override {
    Facts found;
    for (auto fact = facts_.lower_bound(prefix); fact != facts_.end() && fact->first.starts_with(prefix); ++fact)
      found.insert(*fact);
    return found;
  }

  std::pair<int, int> data_part(std::int64_t) override { return {0, 1}; }
  void data_begin(std::int64_t epoch, const DataPlan& plan) override {
    on_request_.erase(epoch);
    if (plan.on_request) on_request_[epoch] = plan.all;
  }
  void data_commit(std::int64_t epoch, const PositionRanges& done, const std::string& note) override {
    if (!note.empty() && !done.empty()) notes_[epoch][done.front().first] = note;
    PositionRanges& all = committed_[epoch];
    all.insert(all.end(), done.begin(), done.end());
    std::sort(all.begin(), all.end());
    PositionRanges merged;
    for (const auto& [begin, end] : all) {
      if (!merged.empty() && begin <= merged.back().second)
        merged.back().second = std::max(merged.back().second, end);
      else
        merged.emplace_back(begin, end);
    }
    all = std::move(merged);
  }
  PositionRanges data_committed(std::int64_t epoch) override { return committed_[epoch]; }
  std::vector<std::string> data_notes(std::int64_t epoch) override {
    std::vector<std::string> notes;
    for (const auto& [first, note] : notes_[epoch]) notes.push_back(note);
    return notes;
  }
  PositionRanges data_take_over(std::int64_t epoch, bool, PieceSize) override {
    return std::exchange(on_request_[epoch], {});
  }

  StoreReport report() override {
    drain();
    StoreReport report;
    report.delays = updater_->delays();
    std::int64_t updates = 0;
    for (const auto& [name, key] : keys_)
      if (key.there) updates += key.there->updates;
    if (updates > 0) {
      if (report.delays.empty()) report.delays.emplace_back();
      report.delays.front().add(0, updates);
    }
    report.pushes = report.all_delays().count();
    report.refused = updater_->refused();
    report.pulled_bytes = updater_->pulled_bytes();
    tables_.add_to(report);
    return report;
  }

  StoreState save() override {
    drain();
    SavedStore store;
    for (const auto& [name, key] : keys_) {
      SavedKey& saved = store.keys[name];
      if (key.there) {
        saved = in_place_.save(*key.there);
        continue;
      }
      for (const auto& [slot, array] : updater_->save_slice(key.slice, &saved.counters)) {
        const NDArray shaped = array.view(key.shape);
        if (slot == "weight")
          saved.weight = shaped;
        else
          saved.slots[slot] = shaped;
      }
    }
    StoreState state = store.write();
    tables_.save(state);
    return state;
  }

  void load(const StoreState& state) override {
    drain();
    SavedStore store = SavedStore::read(state);
    store.require_known(keys_, tables_.all());
    adapt_state(store, *make_optimizer(optimizer_), *make_staleness("none", {}), false);
    if (!store.workers.empty()) LOG(WARNING) << "the checkpoint's state of workers is not used in mode local";
    // All errors come before any key or table changes.
    for (const auto& [name, key] : keys_) store.find(name, key.shape, key.dtype);
    tables_.load(state);
    std::vector<PullItem> pulls;
    for (auto& [name, key] : keys_) {
      const SavedKey& saved = store.keys.at(name);
      pulls.push_back({name, key.array});
      if (key.there) {
        in_place_.load(*key.there, saved);
        continue;
      }
      NamedArrays arrays{{"weight", saved.weight}};
      for (const auto& [slot, array] : saved.slots) arrays.emplace_back(slot, array);
      updater_->load_slice(key.slice, arrays, saved.counters);
      engine_.push({"store.load"}, {}, std::array{key.weights},
                   [](TaskContext&) {});  // an earlier push may have failed
    }
    pull(pulls, 0);
    for (const PullItem& item : pulls) item.out.wait();
  }

  void finish() override { drain(); }

  Weights weights_of(const std::string& name) const override {
    const LocalKey& key = keys_.at(name);
    return {name, key.slice, key.shape, key.dtype, key.weights};
  }
  Updater& updater() override { return *updater_; }

 private:
  LocalKey& find(const std::string& name) {
    const auto found = keys_.find(name);
    require(found != keys_.end(), "key '", name, "' was not initialised");
    return found->second;
  }

  LocalKey& find(const std::string& name, const NDArray& array, const char* use) {
    LocalKey& key = find(name);
    // The text of the error is made only when it is needed, because a call may hold ten thousand keys.
    if (array.size() != key.shape.size() || array.dtype() != key.dtype)
      throw InvalidArgument(
          str(use, " of key '", name, "' is ", array.describe(), ", expected ", name_of(key.dtype), " ", key.shape));
    return key;
  }

  // True for the first item of this call that names the key. `place` is then recorded as the place of the key.
  bool is_first(LocalKey& key, std::size_t place) PACELINE_REQUIRES(mutex_) {
    if (key.call == calls_) return false;
    key.call = calls_;
    key.place = place;
    return true;
  }

  static bool is_direct(const NDArray& out) { return out.is_contiguous() && out.device() == Device{}; }

  // The operations of one call that NCCL runs, by group of devices.
  using Together = std::map<std::shared_ptr<DeviceGroup>, std::vector<DeviceGroup::Operation>>;

  void launch(const char* task, Together& together, int priority) {
    for (auto& [group, operations] : together) group->run(task, std::move(operations), priority);
  }

  // Returns the group of the devices of `arrays` and of `one`. Null if NCCL cannot be used, for instance because two of
  // `arrays` are on one device.
  std::shared_ptr<DeviceGroup> group_of(std::span<const NDArray> arrays, const NDArray& one) PACELINE_REQUIRES(mutex_) {
    if (one.device().kind != DeviceKind::kCuda) return nullptr;
    std::vector<Device> devices;
    for (const NDArray& array : arrays) {
      if (array.device().kind != DeviceKind::kCuda || !array.is_contiguous()) return nullptr;
      devices.push_back(array.device());
    }
    std::sort(devices.begin(), devices.end());
    if (std::adjacent_find(devices.begin(), devices.end()) != devices.end()) return nullptr;
    const auto place = std::lower_bound(devices.begin(), devices.end(), one.device());
    if (place == devices.end() || *place != one.device()) devices.insert(place, one.device());
    if (one.dtype() != DType::kFloat32 && one.dtype() != DType::kFloat64) return nullptr;
    const auto found = groups_.find(devices);
    return found != groups_.end() ? found->second : groups_[devices] = DeviceGroup::make(devices, engine_);
  }

  // Returns the sum of `first` and `parts`. The sum does not depend on their order if each is on a device of its own.
  // Without NCCL, they are added in the order of the devices. If NCCL adds them, this function only appends the
  // operation to `sums`.
  NDArray combine(const LocalKey& key, const NDArray& first, std::vector<NDArray> parts, int priority, Together& sums)
      PACELINE_REQUIRES(mutex_) {
    parts.insert(parts.begin(), first);
    std::stable_sort(parts.begin(), parts.end(),
                     [](const NDArray& a, const NDArray& b) { return a.device() < b.device(); });
    const Device device = key.there                  ? key.there->weight.device()
                          : settings_.sums_on_device ? parts.front().device()
                                                     : Device{};
    const NDArray sum(key.shape, key.dtype, device, engine_);
    for (NDArray& part : parts) part = part.contiguous();
    const bool takes_part = std::ranges::find(parts, device, &NDArray::device) != parts.end();
    if (const auto group = takes_part ? group_of(parts, sum) : nullptr) {
      sums[group].push_back({key.name, key.weights, std::move(parts), sum, {}});
      return sum;
    }
    for (NDArray& part : parts) part = part.to(device).view(key.shape);
    kernels::sum_of(parts, sum, priority);
    return sum;
  }

  // Announces that a task will fill `out` with the key's weights, so that `out` is poisoned with them if NCCL reports a
  // failure late. Call this before the task is pushed, so that no failure comes between.
  void fills(const LocalKey& key, const NDArray& out) PACELINE_REQUIRES(mutex_) {
    for (const auto& [devices, group] : groups_)
      if (group) group->fills(key.weights, out.variable());
  }

  // A key whose weights are updated in place, and the outputs of a call that get these weights.
  struct Spread {
    LocalKey* key;
    std::vector<NDArray> outs;
  };
  void spread(std::span<const Spread> spreads, int priority) PACELINE_REQUIRES(mutex_) {
    Together together;
    for (const auto& [key, outs] : spreads) {
      const NDArray& weight = key->there->weight;
      for (const NDArray& out : outs) fills(*key, out);  // another group may have summed the gradients
      if (const auto group = group_of(outs, weight)) {
        together[group].push_back({key->name, {}, {}, weight, outs});
        continue;
      }
      for (const NDArray& out : outs) out.copy_from(weight.view(out.shape()), priority);
    }
    launch("store.spread", together, priority);
  }

  void drain() {
    for (auto& [name, key] : keys_) engine_.wait_unused(key.weights);
    tables_.drain();
  }

  Engine& engine_;
  const LocalSettings settings_;
  Mutex mutex_;  // push and pull may come from several threads
  std::uint64_t calls_ PACELINE_GUARDED_BY(mutex_) = 0;
  const std::unique_ptr<Updater> updater_ = make_updater();
  InPlaceWeights in_place_;  // pushes take turns by mutex_; no other function runs at the same time
  Spec optimizer_{"sgd", {}};
  std::map<std::string, LocalKey> keys_;
  std::map<std::vector<Device>, std::shared_ptr<DeviceGroup>> groups_ PACELINE_GUARDED_BY(mutex_);
  LocalTables tables_{engine_};
  std::map<std::int64_t, PositionRanges> on_request_;  // by epoch: positions that are not taken over yet
  std::map<std::int64_t, PositionRanges> committed_;   // by epoch
  std::map<std::int64_t, std::map<std::int64_t, std::string>> notes_;  // by epoch and first position
  Facts facts_;
};

}  // namespace

std::unique_ptr<LocalBackend> make_local_backend(const StoreOptions& options, const LocalSettings& settings) {
  return std::make_unique<InThisProcess>(options, settings);
}

}  // namespace paceline
