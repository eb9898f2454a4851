#pragma once
// Decides which peers may connect to the sockets of the tcp transport, and how peers prove their identity.

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
  // Set the options of a socket before it listens or connects. `key` is what this door needs to connect to the peer,
  // such as the public key of the peer.
  virtual void equip_listener(zmq::socket_t& socket) const = 0;
  virtual void equip_caller(zmq::socket_t& socket, const std::string& key) const = 0;
  // Checks the credentials of a peer. Returns the identity of the peer. If the result is empty, the peer is turned
  // away, and may try again later.
  virtual std::string admit(const std::string& mechanism, const std::vector<std::string>& credentials) = 0;
  // Is a peer that was admitted with this identity still welcome?
  virtual bool still_admits(const std::string& identity) const = 0;
  // Does ZeroMQ reconnect when a connection to a peer breaks? If not, the transport calls broken(), which must not
  // block.
  virtual bool lets_callers_return() const { return true; }
  virtual void broken(LinkId /*link*/) {}
};

// Answers the authentication requests of the sockets of one context (ZAP, rfc.zeromq.org/spec/27). Create the Doorman
// before a socket of the context listens. Its thread ends when the context is closed.
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
// Makes a door that uses CURVE. The identity of a peer is its public key.
std::shared_ptr<Door> make_curve_door(std::shared_ptr<Keyring> keyring);

// Admits peers by tokens, each of which is good for one connection. Nothing is encrypted. The `key` of equip_caller()
// is a token that the peer's door has issued.
class TokenDoor final : public Door {
 public:
  // Returns a new token. The peer that shows this token gets the identity.
  std::string issue(const std::string& identity);
  // Sets the function that broken() calls. Call this before the door is used.
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
