#include "send/outbox.h"

#include <paceline/error.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "parse_body.h"
#include "payload.h"

namespace paceline {

// ---- FlowWindow ----

namespace {

constexpr double kSmallRequest = 4096;      // bytes; the round trip of a request up to this size measures latency
constexpr double kLargeRequest = 64 << 10;  // bytes; a request from this size on measures bandwidth
constexpr int kSamples = 64;                // samples of a period; a bandwidth counts in its period and in the next
constexpr double kPieces = 3;               // messages: one travels, one is applied, one is answered
constexpr double kLeastSeconds = 0.02;      // what a busy machine may take to answer
constexpr double kLeastMessage = 256 << 10, kMostMessage = 4 << 20;
constexpr double kFirstMessage = 1 << 20;  // good on fast links, and does not block a slow link for long
constexpr double kMost = 16 << 20, kAtFirst = 8 << 20;

}  // namespace

void FlowWindow::answered(const Ticket& ticket, std::size_t bytes, Time now) {
  answered_ += static_cast<double>(bytes);
  last_answer_ = now;
  const auto since = [now](Time then) { return std::max(1e-7, std::chrono::duration<double>(now - then).count()); };
  if (static_cast<double>(bytes) <= kSmallRequest) {
    // Takes the shortest time of all, because other requests waited behind large ones or for other workers.
    const double way = since(ticket.sent) / 2;
    latency_ = latency_known_ ? std::min(latency_, way) : way;
    latency_known_ = true;
  }
  if (static_cast<double>(bytes) < kLargeRequest) return;
  // The largest sample is the link's bandwidth. A sample is too low if there was little to send.
  fastest_ = std::max(fastest_, (answered_ - ticket.answered_before) / since(ticket.since));
  if (++samples_ < kSamples) return;
  samples_ = 0;
  fastest_before_ = std::exchange(fastest_, 0);
}

void FlowWindow::idle() {
  step_over();
  last_answer_ = {};
}

void FlowWindow::step_over() {
  if (burst_ > 0) last_burst_ = std::exchange(burst_, 0);
}

double FlowWindow::bytes_per_second() const { return std::max(fastest_, fastest_before_); }

std::size_t FlowWindow::message_bytes() const {
  if (fixed_message_ > 0) return fixed_message_;
  const double speed = bytes_per_second();
  const double best = speed > 0 ? std::sqrt(latency_ * speed * std::max(burst_, last_burst_) / 2) : kFirstMessage;
  return static_cast<std::size_t>(std::clamp(best, kLeastMessage, kMostMessage));
}

std::size_t FlowWindow::bytes() const {
  const double speed = bytes_per_second();
  if (speed == 0 && !narrow_) return static_cast<std::size_t>(kAtFirst);
  const double round_trips = narrow_ ? 2 * latency_ * speed : std::max(kLeastSeconds, 4 * latency_) * speed;
  return static_cast<std::size_t>(
      std::min(std::max(kPieces * static_cast<double>(message_bytes()), round_trips), kMost));
}

// ---- Outbox ----

void Outbox::submit(int priority, std::size_t bytes, Message request, Node::ReplyHandler on_reply) {
  auto sent = std::make_shared<Sent>(Sent{{}, bytes, std::move(on_reply)});
  {
    Lock lock(mutex_);
    heap_.push_back({priority, submitted_++, std::move(request), std::move(sent)});
    credit_.submitted(bytes);
    std::push_heap(heap_.begin(), heap_.end());
  }
  pump();
}

void Outbox::pump() {
  mutex_.lock();
  while (!pumping_ && !heap_.empty()) {
    const std::size_t bytes = heap_.front().sent->bytes;
    if (!closed_ && bytes > 0 && under_way_ > 0 && under_way_ + bytes > credit_.bytes()) break;
    std::pop_heap(heap_.begin(), heap_.end());
    Entry entry = std::move(heap_.back());
    heap_.pop_back();
    under_way_ += bytes;
    pumping_ = true;
    const bool closed = closed_;
    mutex_.unlock();
    send(std::move(entry), closed);
    mutex_.lock();
    pumping_ = false;
    idle_.notify_all();
  }
  mutex_.unlock();
}

void Outbox::send(Entry entry, bool closed) {
  const std::shared_ptr<Sent> sent = std::move(entry.sent);
  if (closed) {
    sent->on_reply(std::nullopt, std::make_exception_ptr(NetworkError("this process has left the job")));
    return;
  }
  {
    Lock lock(mutex_);
    sent->ticket = credit_.sent(std::chrono::steady_clock::now());
  }
  try {
    node_.ask(server_, std::move(entry.request), [this, sent](std::optional<Message> answer, std::exception_ptr error) {
      answered(sent, std::move(answer), std::move(error));
      pump();
    });
  } catch (...) {
    answered(sent, std::nullopt, std::current_exception());
  }
}

void Outbox::answered(const std::shared_ptr<Sent>& sent, std::optional<Message> answer, std::exception_ptr error) {
  Node::ReplyHandler on_reply;
  {
    Lock lock(mutex_);
    on_reply = std::exchange(sent->on_reply, nullptr);
    if (!on_reply) return;
    under_way_ -= sent->bytes;
    if (answer) credit_.answered(sent->ticket, sent->bytes, std::chrono::steady_clock::now());
    if (under_way_ == 0 && heap_.empty()) credit_.idle();
  }
  on_reply(std::move(answer), std::move(error));
}

std::size_t Outbox::window() const {
  const Lock lock(mutex_);
  return credit_.bytes();
}

std::size_t Outbox::message_bytes() const {
  const Lock lock(mutex_);
  return credit_.message_bytes();
}

void Outbox::end_step() {
  const Lock lock(mutex_);
  credit_.step_over();
}

void Outbox::close() {
  {
    Lock lock(mutex_);
    closed_ = true;
    idle_.wait(mutex_, [this]() PACELINE_REQUIRES(mutex_) { return !pumping_; });
  }
  pump();
}

// ---- Coalescer ----

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
