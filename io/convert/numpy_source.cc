// NumPy's arrays as records, one for each index of the first axis.

#include <paceline/convert_sources.h>
#include <paceline/error.h>
#include <paceline/image.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "convert/npy.h"
#include "convert/source.h"
#include "safetensors.h"

namespace paceline {
namespace io {
namespace {

template <class T>
T value_at(std::string_view row, std::size_t i) {
  T value{};
  std::memcpy(&value, row.data() + i * sizeof(T), sizeof value);
  return value;
}

// Element i of a row.
double number_at(std::string_view row, DType dtype, std::size_t i) {
  switch (dtype) {
    case DType::kFloat32: return static_cast<double>(value_at<float>(row, i));
    case DType::kFloat64: return value_at<double>(row, i);
    case DType::kFloat16: return static_cast<double>(static_cast<float>(value_at<float16>(row, i)));
    case DType::kUint8: return value_at<std::uint8_t>(row, i);
    case DType::kInt32: return value_at<std::int32_t>(row, i);
    case DType::kInt8: return value_at<std::int8_t>(row, i);
    case DType::kInt64: return static_cast<double>(value_at<std::int64_t>(row, i));
    case DType::kBool: return value_at<std::uint8_t>(row, i) != 0;
    case DType::kBfloat16: return static_cast<double>(static_cast<float>(value_at<bfloat16>(row, i)));
  }
  return 0;
}

class NumpySource final : public RecordSource {
 public:
  NumpySource(const std::vector<std::string>& files, const NumpySourceOptions& options)
      : identity_(identity_of(files)) {
    require(!files.empty(), "no files were given");
    for (const std::string& file : files)
      for (NumpyArray& array : read_numpy(file)) arrays_.push_back(std::move(array));
    files_ = files[0];
    name_arrays(options);
    for (const NumpyArray& array : arrays_) {
      require(is_utf8(array.name()), "the name ", io::in_quotes(array.name()), " of an array in ", files[0],
              " is not UTF-8, as the names in a manifest are");
      require(array.rows() == arrays_[0].rows(), "the array '", array.name(), "' has ", array.rows(), " examples, '",
              arrays_[0].name(), "' has ", arrays_[0].rows());
    }
    const bool label_alone = label_ < arrays_.size() && arrays_[label_].row_shape().size() == 1;
    if (label_alone) count_classes();
    as_tensor_ = arrays_.size() == 1 || (arrays_.size() == 2 && label_alone && data_ < arrays_.size() &&
                                         fits_into_float(arrays_[label_].dtype()));
    if (!as_tensor_) {
      std::vector<ExampleArray> described;
      for (std::size_t i = 0; i < arrays_.size(); ++i)
        described.push_back({names_[i], arrays_[i].row_shape(), stored_type(i)});
      head_ = tensors_head(described);
      described_ = std::move(described);
    }
  }

  std::int64_t size() const override { return arrays_[0].rows(); }
  const char* unit() const override { return "examples"; }
  std::int64_t block() const override {
    std::size_t bytes = 1;
    for (const NumpyArray& array : arrays_) bytes += array.row_bytes();
    return static_cast<std::int64_t>(std::clamp<std::size_t>((1 << 20) / bytes, 1, 64));
  }
  std::string place(std::int64_t entry) const override { return str(files_, ": example ", entry); }
  std::vector<std::uint64_t> keys() const override {
    std::vector<std::uint64_t> keys;
    std::string row;
    for (std::int64_t entry = 0; entry < size(); ++entry) {
      row.clear();
      for (const NumpyArray& array : arrays_) array.append_row(entry, row);
      keys.push_back(stable_hash(row));
    }
    return keys;
  }
  std::unique_ptr<EntryEncoder> encoder(const std::function<void()>&) const override;
  std::vector<std::string> number_names() const override { return names_; }
  std::string identity() const override {
    std::string text = str("numpy ", as_tensor_, classes_, '\n', identity_);
    for (const std::string& name : names_) text += name + '\n';
    return text;
  }

  Manifest description() const override {
    Manifest manifest;
    manifest.payload = "bytes";
    manifest.class_labels = classes_;
    if (!as_tensor_) {
      manifest.decoder = {"tensors", {}, described_};
      return manifest;
    }
    for (std::int64_t i = 0; i < class_count_; ++i) manifest.labels.push_back(std::to_string(i));
    const NumpyArray& data = arrays_[data_];
    manifest.decoder = {"tensor",
                        {{"labels", label_ < arrays_.size()}, {"class_labels", classes_}},
                        {{"data", data.row_shape(), data.dtype()}}};
    return manifest;
  }

  void encode(std::int64_t entry, std::string& record, Tally& tally) const {
    if (!as_tensor_) record = head_;
    std::string row;
    float label = 0;
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      const NumpyArray& array = arrays_[i];
      row.clear();
      array.append_row(entry, row);
      const auto count = static_cast<std::size_t>(array.row_shape().size());
      count_numbers(row, array.dtype(), count, tally.number(i));
      if (i == label_ && classes_) ++tally.classes[static_cast<std::int64_t>(number_at(row, array.dtype(), 0))];
      if (as_tensor_) {
        if (i == label_)
          label = static_cast<float>(number_at(row, array.dtype(), 0));
        else
          record = row;
      } else if (stored_type(i) != array.dtype()) {
        append_int32(row, array.dtype(), count, record);
      } else {
        record += row;
      }
    }
    if (as_tensor_ && label_ < arrays_.size())
      record = pack_image_record({&label, 1}, static_cast<std::uint64_t>(entry), record);
  }

