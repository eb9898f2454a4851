#include "rows/table_layout.h"

#include <paceline/error.h>
#include <paceline/random.h>
#include <paceline/updater.h>

#include <algorithm>
#include <cmath>

#include "sparse.pb.h"

namespace paceline {
namespace {

constexpr std::int64_t kMaxRowBytes = std::int64_t{16} << 20;
// The ids of a table with more rows than this are probably hashes. Each of them needs its own page in RowStore's index.
// A page covers one block, so blocks are small.
constexpr std::int64_t kManyRows = std::int64_t{1} << 34;

}  // namespace

int TableLayout::partitions_for(const TableSpec& table, int servers) {
  return static_cast<int>(
      std::clamp<std::int64_t>(table.rows >> kSmallestBlock, 1, std::int64_t{kPartitionsPerServer} * servers));
}

TableLayout::TableLayout(const TableSpec& table, int partitions) : partitions_(partitions) {
  block_bits_ = table.rows > kManyRows ? kSmallestBlock : kLargestBlock;
  while (block_bits_ > kSmallestBlock && (table.rows >> block_bits_) < 4 * partitions_) --block_bits_;
}

void check_table(const TableSpec& table) {
  require(!table.name.empty(), "a table's name is empty");
  require(table.dtype == DType::kFloat32 || table.dtype == DType::kFloat64, "table '", table.name, "' is ",
          name_of(table.dtype), "; the store holds float32 and float64");
  require(table.rows >= 1 && table.width >= 1, "table '", table.name, "' has ", table.rows, " rows of ", table.width,
          " elements, expected at least one of each");
  require(table.width <= kMaxRowBytes / static_cast<std::int64_t>(size_of(table.dtype)), "a row of table '", table.name,
          "' has ", table.width, " elements; at most ", kMaxRowBytes >> 20, " MiB can be stored");
  const RowInitializer initializer(table);
}

std::string describe(const TableSpec& table) {
  return str(name_of(table.dtype), " ", Shape{table.rows, table.width}, " of ", table.initializer.text());
}

bool same_table(const TableSpec& a, const TableSpec& b) { return a.name == b.name && describe(a) == describe(b); }

TableSpec parse_table(const wire::DeclareTable& message) {
  if (message.dtype() != static_cast<int>(DType::kFloat32) && message.dtype() != static_cast<int>(DType::kFloat64))
    throw Corrupt(str("a table of type number ", message.dtype()));
  TableSpec table{message.name(), message.rows(), message.width(), static_cast<DType>(message.dtype()),
                  Spec::parse(message.initializer())};
  check_table(table);
  return table;
}

void write_table(const TableSpec& table, wire::DeclareTable* message) {
  message->set_name(table.name);
  message->set_rows(table.rows);
  message->set_width(table.width);
  message->set_dtype(static_cast<int>(table.dtype));
  message->set_initializer(table.initializer.text());
}

RowInitializer::RowInitializer(const TableSpec& table) : width_(table.width) {
  const Spec& spec = table.initializer;
  const std::string owner = "initializer '" + spec.name + "' of table '" + table.name + "'";
  if (spec.name == "normal") {
    form_ = Form::kNormal;
    scale_ = spec.options.get("sigma", 0.01);
  } else if (spec.name == "uniform") {
    form_ = Form::kUniform;
    scale_ = spec.options.get("bound", 0.01);
  } else {
    require(spec.name == "zeros", "unknown ", owner, "; known: zeros normal uniform");
  }
  require(scale_ >= 0 && std::isfinite(scale_), owner, " has the scale ", scale_,
          ", expected a finite number of at least 0");
  if (form_ != Form::kZeros)
    seed_ = static_cast<std::uint64_t>(spec.options.get("seed", std::int64_t{0})) ^ hash_key(table.name);
  spec.options.reject_unknown(owner);
}

template <class T>
void RowInitializer::fill(std::int64_t row, T* out) const {
  if (form_ == Form::kZeros) {
    std::fill_n(out, width_, T(0));
    return;
  }
  for (std::int64_t i = 0; i < width_; i += 2) {
    const RandomBits bits = random_bits(seed_, static_cast<std::uint64_t>(i / 2), static_cast<std::uint64_t>(row));
    RandomPair pair{uniform_double(bits.word[0], bits.word[1]), uniform_double(bits.word[2], bits.word[3])};
    if (form_ == Form::kNormal)
      pair = normal_pair(1 - pair.first, pair.second);
    else
      pair = {2 * pair.first - 1, 2 * pair.second - 1};
    out[i] = static_cast<T>(scale_ * pair.first);
    if (i + 1 < width_) out[i + 1] = static_cast<T>(scale_ * pair.second);
  }
}
template void RowInitializer::fill(std::int64_t, float*) const;
template void RowInitializer::fill(std::int64_t, double*) const;

}  // namespace paceline
