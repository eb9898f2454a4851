// Checkpoints and first values of the row-sparse tables of ServersBackend. save() gathers rows from all servers, and
// load() distributes them again. The job can therefore resume with another number of servers.
#include <paceline/error.h>
#include <paceline/updater.h>

#include <algorithm>
#include <utility>

#include "checkpoint/saved_tables.h"
#include "parse_body.h"
#include "payload.h"
#include "servers/servers.h"
#include "sparse.pb.h"

namespace paceline {
namespace {

// The next rows of a partition to ask for: those from `begin` on.
struct Fetch {
  int partition;
  std::int64_t begin = 0;
};

constexpr std::size_t kMessagesAtOnce = 4;

// How many rows fit into a message, with `arrays` arrays of weights and state.
std::size_t rows_in_message(const RemoteTable& table, std::size_t arrays) {
  return std::max<std::size_t>(1, static_cast<std::size_t>(kPartitionBytes) / (arrays * table.row_bytes + 16));
}

// The message that brings rows of a partition to its server. `load` counts this worker's loads.
Message load_message(const RemoteTable& table, int partition, std::uint64_t load, SavedRowArrays part) {
  const auto rows = std::make_shared<const SavedRowArrays>(std::move(part));
  wire::LoadRowsRequest body;
  body.set_table(table.group);
  body.set_partition(static_cast<std::uint32_t>(partition));
  body.set_load(load);
  body.mutable_rows()->set_count(rows->ids.size());
  body.mutable_rows()->set_examples(rows->examples);
  PayloadWriter payload;
  payload.add(rows->ids.data(), rows->ids.size() * sizeof(std::int64_t), rows);
  payload.add(rows->versions.data(), rows->versions.size() * sizeof(std::uint64_t), rows);
  for (const auto& [name, values] : rows->arrays) {
    body.mutable_rows()->add_names(name);
    payload.add(values.data(), values.size(), rows);
  }
  Message message;
  message.header.kind = MessageKind::kLoadRows;
  message.body = body.SerializeAsString();
  message.payload = payload.finish();
  return message;
}

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

std::vector<ServersBackend::LoadingTable> ServersBackend::read_tables(const StoreState& state) {
  const auto rules = RowRules::make(table_optimizer_, policy_, setting_.staleness_options, setting_.own);
  std::vector<LoadingTable> read;
  for (const RemoteTable* table : tables()) {
    LoadedTable loaded = LoadedTable::read(table->spec, state, *rules);
    RowOrder order(loaded.ids(), table->spec, table->layout, "the load of");
    for (int p = 0; p < order.partitions(); ++p)
      for (std::size_t i = 1; i < order.partition(p).size(); ++i)
        require(order.partition(p)[i].id != order.partition(p)[i - 1].id, "the checkpoint has row ",
                order.partition(p)[i].id, " of table '", table->spec.name, "' twice");
    read.push_back({table, std::move(loaded), std::move(order)});
  }
  return read;
}

void ServersBackend::send_tables(std::vector<LoadingTable> tables) {
  const std::shared_ptr<const Placement> places = placement();
  for (auto& [table, loaded, order] : tables) {
    const auto arrays = loaded.arrays();
    const std::size_t limit = rows_in_message(*table, arrays.size());
    ++table_loads_;
    for (int p = 0; p < order.partitions(); ++p) {
      std::vector<std::pair<int, Message>> requests;
      const std::vector<OrderedRow>& rows = order.partition(p);
      RowRange range{0, 0};
      const std::size_t end = rows.size();
      do {  // once for a partition without rows too, because this empties it
        range.end = std::min(range.begin + limit, end);
        SavedRowArrays part;
        part.examples = loaded.examples;
        part.ids.resize(range.end - range.begin);
        write_ids(rows, range, part.ids.data());
        for (std::size_t i = range.begin; i < range.end; ++i)
          part.versions.push_back(loaded.versions()[rows[i].position]);
        for (const auto& [name, from] : arrays) {
          part.arrays.emplace_back(name, part.ids.size() * table->row_bytes);
          gather_rows(rows, range, table->spec, from, part.arrays.back().second.data());
        }
        requests.emplace_back(places->server_of(table->group, p),
                              load_message(*table, p, table_loads_, std::move(part)));
        range.begin = range.end;
      } while (range.begin < end);
      ask_servers(std::move(requests));
    }
  }
}

void ServersBackend::fill_table(const std::string& name, const FirstRows& values) {
  const RemoteTable* table = nullptr;
  {
    Lock lock(mutex_);
    const auto found = tables_.find(name);
    require(found != tables_.end(), "table '", name, "' was not initialised");
    table = found->second.get();
  }
  if (joined_late_) pause();  // the others may not have come to this call yet, so no round may wait for this worker
  wire::FillTableRequest filling;
  filling.set_table(table->group);
  const auto ask = [&] { return parse_body<wire::FillTableReply>(client_.ask(MessageKind::kFillTable, filling)); };
  if (ask().filled()) return;
  try {
    send_first_rows(*table, values);
  } catch (const std::exception& error) {
    filling.set_state(wire::FillTableRequest::CANNOT_SEND);
    filling.set_why(error.what());
    ask();
    throw;
  }
  filling.set_state(wire::FillTableRequest::HAS_SENT);
  ask();
}

void ServersBackend::send_first_rows(const RemoteTable& table, const FirstRows& values) {
  const std::shared_ptr<const Placement> places = placement();
  const std::size_t limit = rows_in_message(table, 1);
  const std::int64_t block = std::int64_t{1} << table.layout.block_bits(), partitions = table.layout.partitions();
  std::vector<std::pair<int, Message>> requests;
  ++table_loads_;
  for (int p = 0; p < partitions; ++p) {
    SavedRowArrays part;
    const auto send = [&](std::size_t least) {
      if (!part.ids.empty())
        requests.emplace_back(places->server_of(table.group, p),
                              load_message(table, p, table_loads_, std::exchange(part, {})));
      if (requests.size() >= least) ask_servers(std::exchange(requests, {}));
    };
    for (std::int64_t first = p * block; first < table.spec.rows; first += partitions * block) {
      const std::int64_t last = std::min(first + block, table.spec.rows);
      for (std::int64_t begin = first, end; begin < last; begin = end) {
        if (part.arrays.empty()) part.arrays.emplace_back("weight", std::vector<std::byte>());
        end = std::min(last, begin + static_cast<std::int64_t>(limit - part.ids.size()));
        const NDArray rows = first_rows(table.spec, values, begin, end, engine_);
        const auto* const bytes = static_cast<const std::byte*>(rows.data());
        std::vector<std::byte>& weights = part.arrays.front().second;
        weights.insert(weights.end(), bytes, bytes + rows.bytes());
        for (std::int64_t id = begin; id < end; ++id) part.ids.push_back(id);
        part.versions.resize(part.ids.size());
        if (part.ids.size() == limit) send(kMessagesAtOnce);
      }
    }
    send(p + 1 == partitions ? std::size_t{0} : kMessagesAtOnce);
  }
}

void ServersBackend::renew_tables() {
  Lock lock(mutex_);
  for (const auto& [name, table] : tables_) {
    table->order = engine_.new_variable();  // no call is in flight, and an earlier push may have failed
    table->versions.clear();
    std::ranges::fill(table->elsewhere, 0);  // the loaded state has counts of its own
  }
}

}  // namespace paceline
