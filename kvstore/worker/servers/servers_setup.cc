// Parts of ServersBackend that no push passes: keys, rules, barriers, facts, pauses, reports, the positions of data,
// and finish().
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>

#include "parse_body.h"
#include "payload.h"
#include "refusal.h"
#include "servers/servers.h"
#include "store.pb.h"

namespace paceline {

void ServersBackend::init(const std::vector<InitValue>& values) {
  std::vector<InitValue> here;
  for (const InitValue& value : values) {
    here.push_back({value.key, value.value.to(Device{}).contiguous(), value.average});
    here.back().value.wait();
  }
  wire::InitRequest request;
  request.set_call(++init_calls_);
  const std::string compression = setting_.compression.text();
  request.set_mode(setting_.mode.text() + (compression.empty() ? "" : " with " + compression));
  for (const InitValue& value : here) {
    KeyInfo key{value.key, value.value.dtype(), value.value.shape(), value.average};
    key.row = setting_.compression.row_of(key);
    write_key(key, request.add_keys());
  }
  const auto ask = [&] {
    auto answer = parse_body<wire::InitReply>(client_.ask(MessageKind::kInit, request));
    if (!answer.why().empty()) std::rethrow_exception(error_of(answer.why()));
    return answer;
  };
  wire::InitReply reply = ask();
  request.clear_keys();
  request.set_values(true);
  const Layout layout = parse_layout(reply);
  add_places({reply.placement()});
  while (!reply.done()) {
    request.set_sender(reply.sender());
    if (reply.sender() == static_cast<std::uint32_t>(rank())) {
      try {
        send_values(layout, here);
      } catch (const std::exception& error) {
        request.set_why(refusal_of(error, str("worker ", rank(), ": ")));
        client_.ask(MessageKind::kInit, request);  // the others wait for the values
        throw;
      }
    }
    reply = ask();
  }
  add_keys(layout, values);
  std::vector<PullItem> pulls;
  for (const InitValue& value : values) pulls.push_back({value.key, value.value});
  pull_exactly(pulls);
  request.set_values(false);
  request.set_held(true);
  client_.ask(MessageKind::kInit, request);
  if (!std::exchange(joining_, false)) return;
  // From now on the others rely on this worker. It needs the weights that they have computed meanwhile.
  resume();
  pull_exactly(pulls);
}

void ServersBackend::look_around() {
  const auto [passed, late] = client_.standing();
  joining_ = late;
  joined_late_ = late && passed > 0;
  pauses_ = late ? 1 : 0;
}

void ServersBackend::add_places(const std::vector<wire::Placement>& places) {
  Lock lock(mutex_);
  auto next = std::make_shared<Placement>(*route_.placement);
  for (const wire::Placement& placed : places) next->add(placed);
  route_.placement = std::move(next);
}

std::shared_ptr<const Placement> ServersBackend::placement() {
  Lock lock(mutex_);
  return route_.placement;
}

void ServersBackend::send_values(const Layout& layout, const std::vector<InitValue>& values) {
  const std::shared_ptr<const Placement> places = placement();
  std::map<std::string, const InitValue*> by_name;
  for (const InitValue& value : values) by_name[value.key] = &value;
  std::vector<std::pair<int, Message>> requests;
  for (const KeyPartition& partition : layout.partitions) {
    wire::InitValuesRequest body;
    body.set_mode(setting_.mode.text());
    KeyPartition renumbered = partition;
    PayloadWriter payload;
    std::map<int, int> numbers;
    for (SliceRange& slice : renumbered.slices) {
      const KeyInfo& key = layout.keys[static_cast<std::size_t>(slice.key)];
      const auto [entry, first] = numbers.try_emplace(slice.key, body.keys_size());
      if (first) write_key(key, body.add_keys());
      slice.key = entry->second;
      const NDArray& array = by_name.at(key.name)->value;
      const std::size_t width = size_of(key.dtype);
      payload.add(array.data_as<const std::byte>() + static_cast<std::size_t>(slice.begin) * width,
                  static_cast<std::size_t>(slice.end - slice.begin) * width, std::make_shared<NDArray>(array));
    }
    write_partition(renumbered, body.mutable_partition());
    const int server = places->server_of(kDenseKeys, partition.id);
    body.set_server(static_cast<std::uint32_t>(server));
    requests.emplace_back(server, message_of(MessageKind::kInitValues, body, payload.finish()));
  }
  ask_servers(std::move(requests));
}

void ServersBackend::add_keys(const Layout& layout, const std::vector<InitValue>& values) {
  Lock lock(mutex_);
  std::vector<RemoteKey*> keys;
  for (const KeyInfo& info : layout.keys) {
    auto key = std::make_unique<RemoteKey>();
    key->info = info;
    key->order = engine_.new_variable();
    keys.push_back(key.get());
    keys_[info.name] = std::move(key);
  }
  for (const InitValue& value : values) find(value.key).weight = value.value;
  for (const KeyPartition& plan : layout.partitions) {
    auto partition = std::make_unique<RemotePartition>();
    partition->id = static_cast<std::uint32_t>(plan.id);
    partition->slices = plan.slices.size();
    for (std::size_t s = 0; s < plan.slices.size(); ++s) {
      const SliceRange& range = plan.slices[s];
      keys[static_cast<std::size_t>(range.key)]->slices.push_back(
          {partition.get(), static_cast<std::uint32_t>(s), range.begin, range.end, 0});
    }
    partitions_[partition->id] = std::move(partition);
  }
  for (RemoteKey* key : keys) std::ranges::sort(key->slices, {}, &RemoteSlice::begin);
}

void ServersBackend::set_optimizer(const Spec& optimizer) {
  make_optimizer(optimizer);
  const bool encoded = momentum_is_encoded();
  const std::string policy = setting_.staleness.empty()
                                 ? setting_.object->default_staleness(encoded ? "sgd" : optimizer.name)
                                 : setting_.staleness;
  make_staleness(policy, setting_.staleness_options, setting_.own);
  auto rule = make_worker_rule(optimizer, policy, setting_.staleness_options);
  const Spec served = encoded ? split_momentum(optimizer, policy) : optimizer;

  wire::SetRules rules = rules_message(served, policy);
  if (encoded) rules.set_table_optimizer(optimizer.text());
  rules.set_staleness_options(setting_.staleness_options.text());
  client_.agree_on_rules(rules.call(), optimizer.text() + " with staleness=" + rules.staleness() +
                                           (setting_.staleness_options.empty() ? "" : "," + rules.staleness_options()));
  ask_every_server(message_of(MessageKind::kSetRules, rules));
  Lock lock(mutex_);
  if (rule && rule_) rule->load(rule_->state());
  rule_ = std::move(rule);
  optimizer_ = served;
  table_optimizer_ = optimizer;
  policy_ = policy;
}

void ServersBackend::set_rules(const Spec& at_servers, const std::string& agreed, std::unique_ptr<WorkerRule> state) {
  const wire::SetRules rules = rules_message(at_servers, "none");
  client_.agree_on_rules(rules.call(), agreed);
  ask_every_server(message_of(MessageKind::kSetRules, rules));
  Lock lock(mutex_);
  rule_ = std::move(state);
  optimizer_ = table_optimizer_ = at_servers;
  policy_ = "none";
}

wire::SetRules ServersBackend::rules_message(const Spec& optimizer, const std::string& policy) {
  wire::SetRules rules;
  rules.set_call(++optimizer_calls_);  // also if it is refused: the program of each worker makes the same calls
  rules.set_optimizer(optimizer.text());
  rules.set_staleness(policy);
  for (const std::string& codec : setting_.compression.names()) rules.add_codecs(codec);
  return rules;
}

bool ServersBackend::momentum_is_encoded() const {
  const auto codec = setting_.compression.make(setting_.compression.push);
  return codec && codec->takes_momentum();
}

Spec ServersBackend::split_momentum(const Spec& optimizer, const std::string& policy) {
  const std::string& name = setting_.compression.push.name;
  const double momentum = make_optimizer(optimizer)->worker_momentum();
  require(momentum >= 0, "compression '", name, "' keeps the optimizer's momentum at the workers, which optimizer '",
          optimizer.name, "' cannot give up");
  const auto parts = policy_parts(policy);
  require(std::find(parts.begin(), parts.end(), "dana") == parts.end(), "compression '", name,
          "' and staleness policy 'dana' both keep the optimizer's momentum; name another policy, such as gap_aware");
  require(!optimizer.options.has("clip_gradient"), "compression '", name,
          "' sends no gradients that clip_gradient could cut: leave it out (dgc has an option clip_norm)");
  Options taken{{"momentum", optimizer.options.get("momentum", str(momentum).c_str())}};
  if (optimizer.name == "nesterov") taken.set("nesterov", "1");
  Spec served{"sgd", optimizer.options};
  served.options.erase("momentum");
  Lock lock(mutex_);
  auto compressor = std::make_unique<Compressor>(setting_.compression, engine_, taken);
  if (compressor_) compressor->take_state(*compressor_);
  compressor_ = std::move(compressor);
  return served;
}

void ServersBackend::set_learning_rate(double rate) {
  require(rate >= 0, "the learning rate is ", rate, ", expected at least 0");
  wire::SetRules rules;
  rules.set_rate_call(++rate_calls_);
  rules.set_learning_rate(rate);
  ask_every_server(message_of(MessageKind::kSetRules, rules));
}

wire::StepEndReply ServersBackend::tell_servers(const wire::StepEnd& body, int begin, int end) {
  std::vector<std::pair<int, Message>> requests;
  for (int s = begin; s < end; ++s) requests.emplace_back(s, message_of(MessageKind::kStepEnd, body));
  wire::StepEndReply widest;
  for (const Message& answer : ask_servers(std::move(requests))) {
    const auto reply = parse_body<wire::StepEndReply>(answer);
    widest.set_fastest(std::max(widest.fastest(), reply.fastest()));
    widest.set_slowest(std::max(widest.slowest(), reply.slowest()));
  }
  return widest;
}

std::uint64_t ServersBackend::clock() {
  Lock lock(mutex_);
  return step_->number();
}

void ServersBackend::set_clock(std::uint64_t clock) {
  Lock lock(mutex_);
  if (step_->number() == clock) return;
  step_->cancel();
  step_ = new_step(clock);
  pushed_in_step_ = false;
}

GatheredValues ServersBackend::all_gather(const std::string& name, const std::string& value) {
  // In a running job, the other workers have already passed the barriers before init().
  if (joining_ && joined_late_ && !client_.in_epoch()) return {};
  pending_->wait_none();
  const std::uint64_t number = client_.next_barrier();
  if (joining_) {
    GatheredValues given = client_.gather(number, 0, true, name, value).second;
    client_.require_one_name();
    return given;
  }
  wire::StepEnd body;
  body.set_clock(clock());
  body.set_number(number);
  body.set_state(wire::StepEnd::INSIDE_BARRIER);
  tell_servers(body);
  std::pair<std::uint64_t, GatheredValues> met;
  try {
    met = client_.gather(number, body.clock(), false, name, value);
  } catch (...) {
    failed_.note(std::current_exception());  // this worker has left the rounds, which its pushes would miss
    throw;
  }
  body.set_clock(met.first);
  body.set_state(wire::StepEnd::AFTER_BARRIER);
  tell_servers(body);
  paused_ = false;
  set_clock(met.first);
  client_.require_one_name();
  return std::move(met.second);
}

void ServersBackend::put_fact(const std::string& name, const std::string& value) { client_.put_fact(name, value); }
Facts ServersBackend::facts(const std::string& prefix) { return client_.facts(prefix); }

void ServersBackend::pause() {
  pending_->wait_none();
  wire::StepEnd body;
  body.set_clock(clock());
  body.set_number(++pauses_);
  body.set_state(wire::StepEnd::PAUSED);
  tell_servers(body);
  paused_ = true;
}

void ServersBackend::resume() {
  wire::StepEnd body;
  body.set_clock(clock());
  body.set_number(pauses_);
  body.set_state(wire::StepEnd::RESUMED);
  // In a synchronous mode, this worker goes on with the first round that no server can have closed. In other modes, it
  // goes on at the clock of the slowest worker, or at its own if that is higher.
  const auto suits = [&](int begin, int end) {
    const wire::StepEndReply others = tell_servers(body, begin, end);
    const std::uint64_t first = traits_.in_rounds() ? others.fastest() + 1 : others.slowest();
    if (body.clock() >= first) return true;
    body.set_clock(first);
    return false;
  };
  // Server 0 hears each clock before the other servers do, so it gives each resuming worker a clock of its own. If two
  // workers told all servers at once, each could come second at one server. Both would then take the next clock, again
  // and again.
  while (!suits(0, 1) || !suits(1, servers_)) {
  }
  set_clock(body.clock());
  paused_ = false;  // other threads push from here on
}

namespace {

template <class Messages>
void add_delays(const Messages& messages, std::vector<Histogram>& delays) {
  delays.resize(std::max(delays.size(), static_cast<std::size_t>(messages.size())));
  for (int worker = 0; worker < messages.size(); ++worker) {
    const auto& counts = messages[worker];
    for (int i = 0; i < std::min(counts.values_size(), counts.counts_size()); ++i)
      delays[static_cast<std::size_t>(worker)].add(counts.values(i), counts.counts(i));
  }
}

void add_waits(const wire::Report& message, StoreReport& report) {
  for (const wire::Report::Wait& wait : message.waits()) {
    if (wait.worker() >= report.waits.size()) continue;
    WorkerWait& sum = report.waits[wait.worker()];
    sum.seconds = std::max(sum.seconds, wait.seconds());
    sum.times = std::max(sum.times, wait.times());
  }
  report.furthest_ahead = std::max(report.furthest_ahead, message.furthest_ahead());
}

}  // namespace

StoreReport ServersBackend::report() {
  Message request;
  request.header.kind = MessageKind::kReport;
  StoreReport report;
  report.clock = static_cast<std::int64_t>(clock());
  report.waits.resize(static_cast<std::size_t>(size()));
  for (const Message& answer : ask_every_server(request)) {
    const auto body = parse_body<wire::Report>(answer);
    add_delays(body.delays(), report.delays);
    add_delays(body.row_delays(), report.row_delays);
    report.pushes += body.pushes();
    report.refused += body.refused();
    report.pulled_bytes += body.pulled_bytes();
    report.rows_refused += body.rows_refused();
    report.rows_held += static_cast<std::int64_t>(body.rows());
    report.row_bytes += body.row_bytes();
    add_waits(body, report);
  }
  report.wait_seconds = 1e-6 * static_cast<double>(waited_microseconds_.load());
  Lock lock(mutex_);
  if (compressor_) compressor_->add_to(report);
  return report;
}

void ServersBackend::finish() {
  if (std::exchange(finished_, true)) return;
  pending_->wait_none();
  wire::StepEnd body;
  body.set_state(wire::StepEnd::FINISHED);
  tell_servers(body);
  node_->leave();
  Lock lock(mutex_);
  if (compressor_) compressor_->log_figures();
}

std::pair<int, int> ServersBackend::data_part(std::int64_t epoch) { return client_.data_part(epoch); }

void ServersBackend::data_begin(std::int64_t epoch, const DataPlan& plan) {
  pending_->wait_none();  // data_begin() gives back positions whose commit has not arrived
  client_.data_begin(epoch, plan);
}

void ServersBackend::data_commit(std::int64_t epoch, const PositionRanges& done, const std::string& note) {
  // Positions count as delivered when the gradients that were computed from them are at the servers. A step may have
  // ended before its positions are committed, so the failure of any earlier push counts.
  when_pushed(client_.commit(*scheduler_, pending_, failed_, epoch, done, note));
}

PositionRanges ServersBackend::data_committed(std::int64_t epoch) {
  pending_->wait_none();  // this worker's own commits
  return client_.data_committed(epoch);
}

std::vector<std::string> ServersBackend::data_notes(std::int64_t epoch) { return client_.data_notes(epoch); }

PositionRanges ServersBackend::data_take_over(std::int64_t epoch, bool wait, PieceSize size) {
  if (wait && !paused_ && !joining_) pause();
  require_delivered(failed_);
  return client_.data_take_over(epoch, wait, size);
}

}  // namespace paceline
