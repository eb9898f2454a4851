// A partition is what the entries of its log make of it: those that servers apply in a job, applied to an empty
// partition, give the same weights, rule state, windows, open rounds and pulled weights, bit for bit.
#include <gtest/gtest.h>
#include <paceline/compression.h>
#include <paceline/mode.h>
#include <paceline/row_tables.h>
#include <paceline/staleness.h>
#include <support/cluster_in_process.h>
#include <support/own_objects.h>

#include <cstring>
#include <deque>
#include <mutex>
#include <random>
#include <typeinfo>

#include "partition_log.h"

namespace paceline::test {
namespace {

// Bytes in memory of their own, so that a copy of an entry borrows nothing.
template <class T>
const T* copied(const T* data, std::size_t count, std::deque<std::shared_ptr<void>>* owners) {
  const std::shared_ptr<std::byte[]> bytes(new std::byte[count * sizeof(T) + 64]);
  if (count > 0) std::memcpy(bytes.get(), data, count * sizeof(T));
  owners->push_back(bytes);
  return reinterpret_cast<const T*>(bytes.get());
}

RowGradients copied(const RowGradients& rows, std::size_t row_bytes, std::deque<std::shared_ptr<void>>* owners) {
  RowGradients copy = rows;
  const std::size_t count = rows.ids.size();
  copy.ids = {copied(rows.ids.data(), count, owners), count};
  if (rows.versions) copy.versions = copied(rows.versions, count, owners);
  // In order: a backup gets the gradients, not the array that a worker lends.
  const std::shared_ptr<std::byte[]> values(new std::byte[count * row_bytes + 64]);
  for (std::size_t i = 0; i < count; ++i)
    std::memcpy(values.get() + i * row_bytes, rows.gradient(i, row_bytes), row_bytes);
  owners->push_back(values);
  copy.values = values.get();
  copy.places = nullptr;
  copy.sums = nullptr;
  copy.array = 0;
  return copy;
}

// Applies every entry to a second partition, and compares the two.
template <class State>
class Mirror final : public EntryObserver {
 public:
  template <class... Arguments>
  explicit Mirror(const State& original, Arguments&&... arguments)
      : original_(original), copy_(std::forward<Arguments>(arguments)...) {}

  void on(const PushEntry& entry) override {
    if constexpr (std::is_same_v<State, DensePartition>) {
      PushEntry copy = entry;
      std::vector<SliceContribution> gradients(entry.gradients.begin(), entry.gradients.end());
      for (SliceContribution& gradient : gradients) {
        Contribution& made = gradient.contribution;
        const std::size_t bytes =
            made.codec ? made.bytes : copy_.slices()[static_cast<std::size_t>(gradient.slice)].bytes;
        made.gradient = copied(static_cast<const std::byte*>(made.gradient), bytes, &owners_);
      }
      codecs_.push_back(entry.owner);  // only the codecs are still those of the original
      copy.gradients = gradients;
      follow(copy);
    }
  }
  void on(const RowPushEntry& entry) override {
    if constexpr (std::is_same_v<State, RowPartition>) {
      RowPushEntry copy = entry;
      copy.rows = copied(entry.rows, copy_.row_bytes(), &owners_);
      copy.owner = nullptr;
      follow(copy);
    }
  }
  void on(const ReadEntry& entry) override {
    std::vector<ReadEntry::Slice> slices(entry.slices.begin(), entry.slices.end());
    ReadEntry copy = entry;
    copy.slices = slices;
    follow(copy);
    for (std::size_t i = 0; i < slices.size(); ++i) EXPECT_EQ(slices[i].version, entry.slices[i].version);
  }
  void on(const RowReadEntry& entry) override { follow_copy(entry); }
  void on(const SkipEntry& entry) override { follow_copy(entry); }
  void on(const CloseEntry& entry) override { follow_copy(entry); }
  void on(const AgreeEntry& entry) override { follow_copy(entry); }
  void on(const AnswerEntry& entry) override { follow_copy(entry); }
  void on(const AbstainEntry& entry) override { follow_copy(entry); }
  void on(const RulesEntry& entry) override { follow_copy(entry); }
  void on(const RateEntry& entry) override { follow_copy(entry); }
  void on(const WorkersEntry& entry) override { follow_copy(entry); }
  void on(const LostEntry& entry) override { follow_copy(entry); }
  void on(const LoadEntry& entry) override { follow_copy(entry); }
  void on(const RowSkipEntry& entry) override { follow_copy(entry); }
  void on(const RowCloseEntry& entry) override { follow_copy(entry); }
  void on(const RowLoadEntry& entry) override { follow_copy(entry); }

