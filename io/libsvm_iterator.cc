#include <paceline/error.h>
#include <paceline/libsvm.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "array_memory.h"
#include "class_label.h"
#include "libsvm_row.h"
#include "row_store.h"

namespace paceline {
namespace {

constexpr const char *kStarts = "starts", *kColumns = "columns", *kValues = "values";

// Batches of rows as they are in the file.
class SparseRowStore final : public io::ExampleStore {
 public:
  SparseRowStore(std::shared_ptr<const io::RowFile> file, LibsvmIteratorOptions options)
      : file_(std::move(file)), options_(std::move(options)) {}

  std::vector<ExampleArray> arrays() const override { return {label()}; }
  std::unique_ptr<io::BatchMaker> maker(int, const std::shared_ptr<io::BatchMemory>& memory) override;
  std::string identity() const override { return file_->identity(); }
  void ended() override { damage_.warn(file_->path()); }
  const io::DamageLog& damage() const { return damage_; }

 private:
  class Maker;

  ExampleArray label() const { return {"label", {}, options_.class_labels ? DType::kInt32 : DType::kFloat32}; }

  const std::shared_ptr<const io::RowFile> file_;
  const LibsvmIteratorOptions options_;
  io::DamageLog damage_;
};

class SparseRowStore::Maker final : public io::BatchMaker {
 public:
  Maker(SparseRowStore& store, std::shared_ptr<io::BatchMemory> memory) : store_(store), memory_(std::move(memory)) {}

  io::MadeBatch make(const std::vector<std::int64_t>& positions, const io::EpochView& epoch) override {
    const io::StageScope stage(io::Stage::kDecode);
    io::MadeBatch made;
    columns_.clear();
    values_.clear();
    rows_.assign(positions.size(), {});
    const std::vector<std::int64_t> numbers = io::examples_at(positions, epoch);
    made.bytes = store_.file_->read(numbers, [&](std::size_t place, std::uint64_t offset, std::string_view text) {
      Row& row = rows_[place];
      row.begin = columns_.size();
      try {
        row.label = io::read_libsvm_row(text, store_.options_.from_zero, store_.options_.features,
                                        [&](std::int64_t column, float value) {
                                          columns_.push_back(column);
                                          values_.push_back(value);
                                        });
        if (store_.options_.class_labels) io::class_number(row.label, 0);
      } catch (const Corrupt& error) {
        if (store_.options_.on_damage == OnDamage::kFail)
          throw Corrupt(str(store_.file_->place_text(offset), ": ", error.what()));
        store_.damage_.add({store_.file_->path(), offset, numbers[place], error.what()});
        columns_.resize(row.begin);
        values_.resize(row.begin);
        row.good = false;
      }
      row.end = columns_.size();
    });
    std::erase_if(rows_, [](const Row& row) { return !row.good; });
    made.examples = static_cast<std::int64_t>(rows_.size());
    if (made.examples > 0) made.arrays = gather();
    return made;
  }

 private:
  struct Row {
    std::size_t begin = 0, end = 0;  // of its elements, which stand in the order of the file
    float label = 0;
    bool good = true;
  };

  // The memory of an array of this length, and its first element.
  template <class T>
  std::pair<io::ArrayMemory, T*> vector_of(const char* name, std::size_t length) {
    io::ArrayMemory memory({name, {}, dtype_of<T>()});
    memory.allocate(*memory_, static_cast<std::int64_t>(length));
    return {memory, static_cast<T*>(memory.place(0))};
  }

  NamedArrays gather() {
    const io::StageScope stage(io::Stage::kCopy);
    const auto examples = static_cast<std::int64_t>(rows_.size());
    // A row that is damaged has no elements here.
    auto [starts, start] = vector_of<std::int64_t>(kStarts, rows_.size() + 1);
    auto [columns, column] = vector_of<std::int64_t>(kColumns, columns_.size());
    auto [values, value] = vector_of<float>(kValues, values_.size());
    io::ArrayMemory labels(store_.label());
    labels.allocate(*memory_, examples);
    *start = 0;
    for (std::size_t i = 0; i < rows_.size(); ++i) {
      const Row& row = rows_[i];
      const std::size_t count = row.end - row.begin;
      column = std::copy_n(columns_.begin() + static_cast<std::ptrdiff_t>(row.begin), count, column);
      value = std::copy_n(values_.begin() + static_cast<std::ptrdiff_t>(row.begin), count, value);
      start[i + 1] = start[i] + static_cast<std::int64_t>(count);
      void* const label = labels.place(static_cast<std::int64_t>(i));
      if (store_.options_.class_labels)
        *static_cast<std::int32_t*>(label) = static_cast<std::int32_t>(row.label);
      else
        *static_cast<float*>(label) = row.label;
    }
    const auto elements = static_cast<std::int64_t>(columns_.size());
    return {labels.take(examples), starts.take(examples + 1), columns.take(elements), values.take(elements)};
  }

  SparseRowStore& store_;
  std::shared_ptr<io::BatchMemory> memory_;
  std::vector<std::int64_t> columns_;
  std::vector<float> values_;
  std::vector<Row> rows_;
};

std::unique_ptr<io::BatchMaker> SparseRowStore::maker(int, const std::shared_ptr<io::BatchMemory>& memory) {
  return std::make_unique<Maker>(*this, memory);
}

}  // namespace

struct LibsvmIterator::State {
  State(const std::string& path, const LibsvmIteratorOptions& options) : features(options.features) {
    require(features >= 1, "[LibsvmIterator] features is ", features,
            ", expected the number of columns, for instance 123 for a9a");
    file = std::make_shared<io::RowFile>(path, io::RowFormat{.comment = '#'}, false, options.decode_threads);
    require(file->rows() > 0, file->path(), " holds no examples");
    if (options.sparse) {
      sparse = std::make_shared<SparseRowStore>(file, options);
      return;
    }
    dense = std::make_shared<io::RowStore>(
        file,
        decoders::libsvm_row(
            {.features = features, .from_zero = options.from_zero, .class_labels = options.class_labels}),
        options.on_damage);
  }

  std::shared_ptr<io::ExampleStore> store() const {
    if (sparse) return sparse;
    return dense;
  }
  const io::DamageLog& damage() const { return sparse ? sparse->damage() : dense->damage(); }

  std::int64_t features;
  std::shared_ptr<const io::RowFile> file;
  std::shared_ptr<io::RowStore> dense;  // one of the two
  std::shared_ptr<SparseRowStore> sparse;
};

LibsvmIterator::LibsvmIterator(const std::string& path, const LibsvmIteratorOptions& options)
    : LibsvmIterator(std::make_shared<State>(path, options), options) {}

LibsvmIterator::LibsvmIterator(const std::shared_ptr<State>& state, const LibsvmIteratorOptions& options)
    : PipelineIterator(io::row_pipeline(*state->file, state->store(), options)), state_(state) {}

LibsvmIterator::~LibsvmIterator() = default;

SparseRows LibsvmIterator::sparse_rows(const Batch& batch) const {
  return {batch.array(kStarts), batch.array(kColumns), batch.array(kValues), {batch.examples, state_->features}};
}

std::vector<RecordDamage> LibsvmIterator::damage() const { return state_->damage().listed(); }
std::int64_t LibsvmIterator::damaged() const { return state_->damage().count(); }

}  // namespace paceline
