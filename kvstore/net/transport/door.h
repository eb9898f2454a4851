#pragma once
// Who may connect to the sockets of the tcp transport, and how these prove who they are.

#include <paceline/mutex.h>
#include <paceline/transport.h>

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>
#include <zmq.hpp>

namespace paceline {

// Thread-safe.
class Door {
 public:
  virtual ~Door() = default;
  // Before the socket listens, and before it connects to a peer that must have the secret of the public key `key`.
  virtual void equip_listener(zmq::socket_t& socket) const = 0;
  virtual void equip_caller(zmq::socket_t& socket, const std::string& key) const = 0;
  // A peer shows its credentials. Returns its identity; empty: it is turned away, and may try again later.
  virtual std::string admit(const std::string& mechanism, const std::vector<std::string>& credentials) = 0;
  // Is a peer that was admitted with this identity still welcome?
  virtual bool still_admits(const std::string& identity) const = 0;
  // Is a connection to a peer made anew when it breaks? If not, broken() is called, which must not block.
  virtual bool lets_callers_return() const { return true; }
  virtual void broken(LinkId /*link*/) {}
};

// Answers the questions that the sockets of one context ask about peers (ZAP, rfc.zeromq.org/spec/27). Begin it before
// a socket of the context listens. It ends when the context is closed.
class Doorman {
 public:
  Doorman(zmq::context_t& context, std::shared_ptr<Door> door);
  ~Doorman() { thread_.join(); }
  Doorman(const Doorman&) = delete;

 private:
  void answer(zmq::socket_t& questions) const;

  const std::shared_ptr<Door> door_;
  std::thread thread_;
};

class Keyring;
// CURVE. The identity of a peer is its public key.
std::shared_ptr<Door> make_curve_door(std::shared_ptr<Keyring> keyring);

// Tokens, each good for one connection. Nothing is encrypted. `key` of a caller is its token.
class TokenDoor final : public Door {
 public:
  // Returns a new token. Who shows it gets the identity.
  std::string issue(const std::string& identity);
  // Before the door is used.
  void when_broken(std::function<void(LinkId)> callback) { when_broken_ = std::move(callback); }

  void equip_listener(zmq::socket_t& socket) const override;
  void equip_caller(zmq::socket_t& socket, const std::string& key) const override;
  std::string admit(const std::string& mechanism, const std::vector<std::string>& credentials) override;
  bool still_admits(const std::string& /*identity*/) const override { return true; }
  bool lets_callers_return() const override { return false; }
  void broken(LinkId link) override { when_broken_(link); }

 private:
  Mutex mutex_;
  std::unordered_map<std::string, std::string> identities_ PACELINE_GUARDED_BY(mutex_);  // by token
  std::deque<std::string> issued_ PACELINE_GUARDED_BY(mutex_);
  std::function<void(LinkId)> when_broken_;
};

}  // namespace paceline