  std::uint64_t entries() const { return entries_; }

 private:
  template <class Entry>
  void follow_copy(const Entry& entry) {
    Entry copy = entry;
    follow(copy);
  }
  template <class Entry>
  void follow(Entry& entry) {
    if constexpr (requires(State & state) { state.apply(entry); }) {
      const EntryPlace place = entry.place;
      try {
        copy_.apply(entry);
      } catch (const Error&) {
        // The original has thrown the same, or the digests differ.
      }
      EXPECT_EQ(entry.place.lsn, place.lsn);
      ++entries_;
      if (entries_ < 40 || entries_ % 16 == 0) {
        EXPECT_EQ(copy_.digest(), original_.digest())
            << "after entry " << place.lsn << " of partition " << place.partition << ", a " << typeid(Entry).name();
      }
    } else {
      ADD_FAILURE() << "an entry of the other kind of partition";
    }
  }

  const State& original_;
  State copy_;
  std::deque<std::shared_ptr<void>> owners_;
  std::deque<std::shared_ptr<const void>> codecs_;
  std::uint64_t entries_ = 0;
};

class Mirrors final : public PartitionLog {
 public:
  EntryObserver* begin(const DensePartition& partition,
                       std::span<const std::pair<SliceInfo, const void*>> initial) override {
    const std::lock_guard lock(mutex_);
    return dense_
        .emplace_back(std::make_unique<Mirror<DensePartition>>(partition, partition.id(), initial, own_objects()))
        .get();
  }
  EntryObserver* begin(const RowPartition& rows) override {
    const std::lock_guard lock(mutex_);
    return tables_
        .emplace_back(
            std::make_unique<Mirror<RowPartition>>(rows, rows.spec(), rows.layout(), rows.number(), own_objects()))
        .get();
  }
  std::uint64_t entries() const {
    std::uint64_t sum = 0;
    for (const auto& mirror : dense_) sum += mirror->entries();
    for (const auto& mirror : tables_) sum += mirror->entries();
    return sum;
  }

