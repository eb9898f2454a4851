#include "servers/rows.h"

#include <paceline/detail/array_builder.h>
#include <paceline/detail/host_memory.h>
#include <paceline/detail/layout.h>
#include <paceline/error.h>
#include <paceline/updater.h>

#include <algorithm>

#include "parse_body.h"
#include "payload.h"
#include "servers/servers.h"
#include "sparse.pb.h"

namespace paceline {

void RowVersions::get(std::span<const std::int64_t> rows, std::uint64_t* versions) {
  Lock lock(mutex_);
  pages_.get(rows, versions);
}

void RowVersions::set(std::span<const std::int64_t> rows, const std::uint64_t* versions) {
  Lock lock(mutex_);
  pages_.set(rows, versions);
}

void RowVersions::clear() {
  Lock lock(mutex_);
  pages_.clear();
}

void check_rows(const TableSpec& table, const NDArray& ids, const NDArray& values, const char* use) {
  require(!ids.is_none() && !values.is_none(), use, " table '", table.name, "' lacks an array");
  require(ids.dtype() == DType::kInt64 && ids.ndim() == 1, "the ids of ", use, " table '", table.name, "' are ",
          ids.describe(), ", expected int64 of one dimension");
  require(values.dtype() == table.dtype && values.size() == ids.size() * table.width, use, " table '", table.name,
          "' has values ", values.describe(), ", expected ", name_of(table.dtype), " ", Shape{ids.size(), table.width},
          " for ", ids.size(), " ids");
}

bool is_part(const NDArray& out) { return detail::whole_block(out).shape.size() != out.size(); }

// Rows of one partition that fit into one message, as ranges of the partition's ordered rows.
struct RowTransfer::Piece {
  int partition = 0;
  std::size_t push_begin = 0, push_end = 0, pull_begin = 0, pull_end = 0;
  std::size_t number = 0, count = 0;  // number from 1 among the `count` pieces that push to the partition; 0: no push
};

// Row ids, each once, in memory that messages share.
struct RowTransfer::Ids {
  std::shared_ptr<std::byte[]> at;
  std::size_t count = 0;
};

// Where the rows of an answer go.
struct RowTransfer::Pulled {
  std::size_t item;
  const std::vector<OrderedRow>* rows;
  RowRange range;
  Ids ids;
};

struct RowTransfer::Outgoing {
  int server = 0;
  wire::PushPullRowsRequest body;
  PayloadWriter payload;
  std::size_t bytes = 0;  // bytes of rows, in one direction
  std::size_t sent_bytes = 0;
  std::vector<Pulled> pulled;
};

namespace {

// The end of the longest range of rows from `begin` on with at most `limit` different ids.
std::size_t end_of(const std::vector<OrderedRow>& rows, std::size_t begin, std::size_t limit) {
  if (rows.size() - begin <= limit) return rows.size();
  std::size_t different = 0;
  for (std::size_t i = begin; i < rows.size(); ++i) {
    if (i > begin && rows[i].id == rows[i - 1].id) continue;
    if (different++ == limit) return i;
  }
  return rows.size();
}

// The index of the first row in [begin, end) whose id is not below `id`; `end` if there is none.
std::size_t below(const std::vector<OrderedRow>& rows, std::size_t begin, std::size_t end, std::int64_t id) {
  while (begin < end && rows[begin].id < id) ++begin;
  return begin;
}

}  // namespace

RowTransfer::RowTransfer(Route route, std::vector<Item> items, std::shared_ptr<Step> step, std::uint64_t call,
                         std::int64_t examples, int priority, bool everywhere)
    : StoreCall(std::move(route), std::move(step), examples, priority),
      items_(std::move(items)),
      call_(call),
      everywhere_(everywhere) {}

std::vector<Variable> RowTransfer::reads() const {
  std::vector<Variable> variables;
  for (const Item& item : items_) {
    if (item.gradients.is_none()) {
      variables.push_back(item.table->order);
    } else {
      variables.push_back(item.pushed_ids.variable());
      variables.push_back(item.gradients.variable());
    }
    if (item.out.is_none()) continue;
    variables.push_back(item.pulled_ids.variable());
    if (is_part(item.out)) variables.push_back(item.out.variable());
  }
  return variables;
}

std::vector<Variable> RowTransfer::writes() const {
  std::vector<Variable> variables;
  for (const Item& item : items_) {
    variables.push_back(item.gradients.is_none() ? item.table->pull_order : item.table->order);
    if (!item.out.is_none()) variables.push_back(item.out.variable());
  }
  return variables;
}

void RowTransfer::start(Completion completion) {
  completion_.emplace(std::move(completion));
  const bool pushes = std::ranges::any_of(items_, [](const Item& item) { return !item.gradients.is_none(); });
  const bool pulls = std::ranges::any_of(items_, [](const Item& item) { return !item.out.is_none(); });
  pulls_left_ = pushes && pulls && route_.pulls_wait;
  send(pushes, pulls && !pulls_left_);
}

RowTransfer::Ordered RowTransfer::order(const Item& item) {
  const auto ids_of = [](const NDArray& ids) {
    return std::span<const std::int64_t>(ids.data_as<const std::int64_t>(), static_cast<std::size_t>(ids.size()));
  };
  const RemoteTable& table = *item.table;
  Ordered rows;
  const auto ordered = [&](const NDArray& ids, const char* use) {
    return std::make_shared<RowOrder>(ids_of(ids), table.spec, table.layout, use);
  };
  if (!item.gradients.is_none()) rows.pushed = ordered(item.pushed_ids, "the push to");
  if (item.out.is_none()) return rows;
  if (!item.gradients.is_none() && std::ranges::equal(ids_of(item.pushed_ids), ids_of(item.pulled_ids)))
    rows.pulled = rows.pushed;
  else
    rows.pulled = ordered(item.pulled_ids, "the pull from");
  return rows;
}

void RowTransfer::send_messages(bool pushes, bool pulls) {
  if (ordered_.empty())
    for (const Item& item : items_) ordered_.push_back(order(item));
  std::vector<Outgoing> open(route_.outboxes->size());
  for (std::size_t server = 0; server < open.size(); ++server) open[server].server = static_cast<int>(server);
  for (std::size_t item = 0; item < items_.size(); ++item) {
    RemoteTable& table = *items_[item].table;
    const bool counts = pushes && !items_[item].gradients.is_none();
    for (int partition = 0; partition < table.layout.partitions(); ++partition) {
      Outgoing& message = open[static_cast<std::size_t>(route_.placement->server_of(table.group, partition))];
      const std::vector<Piece> pieces = cut(item, partition, pushes, pulls);
      if (counts && (pieces.empty() || pieces.front().count == 0))
        table.elsewhere[static_cast<std::size_t>(partition)] += examples_;
      for (const Piece& piece : pieces) {
        const std::size_t rows = std::max(piece.push_end - piece.push_begin, piece.pull_end - piece.pull_begin);
        if (message.bytes + rows * table.row_bytes > static_cast<std::size_t>(kPartitionBytes)) submit(message);
        message.bytes += rows * table.row_bytes;
        add(item, piece, message);
      }
    }
  }
  for (Outgoing& message : open) submit(message);
}

std::vector<RowTransfer::Piece> RowTransfer::cut(std::size_t item, int partition, bool pushes, bool pulls) const {
  const RemoteTable& table = *items_[item].table;
  static const std::vector<OrderedRow> none;
  pushes &= !items_[item].gradients.is_none();
  pulls &= !items_[item].out.is_none();
  const auto& pushed = pushes ? ordered_[item].pushed->partition(partition) : none;
  const auto& pulled = pulls ? ordered_[item].pulled->partition(partition) : none;
  const std::size_t limit = std::max<std::size_t>(1, static_cast<std::size_t>(kPartitionBytes) / table.row_bytes);
  std::vector<Piece> pieces;
  Piece piece{partition};
  // A row that is pushed and pulled travels in one message, so that it is pulled after its push.
  while (piece.push_begin < pushed.size() || piece.pull_begin < pulled.size() ||
         (everywhere_ && pushes && pieces.empty())) {
    piece.push_end = end_of(pushed, piece.push_begin, limit);
    piece.pull_end = end_of(pulled, piece.pull_begin, limit);
    if (piece.push_end < pushed.size())
      piece.pull_end = below(pulled, piece.pull_begin, piece.pull_end, pushed[piece.push_end].id);
    if (piece.pull_end < pulled.size())
      piece.push_end = below(pushed, piece.push_begin, piece.push_end, pulled[piece.pull_end].id);
    pieces.push_back(piece);
    piece.push_begin = piece.push_end;
    piece.pull_begin = piece.pull_end;
  }
  // Rounds count the pieces of a contribution. A piece without rows counts too.
  std::size_t count = 0;
  for (Piece& each : pieces)
    if (each.push_end > each.push_begin || (everywhere_ && pushes)) each.number = ++count;
  for (Piece& each : pieces) each.count = count;
  return pieces;
}

void RowTransfer::add(std::size_t item, const Piece& piece, Outgoing& message) {
  RemoteTable& table = *items_[item].table;
  wire::RowPart* part = message.body.add_parts();
  part->set_table(hash_key(table.spec.name));
  part->set_partition(static_cast<std::uint32_t>(piece.partition));
  if (piece.number > 0) {
    part->set_sequence(++table.pushes[static_cast<std::size_t>(piece.partition)]);
    part->set_pieces(static_cast<std::uint32_t>(piece.count));
    part->set_last(piece.number == piece.count);
    part->set_elsewhere(std::exchange(table.elsewhere[static_cast<std::size_t>(piece.partition)], 0));
  }
  Ids pushed;
  if (piece.push_end > piece.push_begin) {
    pushed = add_gradients(item, piece, *part, message);
    part->set_pushed(pushed.count);
  }
  if (piece.pull_end == piece.pull_begin) return;
  part->set_need(items_[item].need);
  const RowRange range{piece.pull_begin, piece.pull_end};
  const bool same = pushed.count > 0 && ordered_[item].pushed == ordered_[item].pulled &&
                    range.begin == piece.push_begin && range.end == piece.push_end;
  const std::vector<OrderedRow>& rows = ordered_[item].pulled->partition(piece.partition);
  Pulled pulled{item, &rows, range, same ? std::move(pushed) : ids_of(rows, range)};
  if (!same) {
    message.payload.add(pulled.ids.at.get(), pulled.ids.count * sizeof(std::int64_t), pulled.ids.at);
    message.sent_bytes += pulled.ids.count * sizeof(std::int64_t);
  }
  part->set_same(same);
  part->set_pulled(pulled.ids.count);
  message.pulled.push_back(std::move(pulled));
}

RowTransfer::Ids RowTransfer::ids_of(const std::vector<OrderedRow>& rows, RowRange range) {
  Ids ids{detail::allocate_host((range.end - range.begin) * sizeof(std::int64_t)), 0};
  ids.count = write_ids(rows, range, reinterpret_cast<std::int64_t*>(ids.at.get()));
  return ids;
}

RowTransfer::Ids RowTransfer::add_gradients(std::size_t item, const Piece& piece, wire::RowPart& part,
                                            Outgoing& message) {
  RemoteTable& table = *items_[item].table;
  const NDArray& gradients = items_[item].gradients;
  const auto* given = gradients.data_as<const std::byte>();
  const auto given_rows = static_cast<std::size_t>(items_[item].pushed_ids.size());
  const std::vector<OrderedRow>& rows = ordered_[item].pushed->partition(piece.partition);
  const RowRange range{piece.push_begin, piece.push_end};
  const auto [ids, count] = ids_of(rows, range);
  const auto versions = detail::allocate_host(count * sizeof(std::uint64_t));
  table.versions.get({reinterpret_cast<const std::int64_t*>(ids.get()), count},
                     reinterpret_cast<std::uint64_t*>(versions.get()));
  PayloadWriter& payload = message.payload;
  payload.add(ids.get(), count * sizeof(std::int64_t), ids);
  payload.add(versions.get(), count * sizeof(std::uint64_t), versions);
  message.sent_bytes += count * (sizeof(std::int64_t) + sizeof(std::uint64_t));
  // Places are 32-bit numbers. The server may read the array in place, because it does not change before the answer.
  constexpr std::size_t kMostPlaced = std::size_t{1} << 31;
  if (!route_.copies && given_rows <= kMostPlaced &&
      (*route_.outboxes)[static_cast<std::size_t>(message.server)]->reads_in_place(given, gradients.bytes())) {
    const auto places = detail::allocate_host(count * sizeof(std::uint32_t));
    const std::vector<RowRange> repeated =
        place_rows(rows, range, given_rows, reinterpret_cast<std::uint32_t*>(places.get()));
    const auto sums = detail::allocate_host(repeated.size() * table.row_bytes);
    std::byte* sum = sums.get();
    for (const RowRange& same : repeated) {
      gather_rows(rows, same, table.spec, given, sum);
      sum += table.row_bytes;
    }
    payload.add(places.get(), count * sizeof(std::uint32_t), places);
    payload.add(sums.get(), repeated.size() * table.row_bytes, sums);
    payload.add(given, gradients.bytes(), ArrayBuilder::storage(gradients));
    part.set_array(given_rows);
    part.set_sums(repeated.size());
    message.sent_bytes += count * sizeof(std::uint32_t) + repeated.size() * table.row_bytes;
  } else {
    const auto values = detail::allocate_host(count * table.row_bytes);
    gather_rows(rows, range, table.spec, given, values.get());
    payload.add(values.get(), count * table.row_bytes, values);
    message.sent_bytes += count * table.row_bytes;
  }
  return {ids, count};
}

void RowTransfer::submit(Outgoing& outgoing) {
  if (outgoing.body.parts_size() == 0) return;
  outgoing.body.set_examples(examples_);
  outgoing.body.set_round(round());
  outgoing.body.set_call(call_);
  Message message;
  message.header.kind = MessageKind::kPushPullRows;
  message.body = outgoing.body.SerializeAsString();
  message.payload = outgoing.payload.finish();
  // A pull that waits must not hold up the pushes that it waits for.
  const std::size_t bytes = route_.pulls_wait && !outgoing.pulled.empty() ? 0 : outgoing.sent_bytes;
  auto on_reply = [self = shared_from_this(), pulled = std::move(outgoing.pulled)](std::optional<Message> answer,
                                                                                   const std::exception_ptr& error) {
    try {
      if (error) std::rethrow_exception(error);
      self->receive(pulled, *answer);
    } catch (...) {
      self->fail(std::current_exception());
    }
    self->finish_message();
  };
  expecting(1, [&] {
    (*route_.outboxes)[static_cast<std::size_t>(outgoing.server)]->submit(priority_, bytes, std::move(message),
                                                                          std::move(on_reply));
  });
  const int server = outgoing.server;
  outgoing = {};
  outgoing.server = server;
}

void RowTransfer::receive(const std::vector<Pulled>& pulled, const Message& answer) {
  wire::PushPullRowsReply reply;
  if (!reply.ParseFromString(answer.body)) throw Corrupt("a server's answer cannot be parsed");
  PayloadReader payload(answer.payload);
  for (const Pulled& part : pulled) {
    RemoteTable& table = *items_[part.item].table;
    const auto* versions = reinterpret_cast<const std::uint64_t*>(payload.next(part.ids.count * sizeof(std::uint64_t)));
    table.versions.set({reinterpret_cast<const std::int64_t*>(part.ids.at.get()), part.ids.count}, versions);
    const std::byte* values = payload.next(part.ids.count * table.row_bytes);
    const NDArray& out = items_[part.item].out;
    scatter_rows(*part.rows, part.range, table.spec, values, {static_cast<std::byte*>(out.data()), out.bytes()});
  }
  payload.expect_end();
  note_wait(reply.waited_microseconds());
}

void ServersBackend::init_tables(const std::vector<TableSpec>& tables) {
  require(traits_.holds_tables, "mode '", setting_.mode.text(),
          "' holds no row-sparse tables; use local, dist_async or dist_sync without backup");
  wire::PlaceTablesRequest declared;
  for (const TableSpec& table : tables) {
    check_table(table);
    write_table(table, declared.add_tables());
  }
  const auto placed = parse_body<wire::PlaceTablesReply>(client_.ask(MessageKind::kPlaceTables, declared));
  if (placed.placements_size() != declared.tables_size()) throw Corrupt("the scheduler has not placed every table");
  add_places({placed.placements().begin(), placed.placements().end()});
  std::vector<std::pair<int, Message>> requests;
  for (int t = 0; t < declared.tables_size(); ++t) {
    wire::DeclareTable& body = *declared.mutable_tables(t);
    body.set_mode(setting_.mode.text());
    *body.mutable_placement() = placed.placements(t);
    for (int server = 0; server < servers_; ++server)
      requests.emplace_back(server, message_of(MessageKind::kDeclareTable, body));
  }
  ask_servers(std::move(requests));
  {
    Lock lock(mutex_);
    for (const TableSpec& table : tables) {
      const int partitions = route_.placement->partitions(hash_key(table.name));
      tables_.try_emplace(table.name, std::make_unique<RemoteTable>(table, partitions, engine_));
    }
  }
  if (std::exchange(joining_, false)) resume();
}

void ServersBackend::push_pull_rows(const std::vector<RowPush>& pushes, const std::vector<RowPull>& pulls,
                                    std::int64_t examples, int priority) {
  require(examples >= 0, "a push of ", examples, " examples");
  resume_if_paused();
  std::vector<std::pair<NDArray, NDArray>> copies;
  {
    Lock lock(mutex_);
    const std::uint64_t step = step_->number();
    std::vector<RowTransfer::Item> items;
    const auto item_of = [&](const std::string& name) PACELINE_NO_THREAD_SAFETY_ANALYSIS -> RowTransfer::Item& {
      const auto found = tables_.find(name);
      require(found != tables_.end(), "table '", name, "' was not initialised");
      RemoteTable* table = found->second.get();
      const auto same = std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.table == table; });
      if (same != items.end()) return *same;
      items.emplace_back().table = table;
      return items.back();
    };
    for (const RowPush& push : pushes) {
      RowTransfer::Item& item = item_of(push.table);
      check_rows(item.table->spec, push.ids, push.gradients, "the push to");
      require(item.gradients.is_none(), "rows of table '", push.table, "' are pushed twice in one call");
      item.pushed_ids = push.ids.to(Device{}).contiguous();
      item.gradients = push.gradients.to(Device{}).contiguous();
    }
    for (const RowPull& pull : pulls) {
      RowTransfer::Item& item = item_of(pull.table);
      check_rows(item.table->spec, pull.ids, pull.out, "the pull from");
      require(item.out.is_none(), "rows of table '", pull.table, "' are pulled twice in one call");
      item.pulled_ids = pull.ids.to(Device{}).contiguous();
      item.out = pull.out;
      if (pull.out.is_contiguous() && pull.out.device() == Device{}) continue;
      item.out = NDArray(pull.out.shape(), pull.out.dtype(), {}, engine_);
      copies.emplace_back(pull.out, item.out);
    }
    if (items.empty()) return;
    for (RowTransfer::Item& item : items) {
      if (!item.gradients.is_none()) item.table->last_step = step;
      // If the table was pushed in this step, the pull gets the rows for the next step.
      if (route_.pulls_wait) item.need = item.table->last_step == step ? step + 1 : step;
    }
    pushed_in_step_ |= !pushes.empty();
    // This number grows through all incarnations of the worker.
    const std::uint64_t row_call = (node_->incarnation() << 32) + ++row_calls_;
    auto transfer = std::make_shared<RowTransfer>(route_, std::move(items), pushes.empty() ? nullptr : step_, row_call,
                                                  examples, priority, traits_.in_rounds());
    const auto reads = transfer->reads(), writes = transfer->writes();
    const char* name = pulls.empty() ? "store.push_rows" : pushes.empty() ? "store.pull_rows" : "store.push_pull_rows";
    engine_.push_async({name, {}, Lane::kCommunication, priority}, reads, writes,
                       [transfer = std::move(transfer)](TaskContext&, Completion completion) {
                         transfer->start(std::move(completion));
                       });
  }
  for (const auto& [target, source] : copies) target.copy_from(source, priority);
}

}  // namespace paceline
