#pragma once
// Text with a row of fields on each line, as RFC 4180 describes it. A field between quotes may hold delimiters, ends of
// lines and doubled quotes. A quote that does not begin a field is damage of its row, and of no other. Empty lines are
// left out. Lines end with LF or CR LF. A byte order mark of UTF-8 is skipped.

#include <paceline/decoder.h>
#include <paceline/pipeline_iterator.h>
#include <paceline/recordio.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

// Columns that become an array of a batch. A column is named by the header's name for it, else by its number from 0;
// -1 is the last column.
struct CsvArray {
  std::string name;                       // "data" and "label" are the members of Batch with these names
  std::vector<std::string> columns = {};  // empty: those that no other array names, in the order of the file
  // float32, float64, uint8, int8, int32 or int64. An integer that does not fit is an error, and so is 1.5; 1.0 is not.
  DType dtype = DType::kFloat32;
  // The words that fields may be; a word becomes its place in this list, from 0. Empty: fields are finite numbers.
  std::vector<std::string> categories = {};
  // The number for fields that are empty, NA, N/A, NaN, nan, NULL or null; none: such fields are errors.
  std::optional<double> missing = {};
  // Of one example. None: () for a "label" of one column, else (columns).
  std::optional<Shape> shape = {};
};

// How a file is read.
struct CsvIteratorOptions {
  std::int64_t batch = 64;                    // examples in a batch of this process
  std::optional<std::uint64_t> shuffle = {};  // seed of the order; none: as in the file
  std::shared_ptr<Source> source = {};        // none: the whole file
  std::string label = {};                     // the column of "label"; empty: there is none
  bool class_labels = true;                   // "label" is int32 class numbers, else float32
  std::vector<std::string> classes = {};      // words that are the label's classes 0, 1, ...; empty: it is a number
  std::optional<double> missing = {};         // as CsvArray::missing, for "data"
  std::vector<CsvArray> arrays = {};          // in place of the four above; empty: "data" of all columns but the label
  bool header = true;                         // the first row names the columns
  char delimiter = ',';                       // between fields
  char quote = '"';                           // around fields; 0: nowhere
  OnDamage on_damage = OnDamage::kFail;       // kSkip: rows that cannot be read are left out, counted and logged
  int decode_threads = 0;                     // 0: as PipelineIterator chooses
  int prefetch = 0;                           // batches decoded ahead; 0: likewise
};

// Holds the text of a file of at most 64 MiB in memory. Reads a larger file anew in each epoch, and never holds all of
// its text. Beside batches and text, it takes half a byte of memory for each row, or a sixtieth of the file where that
// is more. Each thread holds up to 1 MiB of text, or 16 rows where these are longer. With `shuffle`, each row of a
// larger file is read by itself, about a KiB at a time. Positions are dealt as MemoryIterator deals them.
class CsvIterator final : public PipelineIterator {
 public:
  // Reads the file once to find its rows, with `decode_threads` threads, or all cores of the budget where that is 0.
  // Throws IoError. Throws InvalidArgument where there are no rows, a column is not there or the options do not fit.
  // Throws Corrupt where the file is no text, a line is too long (2^29 bytes) or a quoted field does not end. next()
  // throws Corrupt with "FILE:LINE: column 3 ('age') is 'x', expected a finite number", where columns count from 0.
  explicit CsvIterator(const std::string& path, const CsvIteratorOptions& options = {});
  ~CsvIterator() override;

  // The names of the columns; their numbers where there is no header.
  const std::vector<std::string>& columns() const;
  // What kSkip left out since construction: damage() lists at most 1,000 rows, damaged() counts all. Thread-safe.
  std::vector<RecordDamage> damage() const;
  std::int64_t damaged() const;

 private:
  struct State;
  CsvIterator(const std::shared_ptr<State>& state, const CsvIteratorOptions& options);
  std::shared_ptr<State> state_;
};

}  // namespace paceline
