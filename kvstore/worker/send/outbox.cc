#include "send/outbox.h"

#include <paceline/error.h>

#include <algorithm>
#include <utility>

namespace paceline {

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

}  // namespace paceline
