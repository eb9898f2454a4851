#pragma once
// Messages that no worker of ours would send.

#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cluster_in_process.h"
#include "server.h"
#include "store.pb.h"

namespace paceline::test {

// The scheduler's kinds go to it, the others to server 0. Returns its answer; throws what it refuses.
inline Message ask(Node& node, MessageKind kind, std::string body, std::vector<Frame> payload = {}) {
  Message message;
  message.header.kind = kind;
  message.body = std::move(body);
  message.payload = std::move(payload);
  return node.ask_and_wait({kind < MessageKind::kInitValues ? Role::kScheduler : Role::kServer, 0}, message);
}

// The only worker of a job with one server, both in this process. It says what the test lets it say, and leaves.
class HandMadeWorker {
 public:
  HandMadeWorker() { node_.join(); }
  ~HandMadeWorker() {
    node_.leave();
    serving_.join();
  }

  Message ask(MessageKind kind, const google::protobuf::MessageLite& body, std::vector<Frame> payload = {}) {
    return test::ask(node_, kind, body.SerializeAsString(), std::move(payload));
  }
  // Padded, as payloads are.
  static Frame frame(const std::vector<std::byte>& bytes) {
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    text.resize((text.size() + 7) / 8 * 8);
    return Frame::of(text);
  }

 private:
  ClusterConfig job_ = job_config("inproc", 1, 1);
  SchedulerThread scheduler_{job_};
  Server server_{member(job_, Role::kServer, 0), {}, 1};
  std::thread serving_{[this] { server_.run(); }};
  Node node_{member(job_, Role::kWorker, 0, 0), Node::Handlers{}};
};

}  // namespace paceline::test
