#include "table_control.h"

#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/updater.h>

#include <algorithm>

#include "parse_body.h"
#include "payload.h"
#include "replies.h"
#include "served_call.h"
#include "store.pb.h"

namespace paceline {
namespace {

constexpr std::size_t kSavedBytes = std::size_t{8} << 20;
// The most bytes of rows in an answer: more than a worker asks for in one message.
constexpr std::size_t kAnswerBytes = std::size_t{64} << 20;

// Finds arrays of rows in a payload. Checks each count, because a message may announce anything.
class RowReader {
 public:
  explicit RowReader(const std::vector<Frame>& frames) : payload_(frames) {
    for (const Frame& frame : frames) bytes_ += frame.size;
  }
  template <class T>
  const T* next(std::uint64_t count, std::size_t width = sizeof(T)) {
    if (count > bytes_ / width) throw Corrupt(str("a message of ", bytes_, " bytes announces ", count, " rows"));
    return reinterpret_cast<const T*>(payload_.next(static_cast<std::size_t>(count) * width));
  }
  std::span<const std::int64_t> ids(std::uint64_t count) {
    return {next<std::int64_t>(count), static_cast<std::size_t>(count)};
  }
  PayloadReader& payload() { return payload_; }

 private:
  PayloadReader payload_;
  std::size_t bytes_ = 0;
};

}  // namespace

bool TableControl::on_request(const Request& request, const OfServer& server) {
  switch (request.message().header.kind) {
    case MessageKind::kDeclareTable: declare(request, server); return true;
    case MessageKind::kPushPullRows: push_pull(request); return true;
    case MessageKind::kSaveRows: save(request); return true;
    case MessageKind::kLoadRows: load(request); return true;
    default: return false;
  }
}

void TableControl::declare(const Request& request, const OfServer& server) {
  const auto body = parse_body<wire::DeclareTable>(request.message());
  const TableSpec spec = parse_table(body);
  const PartitionGroup group = hash_key(spec.name);
  constexpr int kMostServers = 1 << 16;
  const int partitions = body.placement().servers_size();
  if (body.placement().group() != group || body.placement().first() != 0 || partitions < 1 ||
      partitions > TableLayout::partitions_for(spec, kMostServers))
    throw Corrupt(str("table '", spec.name, "' is declared without the placement of its partitions"));
  server.set_mode(body.mode());

  Lock lock(mutex_);
  const auto known = tables_.find(group);
  require(
      known == tables_.end() || (same_table(known->second.spec, spec) && placement_.partitions(group) == partitions),
      "table '", spec.name, "' is ", describe(spec), " in ", partitions,
      " partitions, and was declared otherwise before");
  placement_.add(body.placement());
  ServedTable& table = tables_.try_emplace(group, ServedTable{spec, {}}).first->second;
  const TableLayout layout(spec, partitions);
  for (int p = 0; p < partitions; ++p) {
    if (placement_.server_of(group, p) != server.rank) continue;
    const auto number = static_cast<std::uint32_t>(p);
    if (table.partitions.contains(number)) continue;
    ServerShard& shard = *shards_[dealt_++ % shards_.size()];
    auto served = std::make_unique<ServedRows>(spec, layout, number, own_, shard);  // may run out of memory
    const auto place = table.partitions.emplace(number, std::move(served)).first;
    try {
      shard.post([begin = server.begin, rows = place->second.get()](ServerShard& self) {
        begin(rows->state);
        self.tables().add(*rows);
      });
    } catch (...) {
      table.partitions.erase(place);
      throw;
    }
  }
  request.reply({});
}

ServedRows& TableControl::find(std::uint64_t table, std::uint32_t partition) const {
  Lock lock(mutex_);
  const auto found = tables_.find(table);
  if (found == tables_.end()) throw Corrupt("this server has no such table");
  const auto served = found->second.partitions.find(partition);
  if (served != found->second.partitions.end()) return *served->second;
  const int partitions = placement_.partitions(table);
  const bool exists = partition < static_cast<std::uint32_t>(partitions);
  throw Corrupt(str("this server has no partition ", partition, " of table '", found->second.spec.name, "'; ",
                    exists ? str("it is on server ", placement_.server_of(table, static_cast<int>(partition)))
                           : str("the table has ", partitions)));
}

void TableControl::push_pull(const Request& request) {
  const auto call = std::make_shared<RowCall>(request);
  const Message& message = call->request.message();
  if (!call->body.ParseFromString(message.body)) throw Corrupt("the body of a push of rows cannot be parsed");
  check_examples(call->body.examples());
  RowReader payload(message.payload);
  std::map<ServerShard*, std::vector<int>> jobs;
  std::size_t answer_bytes = 0;
  for (const wire::RowPart& request_part : call->body.parts()) {
    RowCall::Part& part = call->parts.emplace_back();
    part.served = &find(request_part.table(), request_part.partition());
    if (request_part.sequence() == 0 && request_part.pushed() > 0) throw Corrupt("a push of rows without a number");
    part.push.worker = call->worker();
    part.push.examples = call->body.examples();
    part.push.counted = request_part.last() ? call->body.examples() : 0;
    check_examples(request_part.elsewhere());
    part.push.elsewhere = request_part.elsewhere();
    part.push.ids = payload.ids(request_part.pushed());
    part.push.versions = payload.next<std::uint64_t>(request_part.pushed());
    const std::size_t row_bytes = part.served->state.row_bytes();
    if (request_part.array() > 0) {
      part.push.places = payload.next<std::uint32_t>(request_part.pushed());
      part.push.sums = payload.next<std::byte>(request_part.sums(), row_bytes);
      part.push.array = static_cast<std::size_t>(request_part.array());
      part.sums = static_cast<std::size_t>(request_part.sums());
    }
    part.push.values = payload.next<std::byte>(part.push.places ? part.push.array : request_part.pushed(), row_bytes);
    part.same = request_part.same();
    part.pulled = part.same ? part.push.ids : payload.ids(request_part.pulled());
    answer_bytes += part.pulled.size() * part.served->state.row_bytes();
    if (answer_bytes > kAnswerBytes) throw Corrupt(str("a pull of ", answer_bytes, " bytes of rows in one message"));
    jobs[part.served->shard].push_back(static_cast<int>(call->parts.size()) - 1);
  }
  payload.payload().expect_end();
  call->aligned = payload.payload().take_copies();
  call->parts_left = static_cast<int>(call->parts.size()) + 1;
  for (auto& [shard, parts] : jobs) {
    shard->post([call, parts = std::move(parts)](ServerShard& self) {
      for (const int part : parts) self.tables().run(call, part);
    });
  }
  call->finish_part();
}

template <class Visitor>
void TableControl::for_each(Visitor visit) const {
  Lock lock(mutex_);
  for (const auto& [key, table] : tables_)
    for (const auto& [partition, served] : table.partitions) visit(*served);
}

void TableControl::write_figures(wire::Report* report) const {
  RowFigures all;
  for_each([&all](const ServedRows& served) { all.add(served.state.figures()); });
  for (const auto& shard : shards_) all.refused += shard->tables().late();
  for (const Histogram& delays : all.delays) {
    wire::Report::Delays* out = report->add_row_delays();
    for (const auto& [value, count] : delays.counts()) {
      out->add_values(value);
      out->add_counts(count);
    }
  }
  report->set_rows_refused(all.refused);
  report->set_rows(all.rows);
  report->set_row_bytes(all.bytes);
  report->set_pulled_bytes(report->pulled_bytes() + all.pulled_bytes);
}

void TableControl::save(const Request& request) {
  const auto body = parse_body<wire::SaveRowsRequest>(request.message());
  ServedRows& served = find(body.table(), body.partition());
  const std::int64_t begin = std::max<std::int64_t>(body.begin(), 0);
  served.shard->post([request, &served, begin](ServerShard&) {
    answer_or_refuse(request, [&] {
      const auto saved = std::make_shared<const SavedRowArrays>(served.state.save(begin, kSavedBytes));
      wire::SavedRows answer;
      answer.set_count(saved->ids.size());
      answer.set_examples(saved->examples);
      answer.set_done(!saved->next);
      answer.set_next(saved->next.value_or(0));
      PayloadWriter payload;
      payload.add(saved->ids.data(), saved->ids.size() * sizeof(std::int64_t), saved);
      payload.add(saved->versions.data(), saved->versions.size() * sizeof(std::uint64_t), saved);
      for (const auto& [name, values] : saved->arrays) {
        answer.add_names(name);
        payload.add(values.data(), values.size(), saved);
      }
      reply(request, answer, payload.finish());
    });
  });
}

void TableControl::load(const Request& request) {
  const auto body = parse_body<wire::LoadRowsRequest>(request.message());
  ServedRows& served = find(body.table(), body.partition());
  served.shard->post([request, &served, body](ServerShard& self) {
    answer_or_refuse(request, [&] {
      check_saved_counts({body.rows().examples()});
      RowReader payload(request.message().payload);
      RowCall::Part rows;
      rows.served = &served;
      rows.pulled = payload.ids(body.rows().count());
      const auto* versions = payload.next<std::uint64_t>(body.rows().count());
      for (const std::uint64_t version : std::span(versions, rows.pulled.size()))
        check_saved_counts({static_cast<std::int64_t>(version)});
      std::vector<std::pair<std::string, const std::byte*>> arrays;
      for (const std::string& name : body.rows().names())
        arrays.emplace_back(name, payload.next<std::byte>(body.rows().count(), served.state.row_bytes()));
      payload.payload().expect_end();
      self.tables().check(rows);
      RowLoadEntry entry{{},      request.incarnation(), body.load(), rows.pulled, versions,
                         &arrays, body.rows().examples()};
      served.state.apply(entry);
      served.failed = {};
      request.reply({});
    });
  });
}

}  // namespace paceline