 private:
  static bool is_whole(DType dtype) { return !is_floating(dtype); }

  // Does MXNet's header, where labels are float32, hold every label?
  bool fits_into_float(DType dtype) const { return classes_ || dtype == DType::kFloat32 || size_of(dtype) <= 2; }

  // Labels that are whole numbers are int32, as losses take them.
  DType stored_type(std::size_t i) const {
    return i == label_ && is_whole(arrays_[i].dtype()) ? DType::kInt32 : arrays_[i].dtype();
  }

  static void append_int32(std::string_view row, DType dtype, std::size_t count, std::string& to) {
    for (std::size_t i = 0; i < count; ++i) {
      const double number = number_at(row, dtype, i);
      const auto value = static_cast<std::int32_t>(number);
      if (static_cast<double>(value) != number) throw Corrupt(str("its label ", number, " does not fit into an int32"));
      to.append(reinterpret_cast<const char*>(&value), sizeof value);
    }
  }

  static void count_numbers(std::string_view row, DType dtype, std::size_t count, Moments& moments) {
    for (std::size_t i = 0; i < count; ++i) {
      const double number = number_at(row, dtype, i);
      if (std::isfinite(number))
        moments.add(number);
      else
        moments.add_missing();
    }
  }

  // Which array is "data", and which "label".
  void name_arrays(const NumpySourceOptions& options) {
    std::string known;
    for (const NumpyArray& array : arrays_) known += str(known.empty() ? "'" : ", '", array.name(), "'");
    const auto find = [&](const std::string& name) {
      return static_cast<std::size_t>(
          std::find_if(arrays_.begin(), arrays_.end(), [&](const NumpyArray& array) { return array.name() == name; }) -
          arrays_.begin());
    };
    data_ = label_ = arrays_.size();
    if (!options.label.empty()) {
      label_ = find(options.label);
      require(label_ < arrays_.size(), "there is no array '", options.label, "'; there are ", known);
    } else if (arrays_.size() > 1) {
      label_ = std::min(find("label"), find("labels"));
    }
    if (!options.data.empty()) {
      data_ = find(options.data);
      require(data_ < arrays_.size(), "there is no array '", options.data, "'; there are ", known);
    } else if (arrays_.size() == 1 && label_ > 0) {
      data_ = 0;
    } else if (arrays_.size() == 2 && label_ < 2) {
      data_ = 1 - label_;
    }
    require(arrays_.size() > 1 || data_ == 0, "the only array cannot be the label");
    require(data_ == arrays_.size() || data_ != label_, "the array '", options.data, "' cannot be data and label");
    std::set<std::string> once;
    for (std::size_t i = 0; i < arrays_.size(); ++i) {
      names_.push_back(i == data_ ? "data" : i == label_ ? "label" : arrays_[i].name());
      require(once.insert(names_[i]).second, "two arrays are called '", names_[i],
              "'; --data and --label name those that are to be 'data' and 'label'");
    }
  }

  // Are the labels classes?
  void count_classes() {
    const NumpyArray& labels = arrays_[label_];
    classes_ = is_whole(labels.dtype());
    std::string row;
    for (std::int64_t entry = 0; classes_ && entry < labels.rows(); ++entry) {
      row.clear();
      labels.append_row(entry, row);
      const double label = number_at(row, labels.dtype(), 0);
      constexpr double kMost = 1e5;
      classes_ = label >= 0 && label < kMost;
      if (classes_) class_count_ = std::max(class_count_, static_cast<std::int64_t>(label) + 1);
    }
    if (!classes_) class_count_ = 0;
  }

  const std::string identity_;
  std::vector<NumpyArray> arrays_;
  std::vector<std::string> names_;  // of the arrays in a batch
  std::string files_;               // for the list of bad entries
  std::size_t data_ = 0;            // place of the array; their number where there is none
  std::size_t label_ = 0;           // likewise
  bool as_tensor_ = false;
  bool classes_ = false;
  std::int64_t class_count_ = 0;
  std::vector<ExampleArray> described_;
  std::string head_;
};

class NumpyEncoder final : public EntryEncoder {
 public:
  explicit NumpyEncoder(const NumpySource& source) : source_(source) {}
  void encode(std::int64_t entry, std::string& record, Tally& tally) override { source_.encode(entry, record, tally); }

 private:
  const NumpySource& source_;
};

std::unique_ptr<EntryEncoder> NumpySource::encoder(const std::function<void()>&) const {
  return std::make_unique<NumpyEncoder>(*this);
}

}  // namespace
}  // namespace io

RecordSourceHandle numpy_source(const std::vector<std::string>& files, const NumpySourceOptions& options) {
  return std::make_shared<io::NumpySource>(files, options);
}

}  // namespace paceline
