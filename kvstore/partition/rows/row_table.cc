#include "rows/row_table.h"

#include <paceline/error.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <numeric>

#include "round_factors.h"
#include "stream_copy.h"

namespace paceline {
namespace {

// How many rows ahead memory is prefetched.
constexpr std::size_t kAhead = 64;

std::uint64_t get_number(const std::byte* at) {
  std::uint64_t value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

// Hides the size from gcc. If gcc knows that a copy is short, it emits `rep movs`. This instruction takes longer to
// begin than the copy of a row, and waits for earlier prefetches.
void copy_row(void* to, const void* from, std::size_t bytes) {
  asm("" : "+r"(bytes));
  std::memcpy(to, from, bytes);
}

void put_number(std::byte* at, std::uint64_t value) { std::memcpy(at, &value, sizeof value); }

// Calls visit(type), where `type` is a null pointer to the element type.
template <class Visitor>
auto with_type(DType dtype, Visitor visit) {
  return dtype == DType::kFloat32 ? visit(static_cast<float*>(nullptr)) : visit(static_cast<double*>(nullptr));
}

// Counts delays. Small delays take no look-up.
class DelayCounts {
 public:
  void add(std::int64_t delay) {
    if (delay < static_cast<std::int64_t>(small_.size()))
      ++small_[static_cast<std::size_t>(delay)];
    else
      large_.add(delay);
  }
  void add_to(Histogram& histogram) const {
    for (std::size_t delay = 0; delay < small_.size(); ++delay)
      if (small_[delay] > 0) histogram.add(static_cast<std::int64_t>(delay), small_[delay]);
    histogram.merge(large_);
  }

 private:
  std::array<std::int64_t, 64> small_{};
  Histogram large_;
};

Histogram& delays_of(std::vector<Histogram>& delays, int worker) {
  const auto index = static_cast<std::size_t>(worker);
  if (delays.size() <= index) delays.resize(index + 1);
  return delays[index];
}

}  // namespace

void RowFigures::add(const RowFigures& other) {
  if (delays.size() < other.delays.size()) delays.resize(other.delays.size());
  for (std::size_t worker = 0; worker < other.delays.size(); ++worker) delays[worker].merge(other.delays[worker]);
  refused += other.refused;
  rows += other.rows;
  bytes += other.bytes;
  pulled_bytes += other.pulled_bytes;
}

RowTable::RowTable(TableSpec table, int block_bits)
    : spec_(std::move(table)),
      initializer_(spec_),
      block_bits_(block_bits),
      row_bytes_(paceline::row_bytes(spec_)),
      rules_(RowRules::initial()),
      rows_(make_store(*rules_)) {}

RowStore RowTable::make_store(const RowRules& rules) const {
  return RowStore(block_bits_, kHead, (1 + rules.state_names.size()) * row_bytes_);
}

void RowTable::set_rules(std::shared_ptr<const RowRules> rules) {
  Lock lock(mutex_);
  const auto& old = rules_->state_names;
  if (rules->state_names != old) {
    RowStore moved = make_store(*rules);
    for (const std::int64_t row : rows_.rows_from(0, rows_.size())) {
      const RowStore::Record from = rows_.record(rows_.find(row)), to = moved.record(moved.add(row));
      std::memcpy(to.head, from.head, kHead);
      std::memcpy(to.body, from.body, row_bytes_);
      for (std::size_t state = 0; state < rules->state_names.size(); ++state) {
        const auto same = std::find(old.begin(), old.end(), rules->state_names[state]);
        if (same != old.end())
          std::memcpy(to.body + state_offset(state),
                      from.body + state_offset(static_cast<std::size_t>(same - old.begin())), row_bytes_);
      }
    }
    rows_ = std::move(moved);
  }
  if (!rules->needs_pulled) pulled_.clear();
  rules_ = std::move(rules);
  factors_ = rules_->multipliers.of(spec_.name);
  preparation_ = rules_->preparation;
  preparation_.weight_decay *= factors_.weight_decay;
}

void RowTable::set_workers(int live) {
  Lock lock(mutex_);
  workers_ = live;
}

StaleContext RowTable::context(RowScalars* scalars) const {
  StaleContext context;
  if (!scalars->resolved()) scalars->learning_rate = rules_->rate.at(examples_) * factors_.learning_rate;
  context.learning_rate = scalars->learning_rate;
  context.peak_rate = rules_->rate.base() * factors_.learning_rate;
  context.step_size = rules_->optimizer->step_size();
  context.workers = workers_;
  return context;
}

void RowTable::initialise(std::int64_t row, std::byte* values) const {
  with_type(spec_.dtype, [&]<class T>(T*) { initializer_.fill(row, reinterpret_cast<T*>(values)); });
}

RowStore::Record RowTable::touch(std::int64_t row, RowStore::Slot slot) {
  if (slot != RowStore::kAbsent) return rows_.record(slot);
  const RowStore::Record record = rows_.record(rows_.add(row));
  initialise(row, record.body);
  return record;
}

// Writes rows to the memory of a RowAnswer.
class RowTable::Answering {
 public:
  Answering(RowTable& table, const RowAnswer& answer, std::size_t rows) PACELINE_REQUIRES(table.mutex_)
      : table_(table), answer_(answer) {
    if (answer.worker >= 0 && table.rules_->needs_pulled)
      remembered_ =
          &table.pulled_.try_emplace(answer.worker, table.block_bits_, kRememberedHead, table.row_bytes_).first->second;
    // Many rows would not stay in the second-level cache until they are sent or copied on. stream_copy() goes past the
    // caches only for whole cache lines.
    constexpr std::size_t kLine = 64, kMany = std::size_t{1} << 20;
    streams_ = !remembered_ && table.row_bytes_ % kLine == 0 && rows * table.row_bytes_ >= kMany;
  }
  ~Answering() { stream_end(); }
  Answering(const Answering&) = delete;

