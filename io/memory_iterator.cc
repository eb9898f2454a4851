#include <paceline/memory_iterator.h>

#include <paceline/crc32c.h>
#include <paceline/error.h>
#include <paceline/mutex.h>

#include <atomic>
#include <cstring>
#include <optional>

#include "batch_memory.h"
#include "epoch_order.h"

namespace paceline {
namespace {

// An array on the host, row-major, in the type that batches have.
NDArray on_host(const NDArray& array) {
  const NDArray here = array.to(Device());
  const bool number = is_floating(here.dtype());
  const NDArray cast = here.cast(number ? DType::kFloat32 : DType::kInt32).contiguous();
  cast.wait();
  return cast;
}

std::size_t row_bytes(const NDArray& array) { return array.bytes() / static_cast<std::size_t>(array.size(0)); }

}  // namespace

struct MemoryIterator::State {
  State(const NDArray& data_in, const NDArray& label_in, MemoryIteratorOptions options_in, bool given)
      : data(on_host(is_floating(data_in.dtype()) ? data_in : data_in.cast(DType::kFloat32))),
        label(on_host(label_in)),
        options(std::move(options_in)),
        has_source(given),
        orders({0, data_in.size(0)},
               {.batch = options.batch,
                .seed = options.shuffle,
                .partition = Partition::kRecords,
                .global_batch = options.global_batch,
                .sampling = std::move(options.sampling)},
               "the arrays"),
        batch(options.global_batch > 0 ? options.global_batch : options.batch) {}

  // The rows at `positions` of `from`, as a new array.
  NDArray gather(const NDArray& from, const std::vector<std::int64_t>& positions) const {
    const std::size_t bytes = row_bytes(from);
    const std::shared_ptr<void> memory = buffers->allocate(positions.size() * bytes);
    char* to = static_cast<char*>(memory.get());
    for (const std::int64_t position : positions) {
      std::memcpy(to, from.data_as<char>() + static_cast<std::size_t>(order->record(position)) * bytes, bytes);
      to += bytes;
    }
    Shape shape = from.shape();
    shape[0] = static_cast<std::int64_t>(positions.size());
    return NDArray::wrap(memory.get(), shape, from.dtype(), memory);
  }

  const NDArray data;
  const NDArray label;
  MemoryIteratorOptions options;
  const bool has_source;
  const io::Order orders;
  std::int64_t batch;    // examples in a full batch
  std::string identity;  // of the examples, once it is known
  Device device;
  std::shared_ptr<io::BatchMemory> buffers = std::make_shared<io::BatchMemory>();
  std::atomic<std::int64_t> epoch = 0;
  std::optional<io::EpochOrder> order;
  io::Batches plan;
  mutable Mutex mutex;
  RangeSet committed PACELINE_GUARDED_BY(mutex);
};

MemoryIterator::MemoryIterator(const NDArray& data, const NDArray& label, MemoryIteratorOptions options) {
  require(data.ndim() >= 1 && label.ndim() >= 1 && data.size() > 0 && data.size(0) == label.size(0),
          "data and label need the same, non-zero number of examples, not shapes ", data.shape(), " and ",
          label.shape());
  const bool has_source = options.source != nullptr;
  if (!has_source) options.source = fixed_source();
  state_ = std::make_unique<State>(data, label, std::move(options), has_source);
}

MemoryIterator::~MemoryIterator() = default;

bool MemoryIterator::has_source() const { return state_->has_source; }

void MemoryIterator::deliver_to(Device device) { state_->device = device; }

void MemoryIterator::start(std::int64_t epoch, const RangeSet& done) {
  State& state = *state_;
  state.buffers->use_for(state.device);
  state.order.emplace(state.orders, epoch);
  const Part part = state.options.source->part(epoch);
  const RangeSet all = state.order->all_but(done);
  const io::Share mine = state.order->share(part);
  const RangeSet left = mine.without(done);
  if (state.options.global_batch > 0 && part.count > 0) state.batch = mine.batch;
  state.plan = io::Batches(left, mine.batch, mine.boundary);
  {
    Lock lock(state.mutex);
    state.epoch = epoch;
    state.committed = done;
  }
  state.options.source->begin(epoch, left, all);
}

bool MemoryIterator::next(Batch& batch) {
  State& state = *state_;
  require(state.order.has_value(), "call start() before next()");
  std::vector<std::int64_t> positions;
  if (!state.plan.next(positions)) return false;
  batch.data = state.gather(state.data, positions);
  batch.label = state.gather(state.label, positions);
  batch.examples = static_cast<std::int64_t>(positions.size());
  batch.epoch = state.epoch;
  batch.positions = io::to_ranges(positions);
  batch.note.clear();
  return true;
}

bool MemoryIterator::take_over() {
  State& state = *state_;
  require(state.order.has_value(), "call start() before take_over()");
  const RangeSet left = state.options.source->take_over(state.epoch);
  if (left.empty()) return false;
  state.plan = state.order->taken_over(left);
  return true;
}

std::int64_t MemoryIterator::size() const { return state_->orders.size(); }

std::string MemoryIterator::order() const {
  State& state = *state_;
  if (state.identity.empty()) {
    std::uint32_t sum = 0;
    for (const NDArray* array : {&state.data, &state.label})
      sum = crc32c({array->data_as<char>(), array->bytes()}, sum);
    state.identity = io::checksum_text(sum);
  }
  return state.orders.text() + " data=" + state.identity;
}

Shape MemoryIterator::batch_shape() const {
  Shape shape = state_->data.shape();
  shape[0] = state_->batch;
  return shape;
}

void MemoryIterator::commit(const Batch& batch) {
  {
    Lock lock(state_->mutex);
    if (batch.epoch == state_->epoch)
      for (const Range& range : batch.positions) state_->committed.add(range);
  }
  state_->options.source->commit(batch.epoch, batch.positions, batch.note);
}

RangeSet MemoryIterator::committed() const {
  Lock lock(state_->mutex);
  return state_->committed;
}

}  // namespace paceline
