#pragma once
// The observers of one transport. The list is read for every packet and rarely changed.

#include <paceline/mutex.h>
#include <paceline/transport.h>

#include <memory>
#include <string>
#include <vector>

namespace paceline {

class Observers {
 public:
  void add(std::shared_ptr<TransportObserver> observer) {
    const Lock lock(mutex_);
    auto longer = std::make_shared<List>(list_ ? *list_ : List());
    longer->push_back(std::move(observer));
    list_ = std::move(longer);
  }
  bool any() const { return now() != nullptr; }
  void on_send(LinkId link, const Packet& packet) const {
    if (const auto list = now())
      for (const auto& observer : *list) observer->on_send(link, packet);
  }
  void on_receive(LinkId link, const Packet& packet) const {
    if (const auto list = now())
      for (const auto& observer : *list) observer->on_receive(link, packet);
  }
  void on_reject(const std::string& what) const {
    if (const auto list = now())
      for (const auto& observer : *list) observer->on_reject(what);
  }

 private:
  using List = std::vector<std::shared_ptr<TransportObserver>>;
  std::shared_ptr<const List> now() const {
    const Lock lock(mutex_);
    return list_;
  }

  mutable Mutex mutex_;
  std::shared_ptr<const List> list_ PACELINE_GUARDED_BY(mutex_);
};

// Observes a transport inside another transport, and passes on its rejections only. The packets of the inner transport
// are not the packets of the outer one.
class RejectionsOnly final : public TransportObserver {
 public:
  explicit RejectionsOnly(std::shared_ptr<TransportObserver> to) : to_(std::move(to)) {}
  void on_send(LinkId, const Packet&) override {}
  void on_receive(LinkId, const Packet&) override {}
  void on_reject(const std::string& what) override { to_->on_reject(what); }

 private:
  const std::shared_ptr<TransportObserver> to_;
};

}  // namespace paceline