  // Writes row number i of the answer. `record` is null if the row does not exist.
  void write(std::size_t i, std::int64_t row, const RowStore::Record* record) {
    std::byte* const values = answer_.values + i * table_.row_bytes_;
    if (!record) {
      answer_.versions[i] = 0;
      table_.initialise(row, values);
    } else {
      answer_.versions[i] = get_number(record->head);
      if (streams_)
        stream_copy(record->body, values, table_.row_bytes_);
      else
        std::memcpy(values, record->body, table_.row_bytes_);
    }
    if (remembered_) table_.remember(*remembered_, row, answer_.call, &answer_.versions[i], values);
  }

 private:
  const RowTable& table_;
  const RowAnswer& answer_;
  RowStore* remembered_ = nullptr;
  bool streams_ = false;
};

std::uint64_t RowTable::apply(const RowGradients& push, RowScalars* scalars, const RowAnswer* answer) {
  Lock lock(mutex_);
  std::optional<Answering> answering;
  if (answer) answering.emplace(*this, *answer, push.ids.size());
  return with_type(spec_.dtype, [&]<class T>(T*) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    return apply_rows<T>(push, scalars, answering ? &*answering : nullptr);
  });
}

namespace {

double factor_for(const StaleContext& context, const Staleness& policy, bool resolved, RowScalars* scalars) {
  if (resolved || scalars->factors.count(context.delay) > 0) {
    const auto known = scalars->factors.find(context.delay);
    return known == scalars->factors.end() ? 1 : known->second;
  }
  const double factor = policy.factor(context);
  if (factor != 1) scalars->factors.emplace(context.delay, factor);
  return factor;
}

}  // namespace

template <class T>
std::uint64_t RowTable::apply_rows(const RowGradients& push, RowScalars* scalars, Answering* answering) {
  const std::size_t count = push.ids.size();
  slots_.resize(count);
  rows_.find(push.ids, slots_.data());
  const bool resolved = scalars->resolved();
  examples_ += push.elsewhere;
  StaleContext context = this->context(scalars);
  context.examples = push.examples;
  std::int64_t factor_of = 0;  // the delay that context.factor belongs to
  DelayCounts delays;
  std::uint64_t refused = 0;
  std::exception_ptr failure;
  const auto apply_row = [&](std::size_t i) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    const RowStore::Record record = touch(push.ids[i], slots_[i]);
    const std::uint64_t version = get_number(record.head);
    const std::uint64_t from = push.versions[i] == kNeverPulled ? version : push.versions[i];
    context.delay = static_cast<std::int64_t>(version - from);
    context.count = static_cast<std::int64_t>(version);
    if (context.delay != factor_of) {
      factor_of = context.delay;
      context.factor = factor_for(context, *rules_->staleness, resolved, scalars);
    }
    if (from > version || !rules_->staleness->accepts(context)) {
      ++refused;
    } else {
      const std::byte* pulled = context.delay > 0 ? remembered(push.worker, push.ids[i], from) : nullptr;
      update(record.body, reinterpret_cast<const T*>(push.gradient(i, row_bytes_)), reinterpret_cast<const T*>(pulled),
             context);
      put_number(record.head, version + 1);
      delays.add(context.delay);
    }
    if (answering) answering->write(i, push.ids[i], &record);
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (i + kAhead < count) {
      rows_.prefetch(slots_[i + kAhead]);
      if (push.places) prefetch_lines<Cache::kSecond>(push.gradient(i + kAhead, row_bytes_), row_bytes_);
    }
    try {
      apply_row(i);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  delays.add_to(delays_of(delays_, push.worker));
  examples_ += push.counted;
  refused_ += static_cast<std::int64_t>(refused);
  if (failure) std::rethrow_exception(failure);
  return refused;
}

template <class T>
void RowTable::update(std::byte* body, const T* gradient, const T* pulled, const StaleContext& context) {
  const RowRules& rules = *rules_;
  std::array<T*, 16> few;
  std::vector<T*> many;
  const std::size_t states = rules.state_names.size();
  if (states > few.size()) many.resize(states);
  T** arrays = states > few.size() ? many.data() : few.data();
  for (std::size_t state = 0; state < states; ++state) arrays[state] = reinterpret_cast<T*>(body + state_offset(state));
  const UpdateStep step{context.learning_rate, context.count + 1, factors_.weight_decay};
  // With a delay of 0, a policy changes at most its state, never the gradient.
  const bool corrects = context.delay > 0 || states > rules.optimizer_states;
  alignas(64) std::array<T, static_cast<std::size_t>(Tile<T>::kElements)> scratch;
  for (std::int64_t begin = 0; begin < spec_.width; begin += Tile<T>::kElements) {
    Tile<T> tile;
    tile.count = std::min(Tile<T>::kElements, spec_.width - begin);
    tile.gradient = scratch.data();
    tile.weight = reinterpret_cast<T*>(body) + begin;
    tile.pulled = pulled ? pulled + begin : nullptr;
    copy_row(tile.gradient, gradient + begin, static_cast<std::size_t>(tile.count) * sizeof(T));
    preparation_.apply(tile.gradient, tile.weight, tile.count);
    tile.state = arrays + rules.optimizer_states;
    if (corrects) rules.staleness->correct(tile, context);
    tile.state = arrays;
    rules.optimizer->update(tile, step);
    for (std::size_t state = 0; state < states; ++state) arrays[state] += tile.count;
  }
}

void RowTable::apply_round(const std::vector<RowGradients>& contributions, Aggregate aggregate, RowScalars* scalars) {
  Lock lock(mutex_);
  with_type(spec_.dtype, [&]<class T>(T*) PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    apply_together<T>(contributions, aggregate, scalars);
  });
}

template <class T>
void RowTable::apply_together(const std::vector<RowGradients>& contributions, Aggregate aggregate,
                              RowScalars* scalars) {
  struct Entry {
    std::int64_t row;
    std::size_t from;
    const T* gradient;
  };
  std::vector<Entry> entries;
  std::vector<std::int64_t> examples;  // by worker, in the order given
  std::int64_t counted = 0;
  for (std::size_t c = 0; c < contributions.size(); ++c) {
    const RowGradients& push = contributions[c];
    if (c == 0 || push.worker != contributions[c - 1].worker) examples.push_back(push.examples);
    counted += push.counted;
    for (std::size_t i = 0; i < push.ids.size(); ++i)
      entries.push_back({push.ids[i], c, reinterpret_cast<const T*>(push.gradient(i, row_bytes_))});
  }
  const RoundFactors factors(examples, aggregate, std::identity());
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.row != b.row ? a.row < b.row : a.from < b.from; });

  StaleContext context = this->context(scalars);
  context.examples = std::accumulate(examples.begin(), examples.end(), std::int64_t{0});
  std::vector<T> sum(static_cast<std::size_t>(spec_.width));
  std::exception_ptr failure;
  for (std::size_t i = 0; i < entries.size();) {
    const std::int64_t row = entries[i].row;
    std::fill(sum.begin(), sum.end(), T(0));
    for (; i < entries.size() && entries[i].row == row; ++i) {
      const T factor = static_cast<T>(factors.of(contributions[entries[i].from].examples));
      for (std::size_t e = 0; e < sum.size(); ++e) sum[e] += factor * entries[i].gradient[e];
    }
    factors.divide(sum.data(), spec_.width);
    try {
      const RowStore::Record record = touch(row, rows_.find(row));
      const std::uint64_t version = get_number(record.head);
      context.count = static_cast<std::int64_t>(version);
      update<T>(record.body, sum.data(), nullptr, context);
      put_number(record.head, version + 1);
    } catch (...) {
      if (!failure) failure = std::current_exception();
    }
  }
  for (const RowGradients& push : contributions)
    if (!push.ids.empty()) delays_of(delays_, push.worker).add(0, static_cast<std::int64_t>(push.ids.size()));
  examples_ += counted;
  if (failure) std::rethrow_exception(failure);
}

