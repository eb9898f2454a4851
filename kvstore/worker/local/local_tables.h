#pragma once
// Row-sparse tables in this process, for modes `local` and `device`.

#include <paceline/backend.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "rows/row_table.h"
#include "send/row_order.h"

namespace paceline {

class LocalTables {
 public:
  explicit LocalTables(Engine& engine) : engine_(engine) {}
  ~LocalTables() { drain(); }

  void init(const std::vector<TableSpec>& tables);
  void fill(const std::string& name, const FirstRows& values);
  void push_pull(const std::vector<RowPush>& pushes, const std::vector<RowPull>& pulls, std::int64_t examples,
                 int priority);
  // Waits for all tasks. Call it before the functions below.
  void drain();
  void set_rules(std::shared_ptr<const RowRules> rules);
  void set_learning_rate(double rate);
  void add_to(StoreReport& report) const;
  void save(StoreState& state) const;
  void load(const StoreState& state);
  const auto& all() const { return tables_; }  // by name

 private:
  struct LocalTable {
    LocalTable(const TableSpec& spec, Variable variable)
        : layout(spec, TableLayout::partitions_for(spec, 1)),
          rows(spec, layout.block_bits()),
          variable(std::move(variable)) {}
    TableLayout layout;
    RowTable rows;
    Variable variable;  // orders accesses to the rows
  };

  LocalTable& find(const std::string& name) const;
  void push(const RowPush& rows, std::int64_t examples, int priority);
  void pull(const RowPull& rows, int priority);

  Engine& engine_;
  std::shared_ptr<const RowRules> rules_ = RowRules::initial();
  std::map<std::string, std::unique_ptr<LocalTable>> tables_;
};

}  // namespace paceline
