#include "rows/row_partition.h"

#include <paceline/error.h>

#include <exception>
#include <optional>

#include "digest.h"
#include "own_objects.h"

namespace paceline {

RowPartition::RowPartition(const TableSpec& spec, const TableLayout& layout, std::uint32_t number, Extensions own)
    : table_(spec, layout.block_bits()), layout_(layout), number_(number), own_(shared(std::move(own))) {}

template <class Entry>
void RowPartition::log(Entry& entry) {
  entry.place.partition = number_;
  entry.place.lsn = ++lsn_;
  if (observer_) observer_->on(entry);
}

bool RowPartition::is_taken(const WorkerIncarnation& from, std::uint64_t sequence) const {
  const auto known = workers_.find(from.worker);
  return known == workers_.end() ? TakenPushes().holds(from.worker, from.incarnation, sequence)
                                 : known->second.taken.holds(from.worker, from.incarnation, sequence);
}

void RowPartition::expect_contribution(const WorkerIncarnation& from, std::uint64_t round, std::uint64_t call) const {
  const auto known = workers_.find(from.worker);
  if (known == workers_.end() || known->second.taken.incarnation < from.incarnation) return;
  const Worker& worker = known->second;
  require(round >= worker.rounds || (round + 1 == worker.rounds && call == worker.call), "worker ", from.worker,
          " pushed rows of table '", spec().name, "' twice in step ", round, "; call step_end() between steps");
}

void RowPartition::apply(RowPushEntry& entry, const RowAnswer* answer) {
  Worker& worker = workers_[entry.from.worker];
  if (worker.taken.renew(entry.from.incarnation)) worker.rounds = worker.call = 0;
  require(worker.taken.incarnation == entry.from.incarnation, "worker ", entry.from.worker,
          " has returned since this push was sent");
  worker.taken.window.take(entry.sequence);
  std::exception_ptr failure;
  if (entry.verdict != Verdict::kApplied) {
    keep(entry, worker);
  } else {
    try {
      std::vector<std::uint64_t> versions;
      std::vector<std::byte> values;
      RowAnswer unseen{entry.from.worker, entry.call, nullptr, nullptr};
      if (entry.reads && !answer) {
        versions.resize(entry.rows.ids.size());
        values.resize(entry.rows.ids.size() * row_bytes());
        unseen.versions = versions.data();
        unseen.values = values.data();
        answer = &unseen;
      }
      entry.refused = table_.apply(entry.rows, &entry.scalars, entry.reads ? answer : nullptr);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  log(entry);
  if (failure) std::rethrow_exception(failure);
}

void RowPartition::keep(const RowPushEntry& entry, Worker& worker) {
  worker.rounds = entry.step + 1;
  worker.call = entry.call;
  rounds_.skip_to(entry.next_round);
  if (entry.verdict == Verdict::kLate) return;
  Kept& kept = rounds_.rounds[entry.step][entry.from.worker];
  // Replaces the contribution of a lost incarnation of the worker.
  if (kept.incarnation != entry.from.incarnation) kept = {entry.from.incarnation, {}, 0};
  kept.pieces.push_back({entry.rows, entry.owner});
  kept.expected = entry.pieces;
}

void RowPartition::apply(RowReadEntry& entry, const RowAnswer* answer) {
  if (answer) {
    table_.read(entry.ids, *answer);
  } else {
    std::vector<std::uint64_t> versions(entry.ids.size());
    std::vector<std::byte> values(entry.ids.size() * row_bytes());
    table_.read(entry.ids, {entry.from.worker, entry.call, versions.data(), values.data()});
  }
  log(entry);
}

void RowPartition::apply(RowSkipEntry& entry) {
  rounds_.skip_to(entry.next_round);
  log(entry);
}

void RowPartition::apply(RowCloseEntry& entry) {
  require(!rounds_.empty() && rounds_.oldest() == entry.round, "round ", entry.round, " of table '", spec().name,
          "' is not its oldest open round");
  std::vector<RowGradients> contributions;
  for (const auto& [worker, kept] : rounds_.contributions())
    for (const Kept::Piece& piece : kept.pieces) contributions.push_back(piece.rows);
  std::exception_ptr failure;
  try {
    table_.apply_round(contributions, entry.aggregate, &entry.scalars);
  } catch (...) {
    failure = std::current_exception();
  }
  rounds_.close();
  log(entry);
  if (failure) std::rethrow_exception(failure);
}

void RowPartition::apply(RulesEntry& entry) {
  set_rules(RowRules::make(entry.table_optimizer.name.empty() ? entry.optimizer : entry.table_optimizer,
                           entry.staleness, entry.staleness_options, own_ ? *own_ : Extensions()));
  log(entry);
}

void RowPartition::apply(RateEntry& entry) {
  set_rules(rules_->with_rate(entry.learning_rate));
  log(entry);
}

void RowPartition::set_rules(std::shared_ptr<const RowRules> rules) {
  rules_ = std::move(rules);
  table_.set_rules(rules_);
}

void RowPartition::apply(WorkersEntry& entry) {
  table_.set_workers(entry.live);
  log(entry);
}

void RowPartition::apply(LostEntry& entry) {
  table_.drop_worker(entry.worker);
  log(entry);
}

void RowPartition::apply(RowLoadEntry& entry) {
  const auto last = loads_.find(entry.incarnation);
  const std::uint64_t before = last == loads_.end() ? 0 : last->second;
  if (entry.load < before) return;  // an entry of an earlier load
  table_.load(entry.ids, entry.versions, *entry.arrays, entry.examples, entry.load > before);
  loads_[entry.incarnation] = entry.load;
  log(entry);
}

std::uint64_t RowPartition::digest() const {
  Digest digest;
  for (const auto& [rank, worker] : workers_) {
    digest.add(rank);
    digest.add(worker.taken.incarnation);
    worker.taken.window.add_to(digest);
    digest.add(worker.rounds);
    digest.add(worker.call);
  }
  digest.add(rounds_.next_round);
  for (const auto& [round, contributions] : rounds_.rounds) {
    digest.add(round);
    for (const auto& [worker, kept] : contributions) {
      digest.add(worker);
      digest.add(kept.incarnation);
      for (const Kept::Piece& piece : kept.pieces)
        for (std::size_t i = 0; i < piece.rows.ids.size(); ++i) {
          digest.add(piece.rows.ids[i]);
          digest.add(piece.rows.gradient(i, row_bytes()), row_bytes());
        }
    }
  }
  table_.add_to(digest);
  return digest.value();
}

}  // namespace paceline
