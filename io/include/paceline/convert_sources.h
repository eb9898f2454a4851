#pragma once
// The sources that convert() reads. Each function opens its files and reads as much of them as it must. It throws
// IoError, Corrupt for damaged files, and InvalidArgument for impossible options. Corrupt names the file, and the line
// where one is known. Text files may be compressed by gzip.

#include <paceline/convert.h>
#include <paceline/image.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace paceline {

// What the labels of a source are.
enum class LabelKind {
  kAuto,    // classes where they are words or at most 1,000 different whole numbers, else numbers
  kClass,   // classes: in sorted order they get the numbers 0, 1, 2, ...; the manifest keeps their names
  kNumber,  // numbers
};

// What becomes of a column of a table.
enum class ColumnType {
  kNumber,    // a number
  kCategory,  // the place of its word among the categories, 0, 1, 2, ...
  kOneHot,    // a number for each category: 1 for that of the row, else 0
  kSkip,      // the column is left out
};

// A column of a table.
struct TableColumn {
  std::string name = {};                     // in the header, or "0", "1", ... where there is none
  ColumnType type = ColumnType::kNumber;     // of its values
  std::vector<std::string> categories = {};  // the words by number, for kCategory and kOneHot; "" is a missing value
  std::optional<double> missing = {};        // the number for a missing value; none: a row without the value is bad
  friend bool operator==(const TableColumn&, const TableColumn&) = default;
};

// How the rows of a table become numbers. convert() writes it beside each set as PREFIX.schema.json. A later conversion
// of a test set, or a program that uses the trained network, can then read tables in the same way.
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
  kTensor,  // a float32 tensor for decoders::tensor(), behind MXNet's header if there is a label; the fastest to load
  kRow,     // the numbers as text, the label first, for decoders::csv_row()
  kArrays,  // a safetensors file with an array for each column: float32, int32 for categories; for decoders::tensors()
};

// How a table is read. Without `schema`, all rows are read to find the types and the categories of the columns.
struct TableOptions {
  // None: made from the options below and from the values. A schema says already what `label_kind`, `categories`,
  // `one_hot`, `skip` and `fill` say; InvalidArgument is thrown where one of these is given beside it.
  std::optional<TableSchema> schema = {};
  std::string label = {};                    // name of the column with the label; empty: there is none
  LabelKind label_kind = LabelKind::kAuto;   // what the labels are
  std::vector<std::string> categories = {};  // columns that hold categories though they are numbers
  std::vector<std::string> one_hot = {};     // columns that become a number for each category
  std::vector<std::string> skip = {};        // columns to leave out
  // The words for a missing value. In CSV and TSV, space around words does not count.
  std::vector<std::string> missing_words = {"", "?", "NA", "N/A", "NaN", "nan", "NULL", "null"};
  // What replaces a missing number: "mean" is the mean of the column, and other text is the number itself. With "" the
  // row is bad.
  std::string fill = {};
  std::string split_key = {};  // column whose value decides to which split a row belongs; empty: the whole row
  RowPayload payload = RowPayload::kTensor;  // of the records
};

// Does the first line of a file name the columns?
enum class CsvHeader {
  kAuto,  // it does where no word of it is a number, and no two are equal; InvalidArgument where that is not clear
  kYes,   // it does, in each file
  kNo,    // it does not: columns are named "0", "1", ...
};

// A file of values with a delimiter between them.
struct CsvSourceOptions {
  char delimiter = ',';                 // '\t' for TSV
  CsvHeader header = CsvHeader::kAuto;  // whether there is one
  TableOptions table = {};              // what the values mean
};
// Rows of CSV or TSV. Values of CSV may be quoted as in RFC 4180, with line breaks inside. In TSV a quote is a
// character like any other. Space around a value does not count. All files have the same columns.
RecordSourceHandle csv_source(const std::vector<std::string>& files, const CsvSourceOptions& options = {});

// Objects, one on each line, as rows of a table. An object in an object gives columns "outer.inner", an array of
// numbers the columns "name.0", "name.1", ... A truth value is 0 or 1. What is null or absent is missing.
RecordSourceHandle json_lines_source(const std::vector<std::string>& files, const TableOptions& options = {});

// How text is cut into records, for decoders::text().
struct TextSourceOptions {
  std::int64_t window = 128;  // bytes of a training example; the label of each byte is the byte after it
  bool lines = false;         // a record is a line; else a window and the byte behind it
  std::int64_t stride = 0;    // bytes from the beginning of a window to that of the next; 0: as many as in a window
  std::string field = {};     // each record is this text field of an object in JSON lines; empty: files are no JSON
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
  std::string label = {};  // name of the array that becomes "label"; empty: "label" or "labels" among several arrays
};
// Arrays in .npy files, which are named after the file, and in .npz files. Records are for decoders::tensor() where
// "data" is the only array, or stands beside a label of one number alone. That number must be a class, a float32 or a
// type of at most 2 bytes. In all other cases a record holds all arrays, for decoders::tensors().
RecordSourceHandle numpy_source(const std::vector<std::string>& files, const NumpySourceOptions& options = {});

// What becomes of images.
struct ImageSourceOptions {
  std::string labels = {};  // IDX file of the labels; empty: the file beside the images that MNIST's naming gives
  std::string root = {};    // folder that the paths of a list are relative to; empty: the list's own
  // png, jpg or raw. auto keeps the bytes of a file whose image does not change, and writes changed images as jpg. It
  // writes IDX images as png.
  std::string encoding = "auto";
  int quality = 95;           // of JPEG, 1 to 100
  int resize = 0;             // the shorter edge in pixels; 0: leave the size
  bool center_crop = false;   // cut out the square in the middle, before resizing
  int channels = 0;           // 1 grey, 3 colour; 0: as stored
  bool pass_through = false;  // store the bytes without decoding them
};
// A folder with a sub-folder for each class, an MXNet `.lst`, or MNIST's IDX file, plain or packed by gzip.
RecordSourceHandle image_source(const std::string& path, const ImageSourceOptions& options = {});

// Samples in tar files of WebDataset. A sample is all members with the same path up to the first dot of the name.
// The label of an image (.jpg, .jpeg, .png) is in `.cls`. `labels` and `root` of the options do not apply.
RecordSourceHandle webdataset_source(const std::vector<std::string>& files, const ImageSourceOptions& options = {});

// The records of record files and data sets (.manifest), as they are. They are numbered anew where two keys are equal.
RecordSourceHandle record_source(const std::vector<std::string>& sources);

}  // namespace paceline
