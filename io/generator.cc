#include <paceline/generator.h>

#include <paceline/error.h>

#include <string>
#include <utility>

#include "array_memory.h"
#include "example_arrays.h"
#include "pipeline.h"

namespace paceline {
namespace {

// Fills the arrays of batches; write(position, to) writes an example.
class ArrayBatches {
 public:
  ArrayBatches(const std::vector<ExampleArray>& arrays, std::shared_ptr<io::BatchMemory> memory)
      : memory_(std::move(memory)), to_(arrays.size()) {
    for (const ExampleArray& array : arrays) arrays_.emplace_back(array);
  }

  template <class Write>
  io::MadeBatch make(const std::vector<std::int64_t>& positions, const Write& write) {
    const io::StageScope stage(io::Stage::kDecode);
    io::MadeBatch made;
    made.examples = static_cast<std::int64_t>(positions.size());
    for (io::ArrayMemory& array : arrays_) array.allocate(*memory_, made.examples);
    for (std::int64_t i = 0; i < made.examples; ++i) {
      for (std::size_t k = 0; k < arrays_.size(); ++k) to_[k] = arrays_[k].place(i);
      write(positions[static_cast<std::size_t>(i)], to_);
    }
    for (io::ArrayMemory& array : arrays_) made.arrays.push_back(array.take(made.examples));
    return made;
  }

 private:
  std::shared_ptr<io::BatchMemory> memory_;
  std::vector<io::ArrayMemory> arrays_;
  std::vector<void*> to_;
};

class Numbered final : public io::ExampleStore {
 public:
  Numbered(std::vector<ExampleArray> arrays, std::int64_t count, GeneratorIterator::Example example)
      : arrays_(std::move(arrays)), count_(count), example_(std::move(example)) {}
  std::vector<ExampleArray> arrays() const override { return arrays_; }
  std::string identity() const override { return std::to_string(count_); }
  std::unique_ptr<io::BatchMaker> maker(int, const std::shared_ptr<io::BatchMemory>& memory) override {
    return std::make_unique<Maker>(arrays_, example_, memory);
  }

 private:
  class Maker final : public io::BatchMaker {
   public:
    Maker(const std::vector<ExampleArray>& arrays, const GeneratorIterator::Example& example,
          std::shared_ptr<io::BatchMemory> memory)
        : batches_(arrays, std::move(memory)), example_(example) {}
    io::MadeBatch make(const std::vector<std::int64_t>& positions, const io::EpochView& epoch) override {
      return batches_.make(positions, [&](std::int64_t position, std::span<void* const> to) {
        example_(epoch.example(position), epoch.seed(position), to);
      });
    }

   private:
    ArrayBatches batches_;
    const GeneratorIterator::Example& example_;
  };

  const std::vector<ExampleArray> arrays_;
  const std::int64_t count_;
  const GeneratorIterator::Example example_;
};

class Streamed final : public io::ExampleStore {
 public:
  Streamed(std::vector<ExampleArray> arrays, std::int64_t count, GeneratorIterator::Begin begin)
      : arrays_(std::move(arrays)), count_(count), begin_(std::move(begin)) {}
  std::vector<ExampleArray> arrays() const override { return arrays_; }
  std::string identity() const override { return std::to_string(count_); }
  int prepare(Device) override { return 1; }
  std::unique_ptr<io::BatchMaker> maker(int, const std::shared_ptr<io::BatchMemory>& memory) override {
    return std::make_unique<Maker>(*this, memory);
  }

 private:
  // A thread that starts has a new one, so each begins with the first example.
  class Maker final : public io::BatchMaker {
   public:
    Maker(const Streamed& stream, std::shared_ptr<io::BatchMemory> memory)
        : stream_(stream), batches_(stream.arrays_, std::move(memory)) {}
    io::MadeBatch make(const std::vector<std::int64_t>& positions, const io::EpochView& epoch) override {
      if (!next_) next_ = stream_.begin_(epoch.epoch);
      require(next_ != nullptr, "the generator gave no function for epoch ", epoch.epoch);
      return batches_.make(positions, [&](std::int64_t position, std::span<void* const> to) {
        do {  // the examples before it are written over
          require(next_(to), "the generator ended after ", at_, " examples of ", stream_.count_);
        } while (at_++ < position);
      });
    }

   private:
    const Streamed& stream_;
    ArrayBatches batches_;
    GeneratorIterator::Next next_;
    std::int64_t at_ = 0;  // examples that were made
  };

  const std::vector<ExampleArray> arrays_;
  const std::int64_t count_;
  const GeneratorIterator::Begin begin_;
};

std::unique_ptr<io::Pipeline> pipeline_of(std::int64_t count, GeneratorOptions options,
                                          std::shared_ptr<io::ExampleStore> store) {
  io::require_distinct(store->arrays(), "a GeneratorIterator");
  require(count >= 1, "a GeneratorIterator has at least 1 example, not ", count);
  require(options.decode_threads >= 0, "decode_threads cannot be ", options.decode_threads);
  return std::make_unique<io::Pipeline>(
      io::PipelineOptions{.what = "the generator",
                          .starts = {0, count},
                          .order = {.batch = options.batch, .seed = options.shuffle, .partition = Partition::kRecords},
                          .source = std::move(options.source),
                          .threads = options.decode_threads,
                          .prefetch = options.prefetch},
      std::move(store));
}

}  // namespace

GeneratorIterator::GeneratorIterator(std::vector<ExampleArray> arrays, std::int64_t count, Example example,
                                     GeneratorOptions options)
    : PipelineIterator([&] {
        require(example != nullptr, "the function of a GeneratorIterator is empty");
        return pipeline_of(count, std::move(options),
                           std::make_shared<Numbered>(std::move(arrays), count, std::move(example)));
      }()) {}

GeneratorIterator::GeneratorIterator(std::vector<ExampleArray> arrays, std::int64_t count, Begin begin,
                                     GeneratorOptions options)
    : PipelineIterator([&] {
        require(begin != nullptr, "the function of a GeneratorIterator is empty");
        require(!options.shuffle && options.decode_threads <= 1,
                "examples that come one after the other are not shuffled, nor made by ", options.decode_threads,
                " threads; give a function that makes example i instead");
        return pipeline_of(count, std::move(options),
                           std::make_shared<Streamed>(std::move(arrays), count, std::move(begin)));
      }()) {}

}  // namespace paceline
