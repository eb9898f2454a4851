#include "transport/door.h"

#include <paceline/error.h>
#include <paceline/log.h>

#include <cerrno>
#include <utility>

#include "random.h"
#include "secrets/keyring.h"

namespace paceline {
namespace {

// request := version id domain address socket mechanism credential*      answer := version id status text user metadata
constexpr std::size_t kVersion = 0, kId = 1, kMechanism = 5, kFirstCredential = 6;
constexpr char kWelcome[] = "200";
constexpr char kNotNow[] = "300";  // after any other refusal, the peer's ZeroMQ would never try again

class CurveDoor final : public Door {
 public:
  explicit CurveDoor(std::shared_ptr<Keyring> keyring) : keyring_(std::move(keyring)) {}

  void equip_listener(zmq::socket_t& socket) const override {
    socket.set(zmq::sockopt::zap_domain, "paceline");
    socket.set(zmq::sockopt::curve_server, true);
    socket.set(zmq::sockopt::curve_secretkey, keyring_->listening().secret);
  }

  void equip_caller(zmq::socket_t& socket, const std::string& key) const override {
    require(!key.empty(), "[tcp] the public key of the peer is missing");
    socket.set(zmq::sockopt::curve_serverkey, key);
    socket.set(zmq::sockopt::curve_publickey, keyring_->own().open);
    socket.set(zmq::sockopt::curve_secretkey, keyring_->own().secret);
  }

  std::string admit(const std::string& mechanism, const std::vector<std::string>& credentials) override {
    if (mechanism != "CURVE" || credentials.size() != 1 || credentials[0].size() != 32) return {};
    char key[41];
    zmq_z85_encode(key, reinterpret_cast<const std::uint8_t*>(credentials[0].data()), credentials[0].size());
    return keyring_->admits_soon(key) ? key : "";
  }

  bool still_admits(const std::string& identity) const override { return keyring_->admits(identity); }

 private:
  const std::shared_ptr<Keyring> keyring_;
};

}  // namespace

std::shared_ptr<Door> make_curve_door(std::shared_ptr<Keyring> keyring) {
  return std::make_shared<CurveDoor>(std::move(keyring));
}

std::string TokenDoor::issue(const std::string& identity) {
  constexpr std::size_t kTokenBytes = 16, kMostTokens = 65536;
  std::string token;
  for (const char byte : random_bytes(kTokenBytes)) {
    token.push_back("0123456789abcdef"[static_cast<unsigned char>(byte) >> 4]);
    token.push_back("0123456789abcdef"[byte & 15]);
  }
  const Lock lock(mutex_);
  identities_[token] = identity;
  issued_.push_back(token);
  if (issued_.size() > kMostTokens) {
    identities_.erase(issued_.front());
    issued_.pop_front();
  }
  return token;
}

void TokenDoor::equip_listener(zmq::socket_t& socket) const {
  socket.set(zmq::sockopt::zap_domain, "paceline");
  socket.set(zmq::sockopt::plain_server, true);
}

void TokenDoor::equip_caller(zmq::socket_t& socket, const std::string& key) const {
  require(!key.empty(), "[tcp] the token for the peer is missing");
  socket.set(zmq::sockopt::reconnect_ivl, -1);
  socket.set(zmq::sockopt::plain_username, "paceline");
  socket.set(zmq::sockopt::plain_password, key);
}

std::string TokenDoor::admit(const std::string& mechanism, const std::vector<std::string>& credentials) {
  if (mechanism != "PLAIN" || credentials.size() != 2) return {};
  const Lock lock(mutex_);
  const auto node = identities_.extract(credentials[1]);
  return node.empty() ? std::string() : node.mapped();
}

Doorman::Doorman(zmq::context_t& context, std::shared_ptr<Door> door) : door_(std::move(door)) {
  zmq::socket_t questions(context, zmq::socket_type::rep);
  questions.set(zmq::sockopt::linger, 0);
  questions.bind("inproc://zeromq.zap.01");
  thread_ = std::thread([this, questions = std::move(questions)]() mutable {
    for (;;) {
      try {
        answer(questions);
      } catch (const zmq::error_t& error) {
        if (error.num() == ETERM) return;
        if (error.num() != EINTR) LOG(WARNING) << "[tcp] asking who connects: " << error.what();
      }
    }
  });
}

void Doorman::answer(zmq::socket_t& questions) const {
  std::vector<std::string> request;
  for (bool more = true; more;) {
    zmq::message_t frame;
    if (!questions.recv(frame)) return;
    more = frame.more();
    request.push_back(frame.to_string());
  }
  std::string identity;
  if (request.size() >= kFirstCredential && request[kVersion] == "1.0")
    identity = door_->admit(request[kMechanism], {request.begin() + kFirstCredential, request.end()});
  request.resize(kFirstCredential);
  const std::string status = identity.empty() ? kNotNow : kWelcome;
  for (const std::string& frame : {request[kVersion], request[kId], status, std::string(), identity})
    questions.send(zmq::message_t(frame), zmq::send_flags::sndmore);
  questions.send(zmq::message_t(), zmq::send_flags::none);
}

}  // namespace paceline
