#pragma once
// How a table is cut. Neighbouring rows form blocks, and block b belongs to partition b mod P. A table that is sorted
// by frequency therefore loads every partition alike. Each partition has a place (placement.h), sequence numbers and
// rounds of its own.

#include <paceline/row_tables.h>

#include <cstdint>
#include <string>

namespace paceline {

namespace wire {
class DeclareTable;
}

class TableLayout {
 public:
  // The number of partitions that lets `servers` servers share the table evenly.
  static int partitions_for(const TableSpec& table, int servers);
  TableLayout(const TableSpec& table, int partitions);

  int block_bits() const { return block_bits_; }  // a block has 2^block_bits rows
  int partitions() const { return partitions_; }
  int partition_of(std::int64_t row) const {
    return static_cast<int>((static_cast<std::uint64_t>(row) >> block_bits_) % static_cast<std::uint64_t>(partitions_));
  }

 private:
  static constexpr int kPartitionsPerServer = 4;  // so that the shards of a server share the work
  static constexpr int kSmallestBlock = 4, kLargestBlock = 10;

  int partitions_, block_bits_;
};

// Throws InvalidArgument for an impossible declaration.
void check_table(const TableSpec& table);
inline std::size_t row_bytes(const TableSpec& table) {
  return static_cast<std::size_t>(table.width) * size_of(table.dtype);
}
std::string describe(const TableSpec& table);  // "float32 (1000, 64) of zeros"
bool same_table(const TableSpec& a, const TableSpec& b);

// Throws Corrupt for a type other than float32 and float64. Otherwise throws as check_table() does.
TableSpec parse_table(const wire::DeclareTable& message);
void write_table(const TableSpec& table, wire::DeclareTable* message);

// Computes the value of a row before its first update.
class RowInitializer {
 public:
  // Throws InvalidArgument for an unknown initializer or option, and lists the known ones. Throws it for a wrong value
  // of an option, too.
  explicit RowInitializer(const TableSpec& table);
  // Writes `width` elements.
  template <class T>
  void fill(std::int64_t row, T* out) const;

 private:
  enum class Form { kZeros, kNormal, kUniform };
  Form form_ = Form::kZeros;
  std::int64_t width_;
  double scale_ = 0;
  std::uint64_t seed_ = 0;
};

}  // namespace paceline