void RowTable::read(std::span<const std::int64_t> ids, const RowAnswer& answer) {
  Lock lock(mutex_);
  slots_.resize(ids.size());
  rows_.find(ids, slots_.data());
  Answering answering(*this, answer, ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (i + kAhead < ids.size()) rows_.prefetch(slots_[i + kAhead]);
    if (slots_[i] == RowStore::kAbsent) {
      answering.write(i, ids[i], nullptr);
    } else {
      const RowStore::Record record = rows_.record(slots_[i]);
      answering.write(i, ids[i], &record);
    }
  }
}

void RowTable::remember(RowStore& store, std::int64_t row, std::uint64_t call, std::uint64_t* version,
                        std::byte* values) const {
  const RowStore::Slot slot = store.find(row);
  const RowStore::Record record = store.record(slot == RowStore::kAbsent ? store.add(row) : slot);
  const std::uint64_t last = get_number(record.head);
  if (slot != RowStore::kAbsent && last > call) return;
  if (slot != RowStore::kAbsent && last == call) {
    // The worker may use either answer, so both must have the same weights.
    *version = get_number(record.head + 8);
    std::memcpy(values, record.body, row_bytes_);
    return;
  }
  put_number(record.head, call);
  put_number(record.head + 8, *version);
  std::memcpy(record.body, values, row_bytes_);
}

