// PowerSGD in two rounds where a worker's push fails or says what none of ours does.
#include <gtest/gtest.h>
#include <paceline/compression.h>
#include <paceline/error.h>

#include <future>
#include <utility>

#include "hand_made_worker.h"
#include "key_partition.h"
#include "parse_body.h"
#include "pushed.h"
#include "send/two_round_push.h"
#include "store.pb.h"

namespace paceline::test {
namespace {

constexpr const char* kCodec = "power_sgd:rounds=2,rank=1";

wire::InitValuesRequest one_key() {
  wire::InitValuesRequest values;
  values.set_mode("dist_sync");
  write_key({"w", DType::kFloat32, Shape{8, 8}, false}, values.add_keys());
  values.mutable_partition()->add_slices()->set_end(64);
  return values;
}

std::vector<std::byte> proposal_of(const Codec& codec, const std::vector<float>& gradient,
                                   const std::array<float*, 2>& state) {
  std::vector<std::byte> proposal(codec.max_bytes(gradient.size()));
  proposal.resize(codec.encode(gradient, {.columns = 8}, state, proposal.data()));
  return proposal;
}

// The first push of slice 0.
wire::PushPullRequest push_of(const std::vector<std::byte>& proposal) {
  wire::PushPullRequest push;
  push.set_examples(1);
  push.add_codecs(kCodec);
  wire::Part* part = push.add_parts();
  part->set_sequence(1);
  part->add_push(0);
  part->add_base(0);
  part->add_push_codec(1);
  part->add_push_bytes(proposal.size());
  return push;
}

// A push that fails behind its proposal, here because the codec's state is lost, leaves the round to the others.
TEST(PowerSgd, AWorkerWhosePushFailsAbstains) {
  const ClusterConfig job = job_config("inproc", 1, 2);
  SchedulerThread scheduler(job);
  Server server(member(job, Role::kServer, 0), {}, 2);
  std::thread serving([&] { server.run(); });
  std::vector<std::unique_ptr<Outbox>> outboxes;  // outlive the nodes, whose threads may still be in their handlers
  std::promise<bool> failed;
  Node other(member(job, Role::kWorker, 0, 1), {}), node(member(job, Role::kWorker, 0, 0), {});
  std::thread joining([&] { other.join(); });
  node.join();
  joining.join();
  const wire::InitValuesRequest values = one_key();
  ask(node, MessageKind::kInitValues, values.SerializeAsString(), {Frame::of(std::string(256, '\0'))});

  const auto codec = codec_of(kCodec);
  const std::vector<float> ones(64, 1);
  std::vector<float> residual(64), query(64);
  const std::array<float*, 2> state{residual.data(), query.data()};
  const std::vector<std::byte> proposal = proposal_of(*codec, ones, state);
  const wire::PushPullRequest push = push_of(proposal);
  for (Node* worker : {&node, &other})
    ask(*worker, MessageKind::kPushPull, push.SerializeAsString(), {HandMadeWorker::frame(proposal)});
  const auto agree = [&](const std::vector<std::byte>& answer) {
    wire::AgreeRequest body;
    body.set_bytes(answer.size());
    const Message reply =
        ask(node, MessageKind::kAgree, body.SerializeAsString(),
            answer.empty() ? std::vector<Frame>{} : std::vector<Frame>{HandMadeWorker::frame(answer)});
    const auto read = parse_body<wire::AgreeReply>(reply);
    EXPECT_FALSE(read.over());
    return read.bytes();
  };
  EXPECT_GT(agree({}), 0u);

  {
    outboxes.push_back(std::make_unique<Outbox>(other, PeerId{Role::kServer, 0}));
    RemotePartition partition;
    RemoteKey key;
    key.info = {"w", DType::kFloat32, Shape{8, 8}, false};
    key.slices.push_back({&partition, 0, 0, 64, 0});
    const auto engine = make_serial_engine();
    key.order = engine->new_variable();
    const auto placement = std::make_shared<Placement>(1);
    placement->add(kDenseKeys, 0, std::array{0});
    const NDArray lost(Shape{64}, DType::kFloat32, {}, *engine);
    engine->push({"lose"}, {}, std::array{lost.variable()}, [](TaskContext&) { throw Error("lost"); });
    auto delivery = std::make_shared<Delivery>();
    delivery->then([&](const std::exception_ptr& error) { failed.set_value(error != nullptr); });
    TwoRoundPush::start(*engine, {&key,
                                  std::make_shared<WireCodec>(WireCodec{"", codec}),
                                  {lost, lost},
                                  0,
                                  0,
                                  &outboxes,
                                  placement,
                                  std::exchange(delivery, nullptr)});
    EXPECT_THROW(engine->wait(key.order), Error);
    EXPECT_GT(agree(std::vector<std::byte>(4 * 8)), 0u);
    EXPECT_TRUE(failed.get_future().get());  // its data does not count as delivered
    outboxes.front()->close();
  }
  for (Node* worker : {&node, &other}) worker->leave();
  serving.join();
}

// What no worker of ours says is refused, and the round goes on.
TEST(PowerSgd, ServersRefuseAnswersThatDoNotFit) {
  HandMadeWorker worker;
  const wire::InitValuesRequest values = one_key();
  worker.ask(MessageKind::kInitValues, values, {Frame::of(std::string(256, '\0'))});

  wire::AgreeRequest agree;
  const auto refusal = [&](const std::vector<std::byte>& answer) {
    agree.set_bytes(answer.size());
    return error_of_call([&] {
      worker.ask(MessageKind::kAgree, agree,
                 answer.empty() ? std::vector<Frame>{} : std::vector<Frame>{worker.frame(answer)});
    });
  };
  agree.set_slice(1);
  EXPECT_NE(refusal({}).find("no slice 1"), std::string::npos);
  agree.set_slice(0);
  agree.set_partition(9);
  EXPECT_NE(refusal({}).find("partition 9"), std::string::npos);
  agree.set_partition(0);
  EXPECT_NE(refusal(std::vector<std::byte>(4)).find("not agreed"), std::string::npos);

  const auto codec = codec_of(kCodec);
  const std::vector<float> ones(64, 1);
  std::vector<float> residual(64), query(64);
  const std::array<float*, 2> state{residual.data(), query.data()};
  const std::vector<std::byte> proposal = proposal_of(*codec, ones, state);
  EXPECT_THROW(codec->check({proposal.data(), proposal.size() - 1}, 64), Corrupt);
  const wire::PushPullRequest push = push_of(proposal);
  worker.ask(MessageKind::kPushPull, push, {worker.frame(proposal)});
  EXPECT_NE(refusal(std::vector<std::byte>(5)).find("an answer of 5 bytes"), std::string::npos);
  EXPECT_NE(refusal(std::vector<std::byte>(4 * 64)).find("an answer of 256 bytes"), std::string::npos);
  // What was said well is still good.
  EXPECT_EQ(refusal({}), "");
  EXPECT_EQ(refusal(std::vector<std::byte>(4 * 8)), "");
  EXPECT_EQ(refusal({}), "");  // over
}

}  // namespace
}  // namespace paceline::test
