#include "local/local_tables.h"

#include <paceline/error.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "checkpoint/saved_tables.h"
#include "servers/rows.h"

namespace paceline {
namespace {

std::span<const std::int64_t> span_of(const NDArray& ids) {
  return {ids.data_as<const std::int64_t>(), static_cast<std::size_t>(ids.size())};
}

// The distinct ids of all partitions, and the place where the ids of each partition begin.
struct DifferentIds {
  explicit DifferentIds(RowOrder& order) : ids(order.size()) {
    std::size_t count = 0;
    for (int p = 0; p < order.partitions(); ++p) {
      begins.push_back(count);
      count += write_ids(order.partition(p), {0, order.partition(p).size()}, ids.data() + count);
    }
    ids.resize(count);
  }
  std::vector<std::int64_t> ids;
  std::vector<std::size_t> begins;
};

}  // namespace

void LocalTables::init(const std::vector<TableSpec>& tables) {
  for (const TableSpec& spec : tables) {
    check_table(spec);
    auto& table = tables_[spec.name];
    require(!table || same_table(table->rows.spec(), spec), "table '", spec.name, "' is ", describe(spec),
            " here and was ", table ? describe(table->rows.spec()) : "", " before");
    if (table) continue;
    table = std::make_unique<LocalTable>(spec, engine_.new_variable());
    table->rows.set_rules(rules_);
  }
}

void LocalTables::fill(const std::string& name, const FirstRows& values) {
  LocalTable& table = find(name);
  engine_.wait_unused(table.variable);
  const TableSpec& spec = table.rows.spec();
  constexpr std::size_t kBytes = std::size_t{4} << 20;
  const auto most = static_cast<std::int64_t>(std::max<std::size_t>(1, kBytes / row_bytes(spec)));
  for (std::int64_t begin = 0; begin < spec.rows; begin += most) {
    const std::int64_t end = std::min(begin + most, spec.rows);
    const NDArray block = first_rows(spec, values, begin, end, engine_);
    std::vector<std::int64_t> ids(static_cast<std::size_t>(end - begin));
    std::iota(ids.begin(), ids.end(), begin);
    const std::vector<std::uint64_t> versions(ids.size());
    table.rows.load(ids, versions.data(), {{"weight", static_cast<const std::byte*>(block.data())}}, 0, begin == 0);
  }
}

LocalTables::LocalTable& LocalTables::find(const std::string& name) const {
  const auto found = tables_.find(name);
  require(found != tables_.end(), "table '", name, "' was not initialised");
  return *found->second;
}

void LocalTables::push_pull(const std::vector<RowPush>& pushes, const std::vector<RowPull>& pulls,
                            std::int64_t examples, int priority) {
  require(examples >= 0, "a push of ", examples, " examples");
  for (const RowPush& rows : pushes) check_rows(find(rows.table).rows.spec(), rows.ids, rows.gradients, "the push to");
  for (const RowPull& rows : pulls) check_rows(find(rows.table).rows.spec(), rows.ids, rows.out, "the pull from");
  for (const RowPush& rows : pushes) push(rows, examples, priority);
  for (const RowPull& rows : pulls) pull(rows, priority);
}

void LocalTables::push(const RowPush& rows, std::int64_t examples, int priority) {
  LocalTable& table = find(rows.table);
  const NDArray ids = rows.ids.to(Device{}).contiguous(), gradients = rows.gradients.to(Device{}).contiguous();
  engine_.push({"store.update_rows", {}, Lane::kCompute, priority}, std::array{ids.variable(), gradients.variable()},
               std::array{table.variable}, [&table, ids, gradients, examples](TaskContext&) {
                 const TableSpec& spec = table.rows.spec();
                 RowOrder order(span_of(ids), spec, table.layout, "the push to");
                 const DifferentIds each(order);
                 const std::unique_ptr<std::byte[]> values(new std::byte[each.ids.size() * row_bytes(spec)]);
                 for (int p = 0; p < order.partitions(); ++p)
                   gather_rows(order.partition(p), {0, order.partition(p).size()}, spec,
                               static_cast<const std::byte*>(gradients.data()),
                               values.get() + each.begins[static_cast<std::size_t>(p)] * row_bytes(spec));
                 const std::vector<std::uint64_t> versions(each.ids.size(), kNeverPulled);
                 RowScalars scalars;
                 table.rows.apply({0, examples, examples, each.ids, versions.data(), values.get()}, &scalars);
               });
}

void LocalTables::pull(const RowPull& rows, int priority) {
  LocalTable& table = find(rows.table);
  const NDArray ids = rows.ids.to(Device{}).contiguous();
  const bool direct = rows.out.is_contiguous() && rows.out.device() == Device{};
  const NDArray out = direct ? rows.out : NDArray(rows.out.shape(), rows.out.dtype(), {}, engine_);
  std::vector<Variable> reads{ids.variable(), table.variable};
  if (is_part(out)) reads.push_back(out.variable());
  engine_.push({"store.read_rows", {}, Lane::kCompute, priority}, reads, std::array{out.variable()},
               [&table, ids, out](TaskContext&) {
                 const TableSpec& spec = table.rows.spec();
                 RowOrder order(span_of(ids), spec, table.layout, "the pull from");
                 const DifferentIds each(order);
                 const std::unique_ptr<std::byte[]> values(new std::byte[each.ids.size() * row_bytes(spec)]);
                 std::vector<std::uint64_t> versions(each.ids.size());
                 table.rows.read(each.ids, {.versions = versions.data(), .values = values.get()});
                 for (int p = 0; p < order.partitions(); ++p)
                   scatter_rows(order.partition(p), {0, order.partition(p).size()}, spec,
                                values.get() + each.begins[static_cast<std::size_t>(p)] * row_bytes(spec),
                                {static_cast<std::byte*>(out.data()), out.bytes()});
               });
  if (!direct) rows.out.copy_from(out, priority);
}

void LocalTables::drain() {
  for (const auto& [name, table] : tables_) engine_.wait_unused(table->variable);
}

void LocalTables::set_rules(std::shared_ptr<const RowRules> rules) {
  for (const auto& [name, table] : tables_) table->rows.set_rules(rules);
  rules_ = std::move(rules);
}

void LocalTables::set_learning_rate(double rate) { set_rules(rules_->with_rate(rate)); }

void LocalTables::add_to(StoreReport& report) const {
  RowFigures all;
  for (const auto& [name, table] : tables_) all.add(table->rows.figures());
  report.row_delays = all.delays;
  report.rows_refused = all.refused;
  report.rows_held = static_cast<std::int64_t>(all.rows);
  report.row_bytes = all.bytes;
  report.pulled_bytes += all.pulled_bytes;
}

void LocalTables::save(StoreState& state) const {
  for (const auto& [name, table] : tables_) {
    SavedTable saved;
    saved.add(table->rows.save(0, std::numeric_limits<std::size_t>::max()));
    saved.write(table->rows.spec(), state, engine_);
  }
}

void LocalTables::load(const StoreState& state) {
  std::vector<std::pair<LocalTable*, LoadedTable>> all;  // read before any table changes
  for (const auto& [name, table] : tables_)
    all.emplace_back(table.get(), LoadedTable::read(table->rows.spec(), state, *rules_));
  for (const auto& [table, loaded] : all) {
    table->rows.load(loaded.ids(), loaded.versions(), loaded.arrays(), loaded.examples, true);
    engine_.push({"store.load"}, {}, std::array{table->variable},
                 [](TaskContext&) {});  // an earlier push may have failed
  }
}

}  // namespace paceline
