// Where rows live: among the servers, in memory, and in the order in which they travel.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "placement_policy.h"
#include "row_support.h"
#include "rows/row_store.h"
#include "rows/row_table.h"
#include "rows/table_layout.h"
#include "send/row_order.h"
#include "stream_copy.h"

namespace paceline::test {
namespace {

TEST(TableLayout, DealsRowsEvenlyToServers) {
  for (const std::int64_t rows : {1LL, 15LL, 100LL, 5000LL, 10000000LL, 1LL << 60}) {
    for (const int servers : {1, 2, 5}) {
      const TableSpec table = table_of(rows, 4);
      const TableLayout layout(table, TableLayout::partitions_for(table, servers));
      const std::vector<int> places = make_balanced_placement(servers)->place_table(table, layout.partitions());
      std::vector<std::int64_t> found(static_cast<std::size_t>(servers));
      const std::int64_t looked = std::min<std::int64_t>(rows, 100000);
      for (std::int64_t i = 0; i < looked; ++i) {
        const std::int64_t row = rows - 1 - i;
        const int partition = layout.partition_of(row);
        ASSERT_LT(partition, layout.partitions());
        ++found[static_cast<std::size_t>(places[static_cast<std::size_t>(partition)])];
      }
      if (rows < 5000) continue;
      const auto [least, most] = std::minmax_element(found.begin(), found.end());
      EXPECT_LT(static_cast<double>(*most), 1.2 * static_cast<double>(*least)) << rows << " over " << servers;
    }
  }
}

TEST(RowStore, KeepsRecordsWhereTheyWere) {
  constexpr unsigned kSeed = 3;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  constexpr std::size_t kHead = 16, kBody = 4000;  // some thousands to a piece of memory
  RowStore store(4, kHead, kBody);
  std::map<std::int64_t, RowStore::Record> added;
  for (int i = 0; i < 20000; ++i) {
    const auto row = static_cast<std::int64_t>((random() % 50000) << (i % 2 == 0 ? 0 : 30));
    const RowStore::Slot slot = store.find(row);
    const auto known = added.find(row);
    ASSERT_EQ(slot != RowStore::kAbsent, known != added.end());
    if (slot != RowStore::kAbsent) {
      const RowStore::Record record = store.record(slot);
      ASSERT_EQ(record.head, known->second.head);
      ASSERT_EQ(record.body, known->second.body);
      ASSERT_EQ(record.head[kHead - 1], std::byte{5});
      ASSERT_EQ(record.body[kBody - 1], std::byte{7});
    } else {
      const RowStore::Record record = added[row] = store.record(store.add(row));
      ASSERT_EQ(reinterpret_cast<std::uintptr_t>(record.body) % 64, 0U);
      ASSERT_EQ(record.head[0], std::byte{0});
      ASSERT_EQ(record.body[0], std::byte{0});
      ASSERT_EQ(std::exchange(record.head[kHead - 1], std::byte{5}), std::byte{0});
      ASSERT_EQ(std::exchange(record.body[kBody - 1], std::byte{7}), std::byte{0});
    }
  }
  EXPECT_EQ(store.size(), added.size());
  for (const std::size_t count : {0UL, 1UL, 63UL, 64UL, 65UL, 200UL}) {
    Ids rows(count);
    for (std::int64_t& row : rows) row = static_cast<std::int64_t>(random() % 50000);
    std::vector<RowStore::Slot> slots(count);
    store.find(rows, slots.data());
    for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(slots[i], store.find(rows[i])) << i << " of " << count;
  }
  const std::int64_t middle = std::next(added.begin(), 700)->first;
  const auto rows = store.rows_from(middle, 100);
  ASSERT_EQ(rows.size(), 100U);
  auto expected = added.find(middle);
  for (const std::int64_t row : rows) EXPECT_EQ(row, (expected++)->first);
}

// Rows as one worker got them.
struct Answered {
  std::vector<std::uint64_t> versions;
  std::vector<float> values;
  Answered(std::size_t rows, std::int64_t width) : versions(rows), values(rows * static_cast<std::size_t>(width)) {}
  RowAnswer in(int worker, std::uint64_t call) {
    return {worker, call, versions.data(), reinterpret_cast<std::byte*>(values.data())};
  }
};

TEST(RowTable, AnswersWithAPushWhatAReadAfterItWould) {
  constexpr unsigned kSeed = 11;
  SCOPED_TRACE(kSeed);
  constexpr std::int64_t kRows = 300, kWidth = 5;
  constexpr int kWorkers = 3;
  for (const char* policy : {"none", "discard", "discard+delay_compensated"}) {
    SCOPED_TRACE(policy);
    std::mt19937 random(kSeed);
    RowTable together(table_of(kRows, kWidth), 4), apart(table_of(kRows, kWidth), 4);
    const Options options = Spec::parse(*policy == 'n' ? "any" : "any:discard_above=3").options;
    const auto rules = RowRules::make(Spec::parse("momentum:lr=0.1"), policy, options);
    together.set_rules(rules);
    apart.set_rules(rules);
    std::array<std::map<std::int64_t, std::uint64_t>, kWorkers> knowing;  // versions of each worker
    std::uint64_t refused = 0, call = 0;
    for (int i = 0; i < 500; ++i) {
      const int worker = static_cast<int>(random() % kWorkers);
      const Ids some = random_ids(random, kRows, 1 + random() % 200);
      const std::set<std::int64_t> each(some.begin(), some.end());
      const Ids ids(each.begin(), each.end());
      std::vector<std::uint64_t> versions;
      std::map<std::int64_t, std::uint64_t>& known = knowing[static_cast<std::size_t>(worker)];
      for (const std::int64_t id : ids) versions.push_back(known.try_emplace(id, kNeverPulled).first->second);
      const auto gradients = random_values(random, ids.size() * kWidth);
      const RowGradients push{worker, 1, 1, ids, versions.data(), reinterpret_cast<const std::byte*>(gradients.data())};
      call += random() % 4 == 0 ? 0 : 1;  // parts of a call may name a row again
      Answered one(ids.size(), kWidth), other(ids.size(), kWidth);
      const RowAnswer answer = one.in(worker, call);
      RowScalars of_together, of_apart;
      const std::uint64_t refused_together = together.apply(push, &of_together, &answer);
      ASSERT_EQ(refused_together, apart.apply(push, &of_apart));
      apart.read(ids, other.in(worker, call));
      ASSERT_EQ(one.versions, other.versions);
      ASSERT_EQ(one.values, other.values);
      refused += refused_together;
      for (std::size_t r = 0; r < ids.size(); ++r) known[ids[r]] = one.versions[r];
    }
    EXPECT_EQ(refused > 0, std::string(policy) != "none");
  }
}

TEST(RowOrder, DealsRowsToPartitionsAndSortsEachAndKeepsTheOrderOfEqualIds) {
  std::mt19937 random(5);
  for (const std::int64_t rows : {7LL, 100000LL, (1LL << 62) + 9}) {
    for (const std::size_t count : {0UL, 1UL, 100UL, 600UL, 5000UL, 20000UL}) {
      const TableSpec table = table_of(rows, 1);
      const TableLayout layout(table, TableLayout::partitions_for(table, 3));
      Ids ids(count);
      for (std::int64_t& id : ids)
        id = static_cast<std::int64_t>(((std::uint64_t{random()} << 32) | random()) % static_cast<std::uint64_t>(rows));
      for (std::size_t i = 0; i + 1 < count; i += 7) ids[i + 1] = ids[i];
      if (count == 600) std::sort(ids.begin(), ids.end());
      RowOrder order(ids, table, layout, "the test of");
      ASSERT_EQ(order.size(), count);
      ASSERT_EQ(order.partitions(), layout.partitions());
      std::size_t total = 0;
      for (int p = order.partitions() - 1; p >= 0; --p) {
        const auto& part = order.partition(p);
        total += part.size();
        for (std::size_t i = 0; i < part.size(); ++i) {
          EXPECT_EQ(part[i].id, ids[part[i].position]);
          EXPECT_EQ(p, layout.partition_of(part[i].id));
          if (i == 0) continue;
          EXPECT_LT(std::tuple(part[i - 1].id, part[i - 1].position), std::tuple(part[i].id, part[i].position));
        }
      }
      EXPECT_EQ(total, count);
    }
  }
}

// Few rows, and so many that they are copied past the caches.
TEST(RowOrder, GathersSumsOfRowsAndScattersThemToWhoeverAsked) {
  std::mt19937 random(7);
  constexpr std::int64_t kWidth = 64;
  for (const std::size_t count : {100UL, 70000UL}) {
    const TableSpec table = table_of(1000000, kWidth);
    const TableLayout layout(table, TableLayout::partitions_for(table, 1));
    ASSERT_EQ(count * row_bytes(table) >= kFillsCaches, count == 70000);
    Ids ids = random_ids(random, table.rows, count);
    ids[count - 1] = ids[3];
    alignas(64) static std::array<float, 70001 * kWidth> given, gathered, scattered;
    for (std::size_t i = 0; i < count * kWidth; ++i) given[i] = static_cast<float>(i % 1000);
    std::map<std::int64_t, float> sums;  // of first elements
    for (std::size_t i = 0; i < count; ++i) sums[ids[i]] += given[i * kWidth];
    RowOrder order(ids, table, layout, "the test of");
    std::size_t repeats = 0;
    for (int p = 0; p < order.partitions(); ++p) {
      const auto& rows = order.partition(p);
      const RowRange all{0, rows.size()};
      Ids different(rows.size());
      different.resize(write_ids(rows, all, different.data()));
      gather_rows(rows, all, table, reinterpret_cast<const std::byte*>(given.data()),
                  reinterpret_cast<std::byte*>(gathered.data()));
      for (std::size_t i = 0; i < different.size(); ++i) ASSERT_EQ(gathered[i * kWidth], sums[different[i]]);
      std::vector<std::uint32_t> places(different.size());
      const std::vector<RowRange> repeated = place_rows(rows, all, count, places.data());
      repeats += repeated.size();
      for (std::size_t i = 0; i < different.size(); ++i) {
        if (places[i] < count) {
          ASSERT_EQ(ids[places[i]], different[i]);
          ASSERT_EQ(given[places[i] * kWidth], gathered[i * kWidth]);
        } else {
          const RowRange same = repeated[places[i] - count];
          ASSERT_GE(same.end - same.begin, 2U);
          for (std::size_t r = same.begin; r < same.end; ++r) ASSERT_EQ(rows[r].id, different[i]);
        }
      }
      for (const std::size_t shift : {0UL, 1UL}) {  // aligned to lines, and not
        const std::span<float> out(scattered.data() + shift, count * kWidth);
        scatter_rows(rows, all, table, reinterpret_cast<const std::byte*>(gathered.data()),
                     std::as_writable_bytes(out));
        for (const OrderedRow& row : rows) ASSERT_EQ(out[row.position * kWidth], sums[row.id]) << row.position;
      }
    }
    EXPECT_GE(repeats, 1U);
  }
}

TEST(StreamCopy, CopiesAnyNumberOfBytesToAnyPlace) {
  alignas(64) std::array<char, 512> from, to;
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<char>(i * 7 + 1);
  for (const std::size_t shift : {0UL, 8UL, 64UL}) {
    for (const std::size_t bytes : {0UL, 1UL, 63UL, 64UL, 65UL, 200UL, 320UL}) {
      to.fill(0);
      stream_copy(from.data() + 3, to.data() + shift, bytes);
      stream_end();
      EXPECT_TRUE(std::equal(to.begin() + shift, to.begin() + shift + bytes, from.begin() + 3))
          << shift << ' ' << bytes;
      EXPECT_EQ(std::count(to.begin() + shift + bytes, to.end(), '\0'), static_cast<long>(to.size() - shift - bytes));
    }
  }
#ifdef __x86_64__
  for (const std::size_t lines : {0UL, 1UL, 5UL}) {  // the way of processors without AVX-512
    const void* const begin = from.data() + 3;
    to.fill(0);
    stream_copy_detail::copy_lines(static_cast<const __m128i*>(begin), reinterpret_cast<__m128i*>(to.data()), lines);
    stream_end();
    EXPECT_TRUE(std::equal(to.begin(), to.begin() + lines * 64, from.begin() + 3)) << lines;
    EXPECT_EQ(std::count(to.begin() + lines * 64, to.end(), '\0'), static_cast<long>(to.size() - lines * 64));
  }
#endif
}

}  // namespace
}  // namespace paceline::test
