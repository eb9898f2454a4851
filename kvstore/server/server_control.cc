#include "server_control.h"

#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/mode.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "key_partition.h"
#include "own_objects.h"
#include "payload.h"

namespace paceline {
namespace {

// Describes for the log how much memory a policy takes, besides weights and the optimizer's state.
std::string cost_of(const Staleness& policy, std::size_t weights, int workers) {
  const std::size_t pulled = policy.needs_pulled() ? weights * static_cast<std::size_t>(workers) : 0;
  const std::size_t state = weights * policy.state_names().size();
  return str("remembers at most ", pulled, " bytes of pulled weights (", workers, " workers, ", weights,
             " bytes of weights here) and keeps ", state, " bytes of state");
}

// Throws InvalidArgument if this server does not have the object `name`. The workers have it, so it belongs to their
// program.
template <class Object, class Factory>
void require_object(const char* kind, const std::string& name, const OwnObjects<Object>& own,
                    const Catalog<Factory>& catalog) {
  try {
    own_object(own, catalog, name);
  } catch (const InvalidArgument&) {
    const std::string here = own.empty() ? "" : str(" (it has", names_of(own), ")");
    throw InvalidArgument(str("the workers name the ", kind, " '", name,
                              "' of their program, which this server does not have", here,
                              ": run the workers' program in every role instead of paceline_server (launch.py "
                              "--every-role), or pass the same objects to serve()"));
  }
}

}  // namespace

ServerControl::ServerControl(int servers, PartitionTable& table, std::vector<std::unique_ptr<ServerShard>>& shards,
                             const WaitStats& waits, Extensions own, PartitionLog* log)
    : table_(table), shards_(shards), waits_(waits), own_(std::move(own)), log_(log), tables_(servers, shards_, own_) {}

bool ServerControl::on_request(const Request& request, int rank) {
  switch (request.message().header.kind) {
    case MessageKind::kInitValues: init_values(request, rank); return true;
    case MessageKind::kSetRules: set_rules(request); return true;
    case MessageKind::kReport: report(request); return true;
    case MessageKind::kSave: save(request); return true;
    case MessageKind::kLoad: load(request); return true;
    default:
      return tables_.on_request(request, {rank, [this](const std::string& mode) { set_mode(mode); },
                                          [this](RowPartition& partition) {
                                            if (log_) partition.set_observer(log_->begin(partition));
                                            begin_with_rules(partition);
                                          }});
  }
}

void ServerControl::set_live_workers(int live) {
  Lock lock(mutex_);
  live_workers_ = std::max(live, 1);
  for (const auto& shard : shards_)
    shard->post([entry = WorkersEntry{{}, live_workers_}](ServerShard& self) { self.apply_to_all(entry); });
}

void ServerControl::set_mode(const std::string& text) {
  Lock lock(mutex_);
  if (text == mode_) return;
  require(mode_.empty(), "this job runs mode ", mode_, ", not ", text);
  const Spec spec = Spec::parse(text);
  require_object("mode", spec.name, own_.modes, mode_catalog());
  const std::shared_ptr<const Mode> mode = make_mode(spec, own_);
  for (const auto& shard : shards_) shard->post([mode](ServerShard& self) { self.set_mode(mode); });
  mode_ = text;
}

void ServerControl::tell_cost() {
  if (cost_is_told_.exchange(true)) return;
  Lock lock(mutex_);
  const std::size_t weights = table_.bytes();
  if (weights > 0 && staleness_ && (staleness_->needs_pulled() || !staleness_->state_names().empty()))
    LOG(INFO) << "the staleness policy " << cost_of(*staleness_, weights, live_workers_);
}

ServerShard& ServerControl::shard_of(std::uint32_t partition) {
  Lock lock(mutex_);
  const auto [entry, first] = shard_numbers_.try_emplace(partition, shard_numbers_.size() % shards_.size());
  return *shards_[entry->second];
}

void ServerControl::init_values(const Request& request, int rank) {
  const auto body = parse_body<wire::InitValuesRequest>(request.message());
  require(body.server() == static_cast<std::uint32_t>(rank), "partition ", body.partition().id(),
          " is placed on server ", body.server(), ", and its values came to server ", rank);
  set_mode(body.mode());
  ServerShard& shard = shard_of(body.partition().id());
  shard.post([this, request](ServerShard& self) { answer_or_refuse(request, [&] { add_partition(request, self); }); });
}

void ServerControl::add_partition(const Request& request, ServerShard& shard) {
  const auto body = parse_body<wire::InitValuesRequest>(request.message());
  if (table_.find(body.partition().id())) return request.reply({});
  std::vector<KeyInfo> keys;
  for (const auto& key : body.keys()) keys.push_back(parse_key(key));
  const KeyPartition plan = parse_partition(body.partition(), keys);

  PayloadReader payload(request.message().payload);
  std::vector<std::pair<SliceInfo, const void*>> slices;
  for (const SliceRange& range : plan.slices) {
    const KeyInfo& key = keys[static_cast<std::size_t>(range.key)];
    const auto kind = key.average ? SliceInfo::Kind::kAverage : SliceInfo::Kind::kGradient;
    SliceInfo info{key.name, range.begin, range.end, key.dtype, kind};
    const std::size_t bytes = static_cast<std::size_t>(range.end - range.begin) * size_of(key.dtype);
    slices.emplace_back(std::move(info), payload.next(bytes));
  }
  payload.expect_end();

  auto partition = std::make_unique<ServedPartition>(plan.id, slices, own_, shard);
  if (log_) partition->state.set_observer(log_->begin(partition->state, slices));
  begin_with_rules(partition->state);
  shard.add(*partition);
  table_.add(std::move(partition));
  cost_is_told_ = false;
  request.reply({});
}

// Gives a new partition the present number of workers, rules and learning rate. Entries that are still queued at the
// shard reach the partition later, in the order in which they were set. The last entry of each kind sets the present
// value again.
template <class State>
void ServerControl::begin_with_rules(State& partition) {
  Lock lock(mutex_);
  WorkersEntry workers{{}, live_workers_};
  partition.apply(workers);
  if (rules_) {
    RulesEntry rules = *rules_;
    partition.apply(rules);
  }
  if (!learning_rate_) return;
  RateEntry rate{{}, *learning_rate_};
  partition.apply(rate);
}

// Throws the error that the partitions would throw for these rules.
void ServerControl::check(const RulesEntry& rules) const {
  make_updater()->set_rules(rules.optimizer, rules.staleness, rules.staleness_options, own_);
  const Spec& of_tables = rules.table_optimizer.name.empty() ? rules.optimizer : rules.table_optimizer;
  RowRules::make(of_tables, rules.staleness, rules.staleness_options, own_);
}

void ServerControl::require_objects(const wire::SetRules& message) const {
  for (const std::string& part : policy_parts(message.staleness()))
    require_object("staleness policy", part, own_.policies, staleness_catalog());
  for (const std::string& codec : message.codecs()) require_object("codec", codec, own_.codecs, compression_catalog());
}

void ServerControl::set_rules(const Request& request) {
  const auto body = parse_body<wire::SetRules>(request.message());
  Lock lock(mutex_);
  const bool changed = body.call() > rules_call_;
  if (changed) {
    require_objects(body);
    const Options options = Options::parse(body.staleness_options());
    RulesEntry rules{{}, Spec::parse(body.optimizer()), body.staleness(), options, {}};
    if (!body.table_optimizer().empty()) rules.table_optimizer = Spec::parse(body.table_optimizer());
    check(rules);
    rules_call_ = body.call();
    rules_ = std::move(rules);
    learning_rate_.reset();
    for (const auto& shard : shards_) {
      shard->post([entry = *rules_](ServerShard& self) {
        self.apply_to_all(entry);
        self.forget_failures();
      });
    }
    LOG(INFO) << "optimizer " << body.optimizer() << ", staleness policy " << body.staleness();
    staleness_ = make_staleness(body.staleness(), options, own_);
    cost_is_told_ = false;
  }
  if (body.rate_call() > 0) {
    std::uint64_t& last = rate_calls_[request.incarnation()];
    if (body.rate_call() > last) {
      require(body.learning_rate() >= 0, "the learning rate is ", body.learning_rate(), ", expected at least 0");
      learning_rate_ = body.learning_rate();
      for (const auto& shard : shards_)
        shard->post([entry = RateEntry{{}, *learning_rate_}](ServerShard& self) { self.apply_to_all(entry); });
    }
    last = std::max(last, body.rate_call());
  }
  // Later requests queue behind the entries in each shard, so a new rate alone is answered at once. New rules are
  // answered when every shard has applied them.
  if (!changed) return request.reply({});
  const auto left = std::make_shared<std::atomic<std::size_t>>(shards_.size());
  for (const auto& shard : shards_)
    shard->post([request, left](ServerShard&) {
      if (left->fetch_sub(1) == 1) request.reply({});
    });
}

void ServerControl::report(const Request& request) const {
  wire::Report report;
  const DensePartition::Figures figures = table_.figures();
  for (const Histogram& delays : figures.delays) {
    wire::Report::Delays* out = report.add_delays();
    for (const auto& [value, count] : delays.counts()) {
      out->add_values(value);
      out->add_counts(count);
    }
    report.set_pushes(report.pushes() + delays.count());
  }
  std::int64_t refused = figures.refused;
  for (const auto& shard : shards_) refused += shard->late();
  report.set_refused(refused);
  report.set_pulled_bytes(figures.pulled_bytes);
  for (const auto& [worker, wait] : waits_.workers()) {
    wire::Report::Wait* out = report.add_waits();
    out->set_worker(static_cast<std::uint32_t>(worker));
    out->set_seconds(wait.seconds);
    out->set_times(wait.times);
  }
  report.set_furthest_ahead(waits_.furthest_ahead());
  tables_.write_figures(&report);
  reply(request, report);
}

void ServerControl::log_report() const {
  const DensePartition::Figures figures = table_.figures();
  const std::vector<Histogram>& delays = figures.delays;
  std::int64_t late = 0;
  for (const auto& shard : shards_) late += shard->late();
  std::map<int, WaitStats::OfWorker> waits = waits_.workers();
  const bool held_back =
      std::any_of(waits.begin(), waits.end(), [](const auto& wait) { return wait.second.times > 0; });
  for (std::size_t worker = 0; worker < delays.size(); ++worker) {
    const Histogram& histogram = delays[worker];
    const WaitStats::OfWorker& wait = waits[static_cast<int>(worker)];
    LOG(INFO) << "delays of worker " << worker << ": " << histogram.count() << " slices pushed, mean "
              << histogram.mean() << " p50 " << histogram.quantile(0.5) << " p99 " << histogram.quantile(0.99)
              << (held_back ? str("; held back ", wait.times, " times, for ", wait.seconds, " s") : "");
  }
  if (const std::int64_t refused = figures.refused + late; refused > 0)
    LOG(INFO) << "slices refused: " << refused << ", of them " << late << " too late for their round";
  if (waits_.furthest_ahead() > 0)
    LOG(INFO) << "no worker began a step more than " << waits_.furthest_ahead() << " ahead of the slowest";
}

void ServerControl::save(const Request& request) {
  const auto body = parse_body<wire::SaveRequest>(request.message());
  if (body.blobs()) {
    wire::SaveReply answer;
    PayloadWriter payload;
    Lock lock(mutex_);
    for (const auto& [key, blob] : blobs_) {
      if (body.has_worker() && key.first != body.worker()) continue;
      answer.add_blobs()->ParseFromString(blob.body);
      payload.add(blob.data.get(), blob.bytes, blob.data);
    }
    return reply(request, answer, payload.finish());
  }
  ServedPartition& partition = table_.at(body.partition());
  partition.shard->post([request, &partition](ServerShard&) {
    answer_or_refuse(request, [&] {
      wire::SaveReply answer;
      PayloadWriter payload;
      for (std::size_t s = 0; s < partition.state.slices().size(); ++s) {
        SliceCounters counters;
        wire::SavedSlice* slice = answer.add_slices();
        for (const auto& [name, array] : partition.state.save(s, &counters)) {
          slice->add_names(name);
          array.wait();
          payload.add(array.data(), array.bytes(), std::make_shared<NDArray>(array));
        }
        slice->set_slice(static_cast<std::uint32_t>(s));
        slice->set_version(counters.version);
        slice->set_examples(counters.examples);
        slice->set_optimizer_updates(counters.optimizer_updates);
        slice->set_policy_updates(counters.policy_updates);
      }
      reply(request, answer, payload.finish());
    });
  });
}

void ServerControl::load(const Request& request) {
  const auto body = parse_body<wire::LoadRequest>(request.message());
  if (body.slices_size() == 0) {
    PayloadReader payload(request.message().payload);
    Lock lock(mutex_);
    if (body.clear_blobs()) blobs_.clear();
    for (const wire::Blob& blob : body.blobs()) {
      wire::KeyDeclaration as_key;
      as_key.set_name(blob.name());
      as_key.set_dtype(blob.dtype());
      *as_key.mutable_shape() = blob.shape();
      const auto bytes = static_cast<std::size_t>(parse_key(as_key).bytes());
      const std::byte* data = payload.next(bytes);
      const std::shared_ptr<std::byte[]> copy = detail::allocate_host(bytes);
      if (bytes > 0) std::memcpy(copy.get(), data, bytes);
      blobs_[{blob.worker(), blob.name()}] = {blob.SerializeAsString(), copy, bytes};
    }
    return request.reply({});
  }
  ServedPartition& partition = table_.at(body.partition());
  partition.shard->post([request, &partition, body](ServerShard&) {
    answer_or_refuse(request, [&] {
      for (const wire::SavedSlice& saved : body.slices())  // before the first slice changes
        check_saved_counts({static_cast<std::int64_t>(saved.version()), saved.examples(), saved.optimizer_updates(),
                            saved.policy_updates()});
      PayloadReader payload(request.message().payload);
      for (const wire::SavedSlice& saved : body.slices()) {
        if (saved.slice() >= partition.state.slices().size())
          throw Corrupt("a checkpoint names a slice that does not exist");
        const std::size_t bytes = partition.state.slices()[saved.slice()].bytes;
        const SliceInfo info = partition.state.info(saved.slice());
        NamedArrays arrays;
        for (const std::string& name : saved.names()) {
          const std::byte* data = payload.next(bytes);
          arrays.emplace_back(name, NDArray::wrap(const_cast<std::byte*>(data), Shape{info.end - info.begin},
                                                  info.dtype, std::make_shared<Request>(request)));
        }
        LoadEntry entry{{},
                        saved.slice(),
                        &arrays,
                        {saved.version(), saved.examples(), saved.optimizer_updates(), saved.policy_updates()}};
        partition.state.apply(entry);
        partition.failures.erase(saved.slice());
      }
      payload.expect_end();
      request.reply({});
    });
  });
}

}  // namespace paceline
