// What the scheduler tells of keys, tables, partitions and members, and what workers declare.

#include <array>

#include "bodies.h"
#include "key_partition.h"
#include "placement.h"
#include "roster.h"
#include "rows/table_layout.h"
#include "sparse.pb.h"
#include "store.pb.h"

namespace paceline::fuzz {
namespace {

void keys(const std::string& bytes) {
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

constexpr std::array kReaders{keys, table, places, members};

}  // namespace

// Which of them, then the body.
void layout(std::string_view input) {
  Cutter cut(input);
  kReaders.at(cut.number<std::uint8_t>() % kReaders.size())(std::string(cut.rest()));
}

}  // namespace paceline::fuzz
