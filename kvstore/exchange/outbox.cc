#include "exchange/outbox.h"

#include <paceline/error.h>

#include <algorithm>

namespace paceline {

void Outbox::submit(int priority, std::size_t bytes, Message request, Node::ReplyHandler on_reply) {
  {
    Lock lock(mutex_);
    credit_.submitted(bytes);
    heap_.push_back({priority, submitted_++, bytes, std::move(request), std::move(on_reply)});
    std::push_heap(heap_.begin(), heap_.end());
  }
  pump();
}

void Outbox::pump() {
  mutex_.lock();
  while (!pumping_ && !heap_.empty()) {
    const std::size_t bytes = heap_.front().bytes;
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
  if (closed) {
    entry.on_reply(std::nullopt, std::make_exception_ptr(NetworkError("this process has left the job")));
    return;
  }
  CreditWindow::Ticket ticket;
  {
    Lock lock(mutex_);
    ticket = credit_.sent(std::chrono::steady_clock::now());
  }
  node_.ask(server_, std::move(entry.request),
            [this, ticket, bytes = entry.bytes, on_reply = std::move(entry.on_reply)](std::optional<Message> answer,
                                                                                      std::exception_ptr error) {
              {
                Lock lock(mutex_);
                under_way_ -= bytes;
                if (answer) credit_.answered(ticket, bytes, std::chrono::steady_clock::now());
                if (under_way_ == 0 && heap_.empty()) credit_.idle();
              }
              on_reply(std::move(answer), std::move(error));
              pump();
            });
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
    idle_.wait(mutex_, [this]() REQUIRES(mutex_) { return !pumping_; });
  }
  pump();
}

}  // namespace paceline
