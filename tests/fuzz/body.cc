// Bodies of messages. The fuzzer `layout` covers what reads some of them in a place of its own, and `sequences` what
// handlers do.

#include <array>

#include "bodies.h"
#include "message.pb.h"
#include "sparse.pb.h"
#include "store.pb.h"
#include "workers.pb.h"

namespace paceline::fuzz {
namespace {

template <class Body>
void plain(const std::string& bytes) {
  const auto body = body_of<Body>(bytes);
  if (!body) return;
  const std::string written = body->SerializeAsString();
  const auto again = body_of<Body>(written);
  expect(again && again->SerializeAsString() == written, "the body comes back as another");
}

constexpr std::array kBodies{
    plain<proto::Join>,
    plain<proto::Joined>,
    plain<proto::Notice>,
    plain<proto::Barrier>,
    plain<proto::Fact>,
    plain<proto::GetFacts>,
    plain<proto::Facts>,
    plain<proto::DataPart>,
    plain<proto::DataPartReply>,
    plain<proto::DataBegin>,
    plain<proto::DataCommit>,
    plain<proto::DataCommitted>,
    plain<proto::DataCommittedReply>,
    plain<proto::DataTakeOver>,
    plain<proto::DataTakeOverReply>,
    plain<wire::InitRequest>,
    plain<wire::OptimizerRequest>,
    plain<wire::InitValuesRequest>,
    plain<wire::PushPullRequest>,
    plain<wire::PushPullReply>,
    plain<wire::AgreeRequest>,
    plain<wire::AgreeReply>,
    plain<wire::StepEnd>,
    plain<wire::StepEndReply>,
    plain<wire::SetRules>,
    plain<wire::Report>,
    plain<wire::SaveRequest>,
    plain<wire::SaveReply>,
    plain<wire::LoadRequest>,
    plain<wire::PlaceTablesRequest>,
    plain<wire::PlaceTablesReply>,
    plain<wire::FillTableRequest>,
    plain<wire::FillTableReply>,
    plain<wire::PushPullRowsRequest>,
    plain<wire::PushPullRowsReply>,
    plain<wire::SaveRowsRequest>,
    plain<wire::SavedRows>,
    plain<wire::LoadRowsRequest>,
    plain<wire::RingPush>,
    plain<wire::RingResult>,
    plain<wire::RingTaken>,
    plain<wire::RingTell>,
    plain<wire::RingAsk>,
    plain<wire::RingState>,
    plain<wire::WorkerSlices>,
    plain<wire::GossipMeet>,
    plain<wire::GossipFetch>,
};

}  // namespace

// The number of the type, then the body.
void body(std::string_view input) {
  Cutter cut(input);
  kBodies.at(cut.number<std::uint8_t>() % kBodies.size())(std::string(cut.rest()));
}

}  // namespace paceline::fuzz
