#include "exchange/fuser.h"

#include <paceline/error.h>

#include <optional>
#include <utility>

namespace paceline {
namespace {

constexpr int kMostUnderWay = 2;  // messages: one is worked on while the next travels
constexpr std::size_t kMostRequests = 512;

}  // namespace

void Fuser::submit(SmallRequest request) {
  Group group;
  {
    const Lock lock(mutex_);
    waiting_[request.priority].push_back(std::move(request));
    group = take();
  }
  if (!group.empty()) send(std::move(group));
}

bool Fuser::fit(const SmallRequest& a, const SmallRequest& b) {
  return a.body.examples() == b.body.examples() && a.body.round() == b.body.round();
}

Fuser::Group Fuser::take() {
  Group group;
  if (waiting_.empty() || under_way_ == kMostUnderWay) return group;
  ++under_way_;
  std::deque<SmallRequest>& first = waiting_.begin()->second;
  while (!first.empty() && group.size() < kMostRequests && (group.empty() || fit(group.front(), first.front()))) {
    group.push_back(std::move(first.front()));
    first.pop_front();
  }
  if (first.empty()) waiting_.erase(waiting_.begin());
  return group;
}

void Fuser::send(Group group) {
  Message message;
  message.header.kind = MessageKind::kPushPull;
  std::size_t bytes = 0;
  for (const SmallRequest& request : group) bytes += request.pushed_bytes;
  if (group.size() == 1) {
    message.body = group.front().body.SerializeAsString();
    message.payload = std::move(group.front().payload);
  } else {
    wire::PushPullRequest whole = std::move(group.front().body);
    PayloadWriter payload;
    for (std::size_t i = 0; i < group.size(); ++i) {
      for (wire::Part& part : *group[i].body.mutable_parts())
        if (i > 0) *whole.add_parts() = std::move(part);
      for (const Frame& frame : group[i].payload) payload.add(frame.data, frame.size, nullptr);
    }
    message.body = whole.SerializeAsString();
    message.payload = payload.finish();
  }
  const int priority = group.front().priority;
  const auto sent = std::make_shared<const Group>(std::move(group));
  outbox_.submit(priority, bytes, std::move(message),
                 [this, sent](const std::optional<Message>& answer, std::exception_ptr error) {
                   Group next;
                   {
                     const Lock lock(mutex_);
                     --under_way_;
                     next = take();
                   }
                   // First the next, so that the server works while the answer is taken in.
                   if (!next.empty()) send(std::move(next));
                   on_answer(*sent, answer, std::move(error));
                 });
}

void Fuser::on_answer(const Group& group, const std::optional<Message>& answer, std::exception_ptr error) {
  wire::PushPullReply reply;
  std::optional<PayloadReader> payload;
  if (!error) {
    int pulled = 0;
    for (const SmallRequest& request : group) pulled += request.pulled;
    payload.emplace(answer->payload);
    if (!reply.ParseFromString(answer->body) || reply.versions_size() != pulled)
      error = std::make_exception_ptr(Corrupt("a server's answer cannot be parsed"));
  }
  int first = 0;
  for (const SmallRequest& request : group) {
    request.on_answer(error ? nullptr : &reply, first, payload ? &*payload : nullptr, error);
    first += request.pulled;
  }
}

}  // namespace paceline
