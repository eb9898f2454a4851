// A transport that loses, repeats, delays and reorders outgoing packets. One seeded generator decides about each
// packet. A thread of the transport sends delayed packets. With `bytes_per_second`, all packets pass one line of that
// speed, in order. With `connect_ms`, connect() takes that long, as if the resolver were slow.

#include <paceline/error.h>
#include <paceline/mutex.h>
#include <paceline/transport.h>

#include <chrono>
#include <map>
#include <random>
#include <thread>

namespace paceline {
namespace {

using Clock = std::chrono::steady_clock;

double probability(const Options& options, const char* name) {
  const double value = options.get<double>(name, 0);
  require(value >= 0 && value <= 1, "[faulty] ", name, "=", value, " is no probability, expected 0 to 1");
  return value;
}

class Faulty final : public Transport {
 public:
  Faulty(std::unique_ptr<Transport> inner, const Options& options)
      : loss_(probability(options, "loss")),
        duplicate_(probability(options, "duplicate")),
        reorder_(probability(options, "reorder")),
        delay_ms_(options.get<double>("delay_ms", 0)),
        bytes_per_second_(options.get<double>("bytes_per_second", 0)),
        connect_ms_(options.get<double>("connect_ms", 0)),
        random_(static_cast<std::uint64_t>(options.get<std::int64_t>("seed", 0))),
        inner_(std::move(inner)) {
    options.reject_unknown("faulty");
    require(delay_ms_ >= 0 && bytes_per_second_ >= 0 && connect_ms_ >= 0, "[faulty] delay_ms=", delay_ms_,
            ", bytes_per_second=", bytes_per_second_, " or connect_ms=", connect_ms_, " is negative");
    thread_ = std::thread([this] { run(); });
  }

  ~Faulty() override {
    {
      const Lock lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

  std::string bind(const std::string& address) override { return inner_->bind(address); }
  void use_keys(std::shared_ptr<Keyring> keyring) override { inner_->use_keys(std::move(keyring)); }
  LinkId connect(const std::string& address, const std::string& key) override {
    std::this_thread::sleep_for(nanoseconds(connect_ms_ * 1e6));
    return inner_->connect(address, key);
  }
  std::string identity_of(LinkId link) override { return inner_->identity_of(link); }
  void close_unadmitted() override { inner_->close_unadmitted(); }
  void close(LinkId link) override { inner_->close(link); }
  std::string describe(LinkId link) override { return inner_->describe(link); }
  void on_receive(Handler handler) override { inner_->on_receive(std::move(handler)); }
  void add_observer(std::shared_ptr<TransportObserver> observer) override { inner_->add_observer(std::move(observer)); }
  bool reads_in_place(LinkId link, const void* data, std::size_t bytes) override {
    return inner_->reads_in_place(link, data, bytes);
  }

  void send(LinkId link, Packet packet) override {
    const Lock lock(mutex_);
    if (chance(loss_)) return;
    if (chance(duplicate_)) send_or_hold(link, packet);
    send_or_hold(link, std::move(packet));
  }

 private:
  bool chance(double p) PACELINE_REQUIRES(mutex_) { return p > 0 && std::bernoulli_distribution(p)(random_); }

  static std::chrono::nanoseconds nanoseconds(double count) {
    return std::chrono::nanoseconds(static_cast<std::int64_t>(count));
  }

  void send_or_hold(LinkId link, Packet packet) PACELINE_REQUIRES(mutex_) {
    double hold_ms = delay_ms_ > 0 ? std::exponential_distribution(1 / delay_ms_)(random_) : 0;
    const bool overtaken = chance(reorder_);
    if (overtaken) hold_ms += std::uniform_real_distribution(1.0, 10.0)(random_);
    Clock::time_point due = Clock::now();
    if (bytes_per_second_ > 0) {
      double bytes = 0;
      for (const Frame& frame : packet) bytes += static_cast<double>(frame.size);
      line_free_ = std::max(due, line_free_) + nanoseconds(bytes / bytes_per_second_ * 1e9);
      due = line_free_;
    }
    due += nanoseconds(hold_ms * 1e6);
    Clock::time_point& last = last_due_[link];
    if (!overtaken) last = due = std::max(due, last);
    if (!overtaken && delay_ms_ == 0 && bytes_per_second_ == 0) {
      inner_->send(link, std::move(packet));
    } else {
      held_.emplace(due, std::make_pair(link, std::move(packet)));
      changed_.notify_all();
    }
  }

  void run() {
    while (send_next()) continue;
  }

  // Waits for the next delayed packet, and sends it when it is due. False when the transport stops.
  bool send_next() {
    Packet packet;  // destroyed after the lock is released, because its owner may send
    const Lock lock(mutex_);
    if (stop_) return false;
    if (held_.empty()) {
      changed_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return stop_ || !held_.empty(); });
      return true;
    }
    const auto first = held_.begin();
    const auto early = first->first - Clock::now();
    if (early.count() > 0) {
      const auto known = first->first;
      changed_.wait_for(mutex_, early,
                        [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return stop_ || held_.begin()->first < known; });
      return true;
    }
    const LinkId link = first->second.first;
    packet = std::move(first->second.second);
    held_.erase(first);
    inner_->send(link, packet);
    return true;
  }

  const double loss_, duplicate_, reorder_, delay_ms_, bytes_per_second_, connect_ms_;
  Mutex mutex_;
  CondVar changed_;
  std::mt19937_64 random_ PACELINE_GUARDED_BY(mutex_);
  std::multimap<Clock::time_point, std::pair<LinkId, Packet>> held_ PACELINE_GUARDED_BY(mutex_);
  std::map<LinkId, Clock::time_point> last_due_ PACELINE_GUARDED_BY(mutex_);
  Clock::time_point line_free_ PACELINE_GUARDED_BY(mutex_);
  bool stop_ PACELINE_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Transport> inner_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Transport> make_faulty_transport(std::unique_ptr<Transport> inner, const Options& options) {
  return std::make_unique<Faulty>(std::move(inner), options);
}

}  // namespace paceline
