#pragma once
// The sources that convert() reads. A function opens its files, looks through them as far as it must, and throws
// IoError, Corrupt with file and line, and InvalidArgument for options that cannot be. Text may be packed by gzip.

#include <paceline/convert.h>
#include <paceline/image.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

// What the labels of a source are.
enum class LabelKind {
  kAuto,    // classes where they are words, or whole numbers and at most 1,000 different ones
  kClass,   // classes: they are numbered 0, 1, 2, ... in order, and keep their names
  kNumber,  // numbers
};

// What becomes of a column of a table.
enum class ColumnType {
  kNumber,    // a number
  kCategory,  // the place of its word among the categories, 0, 1, 2, ...
  kOneHot,    // a number for each category: 1 for that of the row, else 0
  kSkip,      // nothing
};

// A column of a table.
struct TableColumn {
  std::string name = {};                     // in the header, or "0", "1", ... where there is none
  ColumnType type = ColumnType::kNumber;     // of its values
  std::vector<std::string> categories = {};  // the words by number, for kCategory and kOneHot; "" is a missing value
  std::optional<double> missing = {};        // the number for a missing value; none: such a row is bad
  friend bool operator==(const TableColumn&, const TableColumn&) = default;
};

// How the rows of a table become numbers. A converter writes it as PREFIX.schema.json, so that a test set, and a
// program that uses the trained network, read tables in the same way.
struct TableSchema {
  std::vector<TableColumn> columns = {};  // in the order of the arrays
  std::string label = {};                 // name of the column with the label; empty: there is none
  // Read and write JSON. They throw IoError; load() throws Corrupt, which says what is wrong.
  static TableSchema load(const std::string& path);
  void save(const std::string& path) const;
  friend bool operator==(const TableSchema&, const TableSchema&) = default;
};

// What a row of a table becomes.
enum class RowPayload {
  kTensor,  // a tensor of float32 behind MXNet's header with the label, for decoders::tensor(); the fastest to load
  kRow,     // the numbers as text, the label first, for decoders::csv_row()
  kArrays,  // a safetensors file with an array for each column: float32, int32 for categories; for decoders::tensors()
};

// How a table is read. What is not given is found out by reading all rows.
struct TableOptions {
  std::optional<TableSchema> schema = {};    // none: made of what follows and of the values
  std::string label = {};                    // name of the column with the label; empty: there is none
  LabelKind label_kind = LabelKind::kAuto;   // what the labels are
  std::vector<std::string> categories = {};  // columns that hold categories though they are numbers
  std::vector<std::string> one_hot = {};     // columns that become a number for each category
  std::vector<std::string> skip = {};        // columns to leave out
  // The words for a missing value. Space around words does not count.
  std::vector<std::string> missing_words = {"", "?", "NA", "N/A", "NaN", "nan", "null"};
  // For a missing number: "" makes the row bad, "mean" takes the mean of the column, and else this is the number.
  std::string fill = {};
  std::string split_key = {};  // column whose value decides to which split a row belongs; empty: the whole row
  RowPayload payload = RowPayload::kTensor;  // of the records
};

// Does the first line of a file name the columns?
enum class CsvHeader {
  kAuto,  // it does where no word of it is a number, and no two are equal
  kYes,   // it does, in each file
  kNo,    // it does not: columns are named "0", "1", ...
};

// A file of values with a delimiter between them.
struct CsvSourceOptions {
  char delimiter = ',';                 // '\t' for TSV
  CsvHeader header = CsvHeader::kAuto;  // whether there is one
  TableOptions table = {};              // what the values mean
};
// Rows of CSV or TSV. Values of CSV may be quoted as RFC 4180 has it, with line breaks inside; in TSV a quote is a
// character as others. Space around a value does not count. All files have the same columns.
RecordSourceHandle csv_source(const std::vector<std::string>& files, const CsvSourceOptions& options = {});

// Objects, one on each line, as rows of a table. An object in an object gives columns "outer.inner", an array of
// numbers the columns "name.0", "name.1", ... A truth value is 0 or 1. What is null or absent is missing.
RecordSourceHandle json_lines_source(const std::vector<std::string>& files, const TableOptions& options = {});

// How text is cut into records, for decoders::text().
struct TextSourceOptions {
  std::int64_t window = 128;  // bytes that a training example holds; the label is the byte after each
  bool lines = false;         // a record is a line; else a window and the byte behind it
  std::int64_t stride = 0;    // bytes from the beginning of a window to that of the next; 0: as many as in a window
  std::string field = {};     // the text is this field of objects in JSON lines, each a record; empty: it is no JSON
};
// Text of any encoding.
RecordSourceHandle text_source(const std::vector<std::string>& files, const TextSourceOptions& options = {});

// A file in LibSVM's format.
struct LibsvmSourceOptions {
  std::int64_t features = 0;           // numbers in an example; 0: as the largest index says
  bool from_zero = false;              // indices count from 0, instead of from 1
  LabelKind label = LabelKind::kAuto;  // what the labels are
};
// Rows, for decoders::libsvm_row().
RecordSourceHandle libsvm_source(const std::vector<std::string>& files, const LibsvmSourceOptions& options = {});

// How NumPy's arrays are read. The first axis of each counts the examples.
struct NumpySourceOptions {
  std::string data = {};   // name of the array that becomes "data"; empty: the only one that is not the label
  std::string label = {};  // name of the array that becomes "label"; empty: "label" or "labels", where there is one
};
// Files .npy, named after the file, and the arrays in .npz. "data" alone is written for decoders::tensor(), and with
// one number as the label where that is a class or a float32; else all arrays for decoders::tensors().
RecordSourceHandle numpy_source(const std::vector<std::string>& files, const NumpySourceOptions& options = {});

// What becomes of images.
struct ImageSourceOptions {
  std::string labels = {};  // IDX file of the labels; empty: MNIST's name beside the images
  std::string root = {};    // folder that the paths of a list are relative to; empty: the list's own
  std::string encoding =
      "auto";                 // png, jpg or raw; auto keeps a file's bytes where nothing is changed, else jpg; IDX: png
  int quality = 95;           // of JPEG, 1 to 100
  int resize = 0;             // the shorter edge in pixels; 0: leave the size
  bool center_crop = false;   // cut out the square in the middle, before resizing
  int channels = 0;           // 1 grey, 3 colour; 0: as stored
  bool pass_through = false;  // store the bytes without decoding them
};
// A folder with a sub-folder for each class, an MXNet `.lst`, or MNIST's IDX file, plain or packed by gzip.
RecordSourceHandle image_source(const std::string& path, const ImageSourceOptions& options = {});

// Samples in tar files as WebDataset has them: members with the same path up to the first dot of the name. An image
// (.jpg, .jpeg, .png) has its label in `.cls`. `labels`, `root` of the options do not apply.
RecordSourceHandle webdataset_source(const std::vector<std::string>& files, const ImageSourceOptions& options = {});

// The records of record files and data sets (.manifest), as they are. They are numbered anew where two keys are equal.
RecordSourceHandle record_source(const std::vector<std::string>& sources);

}  // namespace paceline
