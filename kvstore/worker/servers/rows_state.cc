// Checkpoints of the row-sparse tables of ServersBackend: rows are gathered from all servers and dealt out again, so
// that another number of servers can go on.
#include <paceline/error.h>
#include <paceline/updater.h>

#include <algorithm>

#include "checkpoint/saved_tables.h"
#include "parse_body.h"
#include "payload.h"
#include "servers/servers.h"
#include "sparse.pb.h"

namespace paceline {
namespace {

// Parts of a partition that were asked for and have come.
struct Fetch {
  int partition;
  std::int64_t begin = 0;
};

// Throws Corrupt on an answer that is not rows of `table`.
SavedRowArrays read_rows(const TableSpec& table, const wire::SavedRows& body, const Message& answer) {
  PayloadReader payload(answer.payload);
  const auto count = static_cast<std::size_t>(body.count());
  SavedRowArrays rows;
  const auto* ids = reinterpret_cast<const std::int64_t*>(payload.next(count * sizeof(std::int64_t)));
  const auto* versions = reinterpret_cast<const std::uint64_t*>(payload.next(count * sizeof(std::uint64_t)));
  rows.ids.assign(ids, ids + count);
  rows.versions.assign(versions, versions + count);
  for (const std::string& name : body.names()) {
    const std::byte* values = payload.next(count * row_bytes(table));
    rows.arrays.emplace_back(name, std::vector<std::byte>(values, values + count * row_bytes(table)));
  }
  payload.expect_end();
  rows.examples = body.examples();
  return rows;
}

}  // namespace

std::vector<const RemoteTable*> ServersBackend::tables() {
  Lock lock(mutex_);
  std::vector<const RemoteTable*> tables;
  for (const auto& [name, table] : tables_) tables.push_back(table.get());
  return tables;
}

void ServersBackend::fetch_tables(StoreState& state) {
  const std::shared_ptr<const Placement> places = placement();
  for (const RemoteTable* table : tables()) {
    SavedTable saved;
    std::vector<Fetch> fetches;
    for (int p = 0; p < table->layout.partitions(); ++p) fetches.push_back({p});
    while (!fetches.empty()) {
      std::vector<std::pair<int, Message>> requests;
      for (const Fetch& fetch : fetches) {
        wire::SaveRowsRequest body;
        body.set_table(table->group);
        body.set_partition(static_cast<std::uint32_t>(fetch.partition));
        body.set_begin(fetch.begin);
        Message message;
        message.header.kind = MessageKind::kSaveRows;
        message.body = body.SerializeAsString();
        requests.emplace_back(places->server_of(table->group, fetch.partition), std::move(message));
      }
      const std::vector<Message> answers = ask_servers(std::move(requests));
      std::vector<Fetch> rest;
      for (std::size_t i = 0; i < answers.size(); ++i) {
        const auto body = parse_body<wire::SavedRows>(answers[i]);
        saved.add(read_rows(table->spec, body, answers[i]));
        if (!body.done()) rest.push_back({fetches[i].partition, body.next()});
      }
      fetches = std::move(rest);
    }
    saved.write(table->spec, state, engine_);
  }
}

void ServersBackend::send_tables(const StoreState& state) {
  const std::shared_ptr<const Placement> places = placement();
  for (const RemoteTable* table : tables()) {
    if (state.tables_alone && !LoadedTable::is_in(state, table->spec)) continue;
    const LoadedTable loaded = LoadedTable::read(table->spec, state);
    RowOrder order(loaded.ids(), table->spec, table->layout, "the load of");
    for (int p = 0; p < order.partitions(); ++p)
      for (std::size_t i = 1; i < order.partition(p).size(); ++i)
        require(order.partition(p)[i].id != order.partition(p)[i - 1].id, "the checkpoint has row ",
                order.partition(p)[i].id, " of table '", table->spec.name, "' twice");
    const auto arrays = loaded.arrays();
    const std::size_t limit =
        std::max<std::size_t>(1, static_cast<std::size_t>(kPartitionBytes) / (arrays.size() * table->row_bytes + 16));
    ++table_loads_;
    for (int p = 0; p < order.partitions(); ++p) {
      std::vector<std::pair<int, Message>> requests;
      const std::vector<OrderedRow>& rows = order.partition(p);
      RowRange range{0, 0};
      const std::size_t end = rows.size();
      do {  // once for a partition without rows, too: it is emptied
        range.end = std::min(range.begin + limit, end);
        const std::size_t count = range.end - range.begin;
        wire::LoadRowsRequest body;
        body.set_table(table->group);
        body.set_partition(static_cast<std::uint32_t>(p));
        body.set_load(table_loads_);
        body.mutable_rows()->set_count(count);
        body.mutable_rows()->set_examples(loaded.examples);
        PayloadWriter payload;
        std::vector<std::uint64_t> numbers(count);
        write_ids(rows, range, reinterpret_cast<std::int64_t*>(numbers.data()));
        payload.add(numbers.data(), count * sizeof(std::int64_t), nullptr);
        for (std::size_t i = 0; i < count; ++i) numbers[i] = loaded.versions()[rows[range.begin + i].position];
        payload.add(numbers.data(), count * sizeof(std::uint64_t), nullptr);
        std::vector<std::byte> values(count * table->row_bytes);
        for (const auto& [name, from] : arrays) {
          body.mutable_rows()->add_names(name);
          gather_rows(rows, range, table->spec, from, values.data());
          payload.add(values.data(), values.size(), nullptr);
        }
        Message message;
        message.header.kind = MessageKind::kLoadRows;
        message.body = body.SerializeAsString();
        message.payload = payload.finish();
        requests.emplace_back(places->server_of(table->group, p), std::move(message));
        range.begin = range.end;
      } while (range.begin < end);
      ask_servers(std::move(requests));
    }
  }
}

void ServersBackend::forget_row_versions() {
  Lock lock(mutex_);
  for (const auto& [name, table] : tables_) table->versions.clear();
}

}  // namespace paceline
