// The state of a store, as a checkpoint holds it: arrays and counters by name.

#include "checkpoint/saved_state.h"

#include "arrays.h"
#include "checkpoint/saved_names.h"
#include "checkpoint/saved_tables.h"

namespace paceline::fuzz {
namespace {

using fuzz::same;

constexpr int kMost = 12;

// Each array: its name, its type and its sizes. Each counter: its name and its text.
StoreState cut_state(Cutter cut) {
  StoreState state;
  for (int left = cut.number<std::uint8_t>() % kMost; left > 0 && !cut.empty(); --left) {
    const std::string name(cut.text());
    const auto form = cut.number<std::uint8_t>();
    const DType dtype = form & 4 ? DType::kInt64 : form & 8 ? DType::kFloat64 : DType::kFloat32;
    const Shape shape = form & 16 ? Shape{form & 3, 2} : Shape{form & 3};
    const NDArray array = NDArray::zeros(shape, dtype);
    array.wait();
    const std::string_view bytes = cut.take(std::min<std::size_t>(array.bytes(), form >> 5));
    if (!bytes.empty()) std::memcpy(array.data(), bytes.data(), bytes.size());
    state.arrays.emplace_back(name, array);
  }
  while (!cut.empty()) {
    const std::string name(cut.text());
    state.counters.emplace_back(name, cut.text());
  }
  return state;
}

bool same(const SavedKey& a, const SavedKey& b) {
  const SliceCounters &x = a.counters, &y = b.counters;
  return same(a.weight, b.weight) &&
         same(NamedArrays(a.slots.begin(), a.slots.end()), NamedArrays(b.slots.begin(), b.slots.end())) &&
         x.version == y.version && x.examples == y.examples && x.optimizer_updates == y.optimizer_updates &&
         x.policy_updates == y.policy_updates;
}

bool same(const SavedStore& a, const SavedStore& b) {
  const auto by_name = [](const auto& x, const auto& y) { return x.first == y.first && same(x.second, y.second); };
  return a.clock == b.clock && std::equal(a.keys.begin(), a.keys.end(), b.keys.begin(), b.keys.end(), by_name) &&
         std::equal(a.workers.begin(), a.workers.end(), b.workers.begin(), b.workers.end(), by_name);
}

void check_names(const std::string& name) {
  expect(unescaped(escaped(name)) == name, "'", name, "' is another when it was escaped");
  expect(find_separator(escaped(name)) == std::string::npos, "'", name, "' has a separator when it was escaped");
  const auto slot = parse_table_slot(saved_table(name) + ":weight");
  expect(slot && slot->first == name && slot->second == "weight", "the table '", name, "' comes back as another");
}

}  // namespace

void saved_state(std::string_view input) {
  const StoreState state = cut_state(Cutter(input));
  for (const auto& [name, array] : state.arrays) check_names(name);
  if (const auto read = parsed<InvalidArgument>([&] { return SavedStore::read(state); })) {
    const SavedStore again = SavedStore::read(read->write());
    expect(same(again, *read), "the state comes back as another");
    for (const auto& [rank, arrays] : read->workers) expect(rank >= 0, "a state of worker ", rank);
    std::size_t shared = 0, workers = 0;
    parsed<InvalidArgument>([&] {
      for (int rank = 0; rank < 2; ++rank) shared += share_of(*read, rank, 2).size();
      return true;
    });
    for (const auto& [rank, arrays] : read->workers) workers += arrays.size();
    expect(shared <= workers, "more states than there were");
  }
  const TableSpec table{.name = "t", .rows = 4, .width = 2};
  if (const auto read = parsed<InvalidArgument>([&] { return LoadedTable::read(table, state, *RowRules::initial()); }))
    for (const std::int64_t id : read->ids()) expect(id >= 0 && id < table.rows, "row ", id);
}

}  // namespace paceline::fuzz