const std::byte* RowTable::remembered(int worker, std::int64_t row, std::uint64_t version) const {
  const auto store = pulled_.find(worker);
  if (store == pulled_.end()) return nullptr;
  const RowStore::Slot slot = store->second.find(row);
  if (slot == RowStore::kAbsent) return nullptr;
  const RowStore::Record record = store->second.record(slot);
  return get_number(record.head + 8) == version ? record.body : nullptr;
}

SavedRowArrays RowTable::save(std::int64_t begin, std::size_t bytes) const {
  Lock lock(mutex_);
  const auto& names = rules_->state_names;
  const std::size_t limit = std::max<std::size_t>(1, bytes / (16 + (1 + names.size()) * row_bytes_));
  SavedRowArrays saved;
  saved.ids = rows_.rows_from(begin, limit + 1);
  if (saved.ids.size() > limit) {
    saved.next = saved.ids.back();
    saved.ids.pop_back();
  }
  saved.examples = examples_;
  saved.arrays.emplace_back("weight", saved.ids.size() * row_bytes_);
  for (const std::string& name : names) saved.arrays.emplace_back(name, saved.ids.size() * row_bytes_);
  for (std::size_t i = 0; i < saved.ids.size(); ++i) {
    const RowStore::Record record = rows_.record(rows_.find(saved.ids[i]));
    saved.versions.push_back(get_number(record.head));
    for (std::size_t a = 0; a < saved.arrays.size(); ++a)
      std::memcpy(saved.arrays[a].second.data() + i * row_bytes_, record.body + a * row_bytes_, row_bytes_);
  }
  return saved;
}

