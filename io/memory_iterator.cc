#include <paceline/memory_iterator.h>

#include <paceline/crc32c.h>
#include <paceline/error.h>

#include <cstring>
#include <utility>
#include <vector>

#include "array_memory.h"
#include "example_arrays.h"
#include "pipeline.h"

namespace paceline {
namespace {

ExampleArray example_of(const std::string& name, const NDArray& array) {
  return {name, Shape(std::span(array.shape().begin() + 1, array.shape().end())), array.dtype()};
}

class Rows final : public io::ExampleStore {
 public:
  explicit Rows(NamedArrays arrays) : arrays_(std::move(arrays)) {}

  std::vector<ExampleArray> arrays() const override {
    std::vector<ExampleArray> examples;
    for (const auto& [name, array] : arrays_) examples.push_back(example_of(name, array));
    return examples;
  }
  std::unique_ptr<io::BatchMaker> maker(int, const std::shared_ptr<io::BatchMemory>& memory) override {
    return std::make_unique<Maker>(arrays_, memory);
  }
  std::string identity() const override {
    std::uint32_t sum = 0;
    for (const auto& [name, array] : arrays_) sum = crc32c({array.data_as<char>(), array.bytes()}, sum);
    return io::checksum_text(sum);
  }

 private:
  class Maker final : public io::BatchMaker {
   public:
    Maker(const NamedArrays& arrays, std::shared_ptr<io::BatchMemory> memory)
        : arrays_(arrays), memory_(std::move(memory)) {}

    io::MadeBatch make(const std::vector<std::int64_t>& positions, const io::EpochView& epoch) override {
      const io::StageScope stage(io::Stage::kCopy);
      io::MadeBatch made;
      made.examples = static_cast<std::int64_t>(positions.size());
      for (const auto& [name, array] : arrays_) {
        io::ArrayMemory rows(example_of(name, array));
        rows.allocate(*memory_, made.examples);
        for (std::int64_t i = 0; i < made.examples; ++i) {
          const auto row = static_cast<std::size_t>(epoch.example(positions[static_cast<std::size_t>(i)]));
          std::memcpy(rows.place(i), array.data_as<char>() + row * rows.bytes(), rows.bytes());
        }
        made.arrays.push_back(rows.take(made.examples));
      }
      return made;
    }

   private:
    const NamedArrays& arrays_;
    std::shared_ptr<io::BatchMemory> memory_;
  };

  const NamedArrays arrays_;  // on the host, row-major
};

NDArray number_array(const NDArray& array, bool always_floating) {
  const bool floating = always_floating || is_floating(array.dtype());
  return array.cast(floating ? DType::kFloat32 : DType::kInt32);
}

NamedArrays pair_of(const NDArray& data, const NDArray& label) {
  require(data.ndim() >= 1 && label.ndim() >= 1 && data.size() > 0 && data.size(0) == label.size(0),
          "data and label need the same, non-zero number of examples, not shapes ", data.shape(), " and ",
          label.shape());
  return {{"data", number_array(data, true)}, {"label", number_array(label, false)}};
}

// What is written to the arrays later is not delivered.
NamedArrays copies_of(const NamedArrays& arrays) {
  NamedArrays copies;
  for (const auto& [name, array] : arrays)
    copies.emplace_back(name, array.is_none() || array.device() != Device() ? array : array.clone());
  return copies;
}

std::unique_ptr<io::Pipeline> pipeline_of(const NamedArrays& arrays, MemoryIteratorOptions options) {
  require(!arrays.empty(), "a MemoryIterator needs an array");
  require(options.copy_threads >= 0, "copy_threads cannot be ", options.copy_threads);
  const auto& [first_name, first] = arrays.front();
  NamedArrays here;
  for (const auto& [name, array] : arrays) {
    require(!array.is_none() && array.ndim() >= 1 && array.size() > 0, "the array '", name, "' has the shape ",
            array.shape(), ", expected one with examples");
    require(array.size(0) == first.size(0), "the array '", name, "' has ", array.size(0), " rows and '", first_name,
            "' has ", first.size(0), ", expected as many");
    here.emplace_back(name, array.to(Device()).contiguous());
  }
  for (const auto& [name, array] : here) array.wait();
  const std::int64_t count = first.size(0);
  auto rows = std::make_shared<Rows>(std::move(here));
  io::require_distinct(rows->arrays(), "a MemoryIterator");
  return std::make_unique<io::Pipeline>(
      io::PipelineOptions{.what = "the arrays",
                          .starts = {0, count},
                          .order = {.batch = options.batch,
                                    .seed = options.shuffle,
                                    .partition = Partition::kRecords,
                                    .global_batch = options.global_batch,
                                    .sampling = std::move(options.sampling)},
                          .source = std::move(options.source),
                          .threads = options.copy_threads ? options.copy_threads : io::PipelineOptions::kInNext},
      std::move(rows));
}

}  // namespace

MemoryIterator::MemoryIterator(const NDArray& data, const NDArray& label, MemoryIteratorOptions options)
    : PipelineIterator(pipeline_of(pair_of(data, label), std::move(options))) {}

MemoryIterator::MemoryIterator(const NamedArrays& arrays, MemoryIteratorOptions options)
    : PipelineIterator(pipeline_of(copies_of(arrays), std::move(options))) {}

}  // namespace paceline
