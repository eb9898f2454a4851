#include <paceline/decoder.h>

#include <paceline/error.h>
#include <paceline/image.h>
#include <paceline/manifest.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "class_label.h"
#include "csv_decoder.h"
#include "libsvm_row.h"
#include "permutation.h"
#include "safetensors.h"

namespace paceline::decoders {
namespace {

using Body = std::function<void(std::string_view record, std::uint64_t seed, std::span<void* const> to)>;

class FunctionDecoder final : public Decoder {
 public:
  FunctionDecoder(std::vector<ExampleArray> arrays, Body body) : arrays_(std::move(arrays)), body_(std::move(body)) {}
  std::vector<ExampleArray> arrays() const override { return arrays_; }
  void decode(std::string_view record, std::uint64_t seed, std::span<void* const> to) override {
    body_(record, seed, to);
  }

 private:
  const std::vector<ExampleArray> arrays_;
  const Body body_;
};

ExampleArray label_array(bool class_labels, std::int64_t count = 1) {
  if (class_labels && count == 1) return {"label", {}, DType::kInt32};
  return {"label", count == 1 ? Shape{} : Shape{count}, DType::kFloat32};
}

void write_label(float value, bool class_labels, void* to) {
  if (class_labels)
    *static_cast<std::int32_t*>(to) = io::class_number(value, 0);
  else
    *static_cast<float*>(to) = value;
}

std::int32_t token_at(std::string_view record, std::int64_t place, int bytes) {
  std::uint32_t token = 0;
  std::memcpy(&token, record.data() + place * bytes, static_cast<std::size_t>(bytes));
  return static_cast<std::int32_t>(token);
}

}  // namespace

DecoderFactory function(std::vector<ExampleArray> arrays, Body body) {
  require(body != nullptr, "[decoders::function] the function is empty");
  return
      [arrays = std::move(arrays), body = std::move(body)] { return std::make_unique<FunctionDecoder>(arrays, body); };
}

DecoderFactory tensor(TensorOptions options) {
  require(options.labels >= 0, "[decoders::tensor] labels is ", options.labels, ", expected none negative");
  const ExampleArray data{"data", options.shape, options.dtype};
  const std::size_t bytes = io::bytes_of(data);
  const auto copy = [=](std::string_view values, void* to) {
    if (values.size() != bytes) throw Corrupt(str("its tensor has ", values.size(), " bytes, expected ", bytes));
    std::memcpy(to, values.data(), bytes);
  };
  if (options.labels == 0) {
    return function({data},
                    [=](std::string_view record, std::uint64_t, std::span<void* const> to) { copy(record, to[0]); });
  }
  const bool classes = options.class_labels && options.labels == 1;
  return function({data, label_array(options.class_labels, options.labels)},
                  [=](std::string_view record, std::uint64_t, std::span<void* const> to) {
                    const ImageRecord parts(record);
                    if (parts.label_count() != options.labels)
                      throw Corrupt(str("it has ", parts.label_count(), " labels, expected ", options.labels));
                    copy(parts.image(), to[0]);
                    if (classes) return write_label(parts.label(0), true, to[1]);
                    for (int i = 0; i < options.labels; ++i) static_cast<float*>(to[1])[i] = parts.label(i);
                  });
}

DecoderFactory tensors(const std::vector<ExampleArray>& arrays) {
  require(!arrays.empty(), "[decoders::tensors] names no arrays");
  return function(arrays, [arrays](std::string_view record, std::uint64_t, std::span<void* const> to) {
    io::read_tensors(record, arrays, to);
  });
}

DecoderFactory tokens(TokenOptions options) {
  require(options.window >= 1, "[decoders::tokens] window is ", options.window, ", expected at least 1");
  require(options.bytes == 1 || options.bytes == 2 || options.bytes == 4, "[decoders::tokens] bytes is ", options.bytes,
          ", expected 1, 2 or 4");
  const Shape shape{options.window};
  return function(
      {{"data", shape, DType::kInt32}, {"label", shape, DType::kInt32}},
      [=](std::string_view record, std::uint64_t seed, std::span<void* const> to) {
        const auto width = static_cast<std::size_t>(options.bytes);
        if (record.size() % width != 0 || record.size() < 2 * width)
          throw Corrupt(str("its ", record.size(), " bytes are not two tokens or more of ", width, " bytes"));
        const auto pairs = static_cast<std::int64_t>(record.size() / width) - 1;
        const std::int64_t places = pairs - options.window + 1;
        const std::int64_t begin =
            options.random && places > 1
                ? static_cast<std::int64_t>(io::Random(seed).below(static_cast<std::uint64_t>(places)))
                : 0;
        auto* const data = static_cast<std::int32_t*>(to[0]);
        auto* const label = static_cast<std::int32_t*>(to[1]);
        for (std::int64_t i = 0; i < options.window; ++i) {
          const bool inside = begin + i < pairs;
          data[i] = inside ? token_at(record, begin + i, options.bytes) : options.padding;
          label[i] = inside ? token_at(record, begin + i + 1, options.bytes) : options.no_label;
        }
      });
}

DecoderFactory text(std::int64_t window, bool random) {
  return tokens({.window = window, .bytes = 1, .random = random});
}

DecoderFactory csv_row(CsvOptions options) {
  require(options.columns >= 1, "[decoders::csv_row] columns is ", options.columns, ", expected at least 1");
  require(options.label >= -1 && options.label <= options.columns, "[decoders::csv_row] label is ", options.label,
          ", expected -1 to ", options.columns);
  const bool labelled = options.label >= 0;
  std::vector<CsvArray> arrays{{.name = "data"}};
  if (labelled)
    arrays.push_back({.name = "label",
                      .columns = {std::to_string(options.label)},
                      .dtype = options.class_labels ? DType::kInt32 : DType::kFloat32});
  const auto layout = std::make_shared<io::CsvLayout>(std::move(arrays), std::vector<std::string>(),
                                                      static_cast<std::size_t>(options.columns + labelled),
                                                      io::CsvLayout::Format{.quote = 0, .missing = false});
  if (options.class_labels) layout->require_class_labels();
  return io::csv_decoder(layout);
}

DecoderFactory libsvm_row(LibsvmRowOptions options) {
  require(options.features >= 1, "[decoders::libsvm_row] features is ", options.features, ", expected at least 1");
  return function({{"data", {options.features}}, label_array(options.class_labels)},
                  [=](std::string_view record, std::uint64_t, std::span<void* const> to) {
                    auto* const data = static_cast<float*>(to[0]);
                    std::fill_n(data, options.features, 0.0f);
                    const float label =
                        io::read_libsvm_row(record, options.from_zero, options.features,
                                            [&](std::int64_t column, float value) { data[column] += value; });
                    write_label(label, options.class_labels, to[1]);
                  });
}

DecoderFactory named_in(const Manifest& manifest) {
  const std::string& name = manifest.decoder.name;
  const auto& options = manifest.decoder.options;
  const auto& arrays = manifest.decoder.arrays;
  require(!name.empty(), "the manifest names no decoder");
  const auto option = [&](const char* which, std::int64_t otherwise) {
    const auto found = options.find(which);
    return found == options.end() ? otherwise : found->second;
  };
  const bool classes = option("class_labels", 1) != 0;
  if (name == "tensor" && arrays.size() == 1) {
    return tensor({.shape = arrays[0].shape,
                   .dtype = arrays[0].dtype,
                   .labels = static_cast<int>(option("labels", 1)),
                   .class_labels = classes});
  }
  if (name == "tensors") return tensors(arrays);
  if (name == "tokens") {
    return tokens({.window = option("window", 0),
                   .bytes = static_cast<int>(option("bytes", 4)),
                   .random = option("random", 0) != 0,
                   .padding = static_cast<std::int32_t>(option("padding", 0)),
                   .no_label = static_cast<std::int32_t>(option("no_label", -1))});
  }
  if (name == "text") return text(option("window", 0), option("random", 0) != 0);
  if (name == "csv_row")
    return csv_row({.columns = option("columns", 0), .label = option("label", 0), .class_labels = classes});
  if (name == "libsvm_row") {
    return libsvm_row(
        {.features = option("features", 0), .from_zero = option("from_zero", 0) != 0, .class_labels = classes});
  }
  throw InvalidArgument(str("the manifest names the decoder ", manifest.decoder.text(),
                            ", which is not known here; known: tensor tensors tokens text csv_row libsvm_row"));
}

}  // namespace paceline::decoders
