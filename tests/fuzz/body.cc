// Bodies of messages, and what reads them in a place of its own. The sequences fuzzer covers what handlers do.

#include <array>

#include "fuzz.h"
#include "key_partition.h"
#include "parse_body.h"
#include "placement.h"
#include "roster.h"
#include "rows/table_layout.h"
#include "sparse.pb.h"
#include "store.pb.h"
#include "workers.pb.h"

namespace paceline::fuzz {
namespace {

// What an input of that size may make of memory. Each byte may be an empty element of a repeated field.
std::size_t bound(const std::string& bytes) { return 16384 + 512 * bytes.size(); }

template <class Body>
std::optional<Body> body_of(const std::string& bytes) {
  Message message;
  message.body = bytes;
  return within(bound(bytes), [&] { return parsed<Corrupt>([&] { return parse_body<Body>(message); }); });
}

template <class Body>
void plain(const std::string& bytes) {
  const auto body = body_of<Body>(bytes);
  if (!body) return;
  const std::string written = body->SerializeAsString();
  const auto again = body_of<Body>(written);
  expect(again && again->SerializeAsString() == written, "the body comes back as another");
}

void layout(const std::string& bytes) {
  const auto body = body_of<wire::InitReply>(bytes);
  if (!body) return;
  const auto read = within(bound(bytes), [&] { return parsed<Corrupt>([&] { return parse_layout(*body); }); });
  if (!read) return;
  wire::InitReply written, again;
  write_layout(*read, &written);
  write_layout(parse_layout(written), &again);
  expect(written.SerializeAsString() == again.SerializeAsString(), "the layout comes back as another");
  for (const KeyPartition& partition : read->partitions)
    for (const SliceRange& slice : partition.slices)
      expect(slice.begin >= 0 && slice.begin <= slice.end &&
                 slice.end <= read->keys.at(static_cast<std::size_t>(slice.key)).shape.size(),
             "a slice outside its key");
  for (const std::int64_t size : partition_bytes(*read)) expect(size >= 0, "a partition of ", size, " bytes");
}

void table(const std::string& bytes) {
  const auto body = body_of<wire::DeclareTable>(bytes);
  if (!body) return;
  const auto read = parsed<Corrupt, InvalidArgument>([&] { return parse_table(*body); });
  if (!read) return;
  wire::DeclareTable written;
  write_table(*read, &written);
  expect(same_table(parse_table(written), *read), "the table comes back as another");
  const int partitions = TableLayout::partitions_for(*read, 3);
  const TableLayout layout(*read, partitions);
  for (const std::int64_t row : {std::int64_t{0}, read->rows / 2, read->rows - 1})
    expect(layout.partition_of(row) >= 0 && layout.partition_of(row) < partitions, "row ", row, " is nowhere");
}

void places(const std::string& bytes) {
  constexpr int kServers = 3;
  const auto body = body_of<wire::Placement>(bytes);
  if (!body) return;
  Placement placement(kServers);
  const auto added = within(bound(bytes), [&] {
    return parsed<Corrupt, InvalidArgument>([&] {
      placement.add(*body);
      return true;
    });
  });
  const int count = placement.partitions(body->group());
  expect(count == (added ? body->servers_size() : 0), count, " partitions are placed");
  for (int p = 0; p < count; ++p) {
    const int server = placement.server_of(body->group(), p);
    expect(server >= 0 && server < kServers, "partition ", p, " is on server ", server);
  }
  if (added) placement.add(*body);
}

void members(const std::string& bytes) {
  const auto body = body_of<proto::Roster>(bytes);
  if (!body) return;
  const auto read = within(bound(bytes), [&] { return parsed<Corrupt>([&] { return from_proto(*body); }); });
  if (!read) return;
  const std::string written = to_proto(*read).SerializeAsString();
  proto::Roster again;
  expect(again.ParseFromString(written) && to_proto(from_proto(again)).SerializeAsString() == written,
         "the roster comes back as another");
}

constexpr std::array kBodies{
    layout,
    table,
    members,
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
    places,
};

}  // namespace

// The number of the type, then the body.
void body(std::string_view input) {
  Cutter cut(input);
  kBodies.at(cut.number<std::uint8_t>() % kBodies.size())(std::string(cut.rest()));
}

}  // namespace paceline::fuzz
