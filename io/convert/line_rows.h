#pragma once
// Tables whose rows are the lines of text files.

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/lines.h"
#include "convert/source.h"
#include "convert/table.h"

namespace paceline::io {

class LineRows : public TableRows {
 public:
  // As Lines().
  LineRows(const std::vector<std::string>& files, const RowFormat& format, bool header)
      : lines_(files, format, header), identity_(identity_of(files)) {}

  std::int64_t size() const final { return lines_.size(); }
  const std::vector<std::string>& columns() const final { return columns_; }
  std::string place(std::int64_t row) const final { return lines_.place(row); }
  void read(std::int64_t row, std::string& bytes) const final { lines_.read(row, bytes); }
  void each(const std::function<void(std::int64_t row, std::string_view bytes)>& body) const final {
    lines_.each(body);
  }
  std::string identity() const override { return identity_; }  // of the files

 protected:
  std::vector<std::string> columns_;
  const Lines lines_;

 private:
  const std::string identity_;
};

}  // namespace paceline::io