 private:
  std::mutex mutex_;
  std::deque<std::unique_ptr<Mirror<DensePartition>>> dense_;
  std::deque<std::unique_ptr<Mirror<RowPartition>>> tables_;
};

constexpr std::int64_t kLarge = 30000, kSmall = 10, kRows = 200, kWidth = 6;

std::vector<float> random_values(std::int64_t count, std::mt19937& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

struct Job {
  std::string mode;
  Spec optimizer = optim::SGD{.lr = 0.05, .momentum = 0.9};
  Spec next = optim::Adam{.lr = 0.01, .schedule = {.form = "cosine", .examples = 40}};
  bool tables = false;
  bool loses_a_worker = false;
};

// Three workers train at different speeds; rules and rates change, a checkpoint is loaded, a worker may be lost.
std::uint64_t mirrored(const Job& job) {
  Mirrors mirrors;
  {
    ClusterInProcess cluster({.mode = job.mode, .workers = 3, .serial = false, .own = own_objects(), .log = &mirrors});
    const auto train = [&](int worker, KVStore& store, const std::vector<PullItem>& weights, int steps,
                           std::mt19937& random) {
      Engine& engine = cluster.engine(worker);
      for (int step = 0; step < steps; ++step) {
        std::vector<PushItem> gradients;
        for (const auto& [name, weight] : weights)
          gradients.push_back(
              {name, NDArray::from<float>(random_values(weight.size(), random), weight.shape(), {}, engine)});
        store.push_pull(gradients, weights, 1 + worker);
        NDArray out;
        if (job.tables) {
          std::vector<std::int64_t> ids;
          for (std::int64_t row = worker; row < kRows; row += 1 + static_cast<std::int64_t>(random() % 7))
            ids.push_back(row);
          const auto count = static_cast<std::int64_t>(ids.size());
          const NDArray rows = NDArray::from<std::int64_t>(ids, Shape{count}, {}, engine);
          const NDArray values =
              NDArray::from<float>(random_values(count * kWidth, random), Shape{count, kWidth}, {}, engine);
          out = NDArray::zeros(Shape{count, kWidth}, DType::kFloat32, {}, engine);
          store.push_pull_rows({{"t", rows, values}}, {{"t", rows, out}}, 1 + worker);
        }
        store.step_end();
        if (!out.is_none()) out.wait();
        if (worker == step % 3) weights.front().out.wait();  // the others run ahead
      }
      for (const auto& [name, weight] : weights) weight.wait();
    };
    cluster.run([&](int worker, KVStore& store) {
      Engine& engine = cluster.engine(worker);
      std::mt19937 random(static_cast<unsigned>(worker) + 1);
      std::vector<PullItem> weights;
      std::vector<InitValue> initial;
      for (const auto& [name, count] : {std::pair("large", kLarge), std::pair("small", kSmall)}) {
        weights.push_back({name, NDArray::full(Shape{count / 10, 10}, 0.5, DType::kFloat32, {}, engine)});
        initial.push_back({name, weights.back().out});
      }
      store.init(initial);
      if (job.tables)
        store.init_table(
            {.name = "t", .rows = kRows, .width = kWidth, .initializer = Spec::parse("normal:sigma=0.1,seed=3")});
      store.set_optimizer(job.optimizer);
      train(worker, store, weights, 4, random);
      store.barrier();
      const StoreState state = store.save();
      store.barrier();
      store.load(state);
      store.set_learning_rate(0.02);
      store.barrier();
      train(worker, store, weights, 3, random);
      store.barrier();
      store.set_optimizer(job.next);
      train(worker, store, weights, 3, random);
      store.barrier();  // without which the last of a mode with backups would wait for the others
    });
    if (job.loses_a_worker) {
      cluster.kill_worker(2);
      cluster.run([&](int worker, KVStore& store) {
        Engine& engine = cluster.engine(worker);
        std::mt19937 random(static_cast<unsigned>(worker) + 7);
        const NDArray weight = NDArray::full(Shape{kSmall / 10, 10}, 0, DType::kFloat32, {}, engine);
        train(worker, store, {{"small", weight}}, 4, random);
        store.barrier();
      });
    }
  }
  return mirrors.entries();
}

// Every mode, those that are not in the library, and options' other branches.
std::vector<std::string> modes() {
  std::vector<std::string> modes{"dist_sync:aggregate=sum", "dist_sync:backup=1", "dist_async:bound=1",
                                 "dist_async:bound=0..2"};
  for (const auto& [name, make] : mode_catalog().entries()) modes.push_back(name);
  for (const auto& [name, mode] : own_objects().modes) modes.push_back(name);
  return modes;
}

std::vector<std::string> policies() {
  std::vector<std::string> policies;
  for (const auto& [name, make] : staleness_catalog().entries()) policies.push_back(name);
  for (const auto& [name, policy] : own_objects().policies) policies.push_back(name);
  return policies;
}

// Takes the momentum from policies and codecs that keep it at the workers.
const Spec kSgd = optim::SGD{.lr = 0.02, .momentum = 0.5, .schedule = {.form = "cosine", .examples = 40}};

TEST(Partitions, AreTheSameBitsFromTheirLogInEveryMode) {
  for (const std::string& mode : modes()) {
    SCOPED_TRACE(mode);
    EXPECT_GT(mirrored({.mode = mode, .loses_a_worker = true}), 100u);
  }
}

TEST(Partitions, AreTheSameBitsWithEveryOptimizer) {
  for (const auto& [optimizer, make] : optimizer_catalog().entries())
    for (const std::string mode : {"dist_sync", "dist_async"}) {
      SCOPED_TRACE(optimizer + " " + mode);
      const Spec spec{optimizer, {{"lr_mult", "small:0.5+l*:2"}, {"weight_decay", "0.1"}, {"decay_mult", "small:0"}}};
      EXPECT_GT(mirrored({.mode = mode, .optimizer = spec}), 100u);
    }
}

TEST(Partitions, AreTheSameBitsWithEveryPolicy) {
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    EXPECT_GT(mirrored({.mode = "dist_async:staleness=" + policy, .next = kSgd}), 100u);
  }
  EXPECT_GT(mirrored({.mode = "dist_async:staleness=inverse_delay+delay_adaptive,power=0.7,offset=0.3"}), 100u);
}

TEST(Partitions, AreTheSameBitsWithEveryCodec) {
  std::vector<std::string> codecs;
  for (const auto& [name, make] : compression_catalog().entries()) codecs.push_back(name);
  for (const auto& [name, codec] : own_objects().codecs) codecs.push_back(name);
  for (const std::string& codec : codecs)
    for (const std::string mode : {"dist_sync", "dist_async"}) {
      SCOPED_TRACE(codec + " " + mode);
      EXPECT_GT(mirrored({.mode = mode + ":compression=" + codec, .next = kSgd}), 100u);
    }
}

TEST(Partitions, OfTablesAreTheSameBitsInEveryMode) {
  for (const std::string& mode : modes()) {
    if (!make_mode(Spec::parse(mode), own_objects())->traits().holds_tables) continue;
    SCOPED_TRACE(mode);
    EXPECT_GT(mirrored({.mode = mode, .tables = true, .loses_a_worker = true}), 100u);
  }
}

TEST(Partitions, OfTablesAreTheSameBitsWithEveryRule) {
  for (const auto& [optimizer, make] : optimizer_catalog().entries()) {
    SCOPED_TRACE(optimizer);
    const Spec spec{optimizer, {{"lr_mult", "t:0.5"}, {"weight_decay", "0.1"}, {"decay_mult", "t:2"}}};
    EXPECT_GT(mirrored({.mode = "dist_async", .optimizer = spec, .tables = true}), 100u);
  }
  for (const std::string& policy : policies()) {
    SCOPED_TRACE(policy);
    EXPECT_GT(mirrored({.mode = "dist_async:staleness=" + policy, .next = kSgd, .tables = true}), 100u);
  }
}

// The numbers of an entry count, not what the rules would make of them here.
TEST(Partitions, TakeTheResolvedNumbersOfAnEntry) {
  const float start = 1, gradient = 1;
  const std::pair<SliceInfo, const void*> slice({.name = "w", .end = 1, .dtype = DType::kFloat32}, &start);
  DensePartition partition(0, {&slice, 1});
  RulesEntry rules{{}, optim::SGD{.lr = 0.25}, "none", {}, {}};
  partition.apply(rules);
  const auto weight = [&] {
    ReadEntry::Slice read{0};
    ReadEntry entry{{}, {0, 1}, 1, {&read, 1}};
    struct Sink final : WeightSink {
      float value = 0;
      void reserve(std::size_t) override {}
      std::byte* room(std::size_t) override { return reinterpret_cast<std::byte*>(&value); }
      void add(const Snapshot& weights) override { std::memcpy(&value, weights.data.get(), sizeof value); }
    } sink;
    partition.apply(entry, &sink);
    return sink.value;
  };
  const auto push = [&](std::uint64_t sequence, ResolvedScalars scalars) {
    SliceContribution made{0, {.worker = 0, .version = partition.version(0), .examples = 1, .gradient = &gradient}};
    made.contribution.scalars = scalars;
    PushEntry entry;
    entry.from = {0, 1};
    entry.sequence = sequence;
    entry.gradients = {&made, 1};
    partition.apply(entry);
    return made.contribution.scalars.learning_rate;
  };
  EXPECT_EQ(push(1, {}), 0.25);
  EXPECT_EQ(weight(), 0.75f);
  EXPECT_EQ(push(2, {.learning_rate = 0.5}), 0.5);
  EXPECT_EQ(weight(), 0.25f);
  const std::uint64_t before = partition.digest();
  push(3, {.learning_rate = 0});
  EXPECT_NE(partition.digest(), before);  // the window has moved
}

}  // namespace
}  // namespace paceline::test