void RowTable::load(std::span<const std::int64_t> ids, const std::uint64_t* versions,
                    const std::vector<std::pair<std::string, const std::byte*>>& arrays, std::int64_t examples,
                    bool anew) {
  Lock lock(mutex_);
  std::vector<std::size_t> offsets;
  for (const auto& [name, values] : arrays) {
    const auto found = std::find(rules_->state_names.begin(), rules_->state_names.end(), name);
    require(name == "weight" || found != rules_->state_names.end(), "table '", spec_.name, "' has no state '", name,
            "' under these rules");
    offsets.push_back(name == "weight" ? 0
                                       : state_offset(static_cast<std::size_t>(found - rules_->state_names.begin())));
  }
  require(std::find(offsets.begin(), offsets.end(), 0) != offsets.end(), "a checkpoint without the weights of table '",
          spec_.name, "'");
  if (anew) {
    rows_ = make_store(*rules_);
    pulled_.clear();
  }
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const RowStore::Slot slot = rows_.find(ids[i]);
    const RowStore::Record record = rows_.record(slot == RowStore::kAbsent ? rows_.add(ids[i]) : slot);
    put_number(record.head, versions[i]);
    for (std::size_t a = 0; a < arrays.size(); ++a)
      std::memcpy(record.body + offsets[a], arrays[a].second + i * row_bytes_, row_bytes_);
  }
  examples_ = examples;
}

void RowTable::drop_worker(int worker) {
  Lock lock(mutex_);
  pulled_.erase(worker);
}

void RowTable::add_to(Digest& digest) const {
  Lock lock(mutex_);
  const auto add = [&digest](const RowStore& store, std::size_t head_bytes, std::size_t body_bytes) {
    for (const std::int64_t row : store.rows_from(0, store.size())) {
      const RowStore::Record record = store.record(store.find(row));
      digest.add(row);
      digest.add(record.head, head_bytes);
      digest.add(record.body, body_bytes);
    }
  };
  digest.add(examples_);
  add(rows_, kHead, state_offset(rules_->state_names.size()));
  for (const auto& [worker, store] : pulled_) {
    digest.add(worker);
    add(store, kRememberedHead, row_bytes_);
  }
}

RowFigures RowTable::figures() const {
  Lock lock(mutex_);
  RowFigures figures{delays_, refused_, rows_.size(), rows_.bytes(), 0};
  for (const auto& [worker, store] : pulled_) figures.pulled_bytes += store.bytes();
  figures.bytes += figures.pulled_bytes;
  return figures;
}

}  // namespace paceline
