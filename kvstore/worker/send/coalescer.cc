#include "send/coalescer.h"

#include <paceline/error.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "parse_body.h"
#include "payload.h"

namespace paceline {
namespace {

constexpr std::size_t kMostUnderWay = 2;  // messages: the server works on one while the next travels
constexpr std::size_t kMostRequests = 512, kMostLessUrgent = 16;

bool comes_before(const SmallRun& a, const SmallRun& b) {
  const std::uint32_t left = a.slice->partition->id, right = b.slice->partition->id;
  return left != right ? left < right : a.need < b.need;
}

}  // namespace

void Coalescer::submit(SmallRequest request) {
  std::vector<SmallRequest> requests;
  {
    const Lock lock(mutex_);
    waiting_[request.priority].push_back(std::move(request));
    requests = take();
  }
  if (!requests.empty()) send(std::move(requests));
}

bool Coalescer::fit(const SmallRequest& a, const SmallRequest& b) {
  return a.examples == b.examples && a.round == b.round;
}

std::vector<SmallRequest> Coalescer::take() {
  std::vector<SmallRequest> requests;
  // A request that is more urgent than all messages in flight does not wait.
  if (waiting_.empty() || (under_way_.size() >= kMostUnderWay && waiting_.begin()->first <= *under_way_.rbegin()))
    return requests;
  const int priority = waiting_.begin()->first;
  requests.reserve(std::min(waiting_.begin()->second.size(), kMostRequests));
  while (!waiting_.empty() && requests.size() < kMostRequests) {
    const auto first = waiting_.begin();
    // Less urgent requests join only while the message has fewer than kMostLessUrgent requests.
    if (first->first < priority && requests.size() >= kMostLessUrgent) break;
    if (!requests.empty() && !fit(requests.front(), first->second.front())) break;
    requests.push_back(std::move(first->second.front()));
    first->second.pop_front();
    if (first->second.empty()) waiting_.erase(first);
  }
  under_way_.insert(priority);
  return requests;
}

void Coalescer::send(std::vector<SmallRequest> requests) {
  const int priority = requests.front().priority;
  std::shared_ptr<Group> group;
  try {
    group = std::make_shared<Group>();
    group->requests.swap(requests);
    Message message = message_for(*group);
    std::size_t bytes = 0;
    for (const SmallRun& run : group->runs) bytes += run.push ? run.bytes : 0;
    outbox_.submit(priority, bytes, std::move(message),
                   [this, group, priority](const std::optional<Message>& answer, std::exception_ptr error) {
                     answered(*group, priority, answer, std::move(error));
                   });
  } catch (...) {
    // Out of memory: the message was not sent, and does not count as in flight.
    answered(group ? *group : Group{std::move(requests), {}}, priority, std::nullopt, std::current_exception());
  }
}

Message Coalescer::message_for(Group& group) const {
  for (const SmallRequest& request : group.requests)
    group.runs.insert(group.runs.end(), request.runs.begin(), request.runs.end());
  std::stable_sort(group.runs.begin(), group.runs.end(), comes_before);

  wire::PushPullRequest body;
  body.set_examples(group.requests.front().examples);
  body.set_round(group.requests.front().round);
  PartWriter parts(body);
  PayloadWriter payload;
  for (const SmallRun& run : group.runs) {
    wire::Part& part = parts.part_of(*run.slice, run.need);
    if (run.push) {
      PartWriter::push(part, *run.slice);
      payload.add(run.gradient, run.bytes, nullptr);
    }
    if (run.pull) part.add_pull(run.slice->number);
  }
  return message_of(MessageKind::kPushPull, body, payload.finish());
}

void Coalescer::answered(const Group& group, int priority, const std::optional<Message>& answer,
                         std::exception_ptr error) {
  std::vector<SmallRequest> next;
  {
    const Lock lock(mutex_);
    under_way_.erase(under_way_.find(priority));
    next = take();
  }
  // The next message goes first, so that the server works while this answer is read.
  if (!next.empty()) send(std::move(next));
  std::uint64_t waited = 0;
  try {
    if (!error) waited = take_answer(group, *answer);
  } catch (...) {
    error = std::current_exception();
  }
  for (const SmallRequest& request : group.requests) request.caller->on_answered(waited, error);
}

std::uint64_t Coalescer::take_answer(const Group& group, const Message& answer) {
  const auto pulled = std::count_if(group.runs.begin(), group.runs.end(), [](const SmallRun& run) { return run.pull; });
  wire::PushPullReply reply;
  if (!reply.ParseFromString(answer.body) || reply.versions_size() != pulled)
    throw Corrupt("a server's answer cannot be parsed");
  PayloadReader payload(answer.payload);
  int next = 0;
  for (const SmallRun& run : group.runs) {
    if (!run.pull) continue;
    if (const std::byte* data = payload.next(run.bytes)) std::memcpy(run.out, data, run.bytes);
    run.slice->base = reply.versions(next++);
  }
  payload.expect_end();
  return reply.waited_microseconds();
}

}  // namespace paceline
