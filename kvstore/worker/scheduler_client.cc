#include "scheduler_client.h"

#include <algorithm>

#include "message.pb.h"
#include "parse_body.h"
#include "store.pb.h"

namespace paceline {
namespace {

constexpr PeerId kScheduler{Role::kScheduler, 0};

void write_ranges(const PositionRanges& ranges, proto::Ranges* message) {
  for (const auto& [begin, end] : ranges) {
    message->add_bounds(begin);
    message->add_bounds(end);
  }
}

PositionRanges read_ranges(const proto::Ranges& message) {
  PositionRanges ranges;
  for (int i = 0; i + 1 < message.bounds_size(); i += 2) ranges.emplace_back(message.bounds(i), message.bounds(i + 1));
  return ranges;
}

}  // namespace

OpenCommits::Time OpenCommits::add() {
  const Lock lock(mutex_);
  return *sent_.insert(std::chrono::steady_clock::now());
}

void OpenCommits::remove(Time sent) {
  const Lock lock(mutex_);
  sent_.erase(sent_.find(sent));
  fewer_.notify_all();
}

void OpenCommits::wait_for_room() {
  constexpr std::size_t kMost = 3;
  constexpr std::chrono::milliseconds kPatience{100};
  const Lock lock(mutex_);
  fewer_.wait(mutex_, [&]() PACELINE_REQUIRES(mutex_) {
    return sent_.size() < kMost || std::chrono::steady_clock::now() - *sent_.begin() <= kPatience;
  });
}

Message SchedulerClient::ask(MessageKind kind, const google::protobuf::MessageLite& body) {
  return node_.ask_and_wait(kScheduler, message_of(kind, body));
}

std::pair<std::uint64_t, bool> SchedulerClient::standing() {
  const auto reply = parse_body<proto::Barrier>(ask(MessageKind::kBarrier, proto::Barrier()));
  if (reply.late() && is_plain_barrier(reply.number())) barriers_ = reply.number();
  if (reply.number() > 0) leader_ = static_cast<int>(reply.leader());
  return {reply.number(), reply.late()};
}

std::pair<std::uint64_t, GatheredValues> SchedulerClient::gather(std::uint64_t number, std::uint64_t clock,
                                                                 bool joining, const std::string& name,
                                                                 const std::string& value) {
  proto::Barrier barrier;
  barrier.set_number(is_plain_barrier(number) ? epoch_ + number : number);
  barrier.set_clock(clock);
  barrier.set_joining(joining);
  barrier.set_name(name);
  barrier.set_value(value);
  proto::Barrier reply;
  try {
    reply = parse_body<proto::Barrier>(ask(MessageKind::kBarrier, barrier));
  } catch (const InvalidArgument&) {  // this worker has not been at the barrier
    if (barriers_ == number) --barriers_;
    throw;
  }
  leader_ = static_cast<int>(reply.leader());
  if (!reply.mismatch().empty()) mismatch_ = reply.mismatch();
  GatheredValues given;
  for (const proto::Barrier::Given& entry : reply.given()) given[static_cast<int>(entry.rank())] = entry.value();
  return {std::max(clock, reply.clock()), std::move(given)};
}

int SchedulerClient::leader() const {
  const std::vector<int> live = node_.roster().live(Role::kWorker);
  const int met = leader_;
  if (std::binary_search(live.begin(), live.end(), met)) return met;
  return live.empty() ? node_.rank() : live.front();
}

void SchedulerClient::agree_on_rules(std::uint32_t call, const std::string& rules) {
  wire::OptimizerRequest agreement;
  agreement.set_call(call);
  agreement.set_rules(rules);
  ask(MessageKind::kSetOptimizer, agreement);
}

void SchedulerClient::put_fact(const std::string& name, const std::string& value) {
  proto::Fact fact;
  fact.set_name(name);
  fact.set_value(value);
  fact.set_number(++puts_);
  ask(MessageKind::kPutFact, fact);
}

Facts SchedulerClient::facts(const std::string& prefix) {
  proto::GetFacts body;
  body.set_prefix(prefix);
  Facts facts;
  const auto reply = parse_body<proto::Facts>(ask(MessageKind::kGetFacts, body));
  for (const proto::Fact& fact : reply.facts()) facts.emplace(fact.name(), fact.value());
  return facts;
}

std::pair<int, int> SchedulerClient::data_part(std::int64_t epoch) {
  epoch_ = std::max(epoch_, barriers_before(epoch));
  barriers_ = std::max(barriers_, epoch_);
  proto::DataPart body;
  body.set_epoch(epoch);
  const auto reply = parse_body<proto::DataPartReply>(ask(MessageKind::kDataPart, body));
  return {reply.index(), reply.count()};
}

void SchedulerClient::data_begin(std::int64_t epoch, const DataPlan& plan) {
  proto::DataBegin body;
  body.set_epoch(epoch);
  write_ranges(plan.mine, body.mutable_mine());
  write_ranges(plan.all, body.mutable_all());
  body.set_on_request(plan.on_request);
  body.set_order(plan.order);
  body.set_number(++begins_);
  ask(MessageKind::kDataBegin, body);
}

Message SchedulerClient::commit_message(std::int64_t epoch, const PositionRanges& done, const std::string& note) {
  proto::DataCommit body;
  body.set_epoch(epoch);
  write_ranges(done, body.mutable_done());
  if (!note.empty()) body.set_note(note);
  return message_of(MessageKind::kDataCommit, body);
}

Delivery::Action SchedulerClient::commit(Outbox& outbox, const std::shared_ptr<Pending>& pending, Answers& failed,
                                         std::int64_t epoch, const PositionRanges& done, const std::string& note) {
  commits_->wait_for_room();
  const bool has_failed = failed.error() != nullptr;
  return [&outbox, pending, commits = commits_, has_failed,
          message = commit_message(epoch, done, note)](const std::exception_ptr& error) mutable {
    if (has_failed || error) return;
    pending->add();
    outbox.submit(0, 0, std::move(message),
                  [pending, commits, sent = commits->add()](const std::optional<Message>&, const std::exception_ptr&) {
                    commits->remove(sent);
                    pending->remove();
                  });
  };
}

PositionRanges SchedulerClient::data_committed(std::int64_t epoch) {
  proto::DataCommitted body;
  body.set_epoch(epoch);
  return read_ranges(parse_body<proto::DataCommittedReply>(ask(MessageKind::kDataCommitted, body)).positions());
}

std::vector<std::string> SchedulerClient::data_notes(std::int64_t epoch) {
  proto::DataCommitted body;
  body.set_epoch(epoch);
  body.set_notes(true);
  const auto reply = parse_body<proto::DataCommittedReply>(ask(MessageKind::kDataCommitted, body));
  return {reply.notes().begin(), reply.notes().end()};
}

PositionRanges SchedulerClient::data_take_over(std::int64_t epoch, bool wait, PieceSize size) {
  proto::DataTakeOver body;
  body.set_epoch(epoch);
  body.set_wait(wait);
  body.set_wanted(size.wanted);
  body.set_multiple(size.multiple);
  body.set_number(++take_overs_);
  return read_ranges(parse_body<proto::DataTakeOverReply>(ask(MessageKind::kDataTakeOver, body)).positions());
}

}  // namespace paceline
