// One pipeline per epoch: decode threads take the next batch of the plan in turn, each fills one whole batch, next()
// hands them out in the order of the plan. The window of batches begun and not yet handed out is the bound.

#include <paceline/record_loader.h>

#include <paceline/cores.h>
#include <paceline/detail/start_thread.h>
#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/manifest.h>
#include <paceline/mutex.h>

#include <algorithm>
#include <atomic>
#include <deque>
#include <exception>
#include <map>
#include <set>
#include <thread>

#include "augment/mixing.h"
#include "batch_decoder.h"
#include "epoch_order.h"
#include "example_decoder.h"
#include "mixture.h"
#include "open_shards.h"

namespace paceline {
namespace {

constexpr std::size_t kMostListed = 1000;

// The shards that a batch uses stay open until it is made.
using HeldShards = std::map<std::size_t, std::shared_ptr<const RecordFile>>;

struct Job {
  std::vector<std::int64_t> positions;
  std::int64_t examples = 0;
  NamedArrays arrays;
  std::exception_ptr error;
  bool ready = false;
};

void check(const std::vector<ExampleArray>& arrays) {
  require(!arrays.empty(), "the decoder makes no arrays");
  std::set<std::string> names;
  for (const ExampleArray& array : arrays) {
    require(!array.name.empty() && names.insert(array.name).second, "the decoder makes two arrays '", array.name,
            "', or one without a name");
    require(array.shape.size() > 0, "the decoder makes an array '", array.name, "' of shape ", array.shape,
            ", which has no elements");
  }
}

}  // namespace

class RecordLoader::Impl {
 public:
  Impl(io::Mixture data, RecordLoaderOptions options);
  ~Impl() { stop(); }

  bool has_source() const { return has_source_; }
  void deliver_to(Device device) { device_ = device; }
  void start(std::int64_t epoch, const RangeSet& done);
  bool next(Batch& batch);
  bool take_over();
  void commit(const Batch& batch) { commit(batch.epoch, batch.positions, batch.note); }

  std::int64_t size() const { return orders_.size(); }
  std::string order() const { return orders_.text() + " data=" + identity_; }
  Shape batch_shape() const;
  RangeSet committed() const {
    Lock lock(mutex_);
    return committed_;
  }
  const Manifest& manifest() const { return manifest_; }
  std::vector<std::string> open_shards() const { return shards_.paths(); }
  std::vector<RecordDamage> damage() const {
    Lock lock(mutex_);
    return damage_;
  }
  std::int64_t damaged() const {
    Lock lock(mutex_);
    return damaged_;
  }

 private:
  void commit(std::int64_t epoch, const std::vector<Range>& positions, const std::string& note = {});
  void run(io::Batches plan);
  void stop();
  void choose_decoders();
  void work(io::DeviceDecoder* device);
  void fill(Job& job, io::BatchDecoder& decoder);
  void add(std::int64_t position, HeldShards& held, std::string& record, io::BatchDecoder& decoder);
  void report(RecordDamage damage);
  void warn_of_damage();
  bool take(std::shared_ptr<Job>& job);

  const std::string path_;
  const Manifest manifest_;
  const std::string identity_;  // of the records
  RecordLoaderOptions options_;
  bool has_source_ = false;
  Device device_;
  const std::vector<std::int64_t> starts_;  // first record of each shard, and the number of records
  const io::Order orders_;
  std::optional<io::ExampleFormat> images_;  // none: a decoder of the user's
  std::vector<ExampleArray> arrays_;
  std::shared_ptr<io::BatchMemory> memory_ = std::make_shared<io::BatchMemory>();
  std::atomic<std::int64_t> epoch_ = 0;
  std::optional<io::EpochOrder> order_;
  std::int64_t batch_;  // examples in a full batch
  std::exception_ptr failure_;
  std::optional<Device> decoders_for_;
  std::vector<std::unique_ptr<io::DeviceDecoder>> decoders_;  // one for each thread; none: on the CPU
  std::vector<std::thread> threads_;
  io::OpenShards shards_;

  mutable Mutex mutex_;
  CondVar changed_;
  io::Batches plan_ PACELINE_GUARDED_BY(mutex_);
  bool planned_all_ PACELINE_GUARDED_BY(mutex_) = true;
  bool stopping_ PACELINE_GUARDED_BY(mutex_) = false;
  std::deque<std::shared_ptr<Job>> window_ PACELINE_GUARDED_BY(mutex_);
  RangeSet committed_ PACELINE_GUARDED_BY(mutex_);
  std::int64_t damaged_ PACELINE_GUARDED_BY(mutex_) = 0;
  std::int64_t warned_ PACELINE_GUARDED_BY(mutex_) = 0;  // of so many damaged ones
  std::vector<RecordDamage> damage_ PACELINE_GUARDED_BY(mutex_);
};

RecordLoader::Impl::Impl(io::Mixture data, RecordLoaderOptions options)
    : path_(std::move(data.path)),
      manifest_(std::move(data.manifest)),
      identity_(io::identity_of(manifest_)),
      options_(std::move(options)),
      starts_(io::starts_of(manifest_)),
      orders_(starts_,
              {.batch = options_.batch,
               .seed = options_.shuffle,
               .partition = options_.partition,
               .window = options_.window,
               .virtual_nodes = options_.virtual_nodes,
               .global_batch = options_.global_batch,
               .sampling = std::move(options_.sampling),
               .mixture = std::move(data.parts)},
              path_),
      batch_(options_.global_batch > 0 ? options_.global_batch : options_.batch),
      shards_(manifest_, path_, options_.on_damage == OnDamage::kFail) {
  require(options_.prefetch >= 1, "prefetch is at least 1 batch, not ", options_.prefetch);
  require(options_.decode_threads >= 0, "decode_threads cannot be ", options_.decode_threads);
  if (options_.decode_threads == 0) options_.decode_threads = std::max(1, core_budget() / 2);
  options_.prefetch = std::max(options_.prefetch, options_.decode_threads);
  has_source_ = options_.source != nullptr;
  if (!has_source_) options_.source = fixed_source();
  if (!options_.decoder && manifest_.payload != "image" && !manifest_.decoder.name.empty())
    options_.decoder = decoders::named_in(manifest_);
  if (!options_.decoder) {
    images_ = io::image_format(manifest_, path_, options_.image);
    options_.decoder = [format = *images_] { return std::make_unique<io::ExampleDecoder>(format); };
  }
  arrays_ = options_.decoder()->arrays();
  check(arrays_);
}

Shape RecordLoader::Impl::batch_shape() const {
  for (const ExampleArray& array : arrays_) {
    if (array.name != "data") continue;
    std::vector<std::int64_t> sizes{batch_};
    sizes.insert(sizes.end(), array.shape.begin(), array.shape.end());
    return Shape(std::span<const std::int64_t>(sizes));
  }
  return {};
}

void RecordLoader::Impl::start(std::int64_t epoch, const RangeSet& done) {
  stop();
  choose_decoders();
  memory_->use_for(device_);
  failure_ = nullptr;
  const Part part = options_.source->part(epoch);
  order_.emplace(orders_, epoch);
  const RangeSet all = order_->all_but(done);
  const io::Share mine = order_->share(part);
  const RangeSet left = mine.without(done);
  if (options_.global_batch > 0 && part.count > 0) batch_ = mine.batch;
  shards_.begin(order_->shards(left), mine.spread, options_.decode_threads);
  options_.source->begin(epoch, left, all);
  {
    Lock lock(mutex_);
    epoch_ = epoch;
    committed_ = done;
  }
  run(io::Batches(left, mine.batch, mine.boundary));
}

void RecordLoader::Impl::choose_decoders() {
  if (decoders_for_ == device_) return;
  decoders_for_.reset();
  decoders_.clear();
  const bool on_cuda = device_.kind == DeviceKind::kCuda;
  const bool must = options_.decoding == Decoding::kDevice;
  const bool may_have_jpegs =
      images_ && images_->dtype == DType::kFloat32 && manifest_.encoding != "raw" && manifest_.encoding != "png";
  try {
    if (must && (!images_ || images_->dtype != DType::kFloat32))
      throw NotAvailable("only images that become float32 are");
    if (must && !on_cuda) throw NotAvailable("it is no CUDA device, which deliver_to(), or a Trainer on one, names");
    const bool wanted = must || (options_.decoding == Decoding::kAuto && on_cuda && may_have_jpegs);
    if (wanted && !images_->pipeline->host_only().empty())
      throw NotAvailable(
          str("the step '", images_->pipeline->host_only(), "' is done on the CPU alone where it stands"));
    if (wanted && images_->reduced) throw NotAvailable("images are decoded smaller on the CPU alone");
    if (wanted && images_->boxes) throw NotAvailable("boxes are moved on the CPU alone");
    if (wanted) decoders_ = io::make_device_decoders(device_, *images_, options_.decode_threads);
  } catch (const NotAvailable& error) {
    if (must)
      throw NotAvailable(str("images cannot be decoded on ", device_.name(), ": ", error.what(),
                             "; or choose the decoding 'auto' or 'cpu'"));
    LOG(INFO) << "images for " << device_.name() << " are decoded on the CPU: " << error.what();
  }
  decoders_for_ = device_;
}

void RecordLoader::Impl::run(io::Batches plan) {
  {
    Lock lock(mutex_);
    plan_ = std::move(plan);
    planned_all_ = false;
    stopping_ = false;
  }
  try {
    for (std::size_t i = 0; i < static_cast<std::size_t>(options_.decode_threads); ++i) {
      io::DeviceDecoder* const device = decoders_.empty() ? nullptr : decoders_[i].get();
      threads_.push_back(detail::start_thread("decoding records", [this, device] { work(device); }));
    }
  } catch (...) {
    stop();
    throw;
  }
}

void RecordLoader::Impl::stop() {
  {
    Lock lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
  Lock lock(mutex_);
  window_.clear();
  planned_all_ = true;
}

void RecordLoader::Impl::work(io::DeviceDecoder* device) {
  name_thread("decode");
  become_single_threaded();
  std::unique_ptr<io::BatchDecoder> decoder;
  for (;;) {
    auto job = std::make_shared<Job>();
    {
      Lock lock(mutex_);
      changed_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS {
        return stopping_ || planned_all_ || window_.size() < static_cast<std::size_t>(options_.prefetch);
      });
      if (stopping_ || planned_all_) return;
      if (!plan_.next(job->positions)) {
        planned_all_ = true;
        changed_.notify_all();
        return;
      }
      window_.push_back(job);
    }
    try {
      if (!decoder) {
        decoder = device ? io::on_device(*device, *images_, memory_) : io::on_host(options_.decoder(), memory_);
        if (images_ && !images_->pipeline->mixing().empty())
          decoder = io::mixing(std::move(decoder), *images_, memory_);
      }
      fill(*job, *decoder);
    } catch (...) {
      job->error = std::current_exception();
    }
    Lock lock(mutex_);
    job->ready = true;
    changed_.notify_all();
  }
}

void RecordLoader::Impl::fill(Job& job, io::BatchDecoder& decoder) {
  std::string record;
  HeldShards held;
  decoder.begin(static_cast<std::int64_t>(job.positions.size()));
  for (const std::int64_t position : job.positions) add(position, held, record, decoder);
  job.examples = decoder.examples();
  if (job.examples > 0) job.arrays = decoder.finish();
}

// Reads and decodes what is at `position`.
void RecordLoader::Impl::add(std::int64_t position, HeldShards& held, std::string& record, io::BatchDecoder& decoder) {
  const std::int64_t number = order_->record(position);
  const std::size_t shard = io::range_of(starts_, number);
  std::shared_ptr<const RecordFile>& holder = held[shard];
  if (!holder) holder = shards_.get(shard);
  const RecordFile& file = *holder;
  const std::int64_t place = number - starts_[shard];
  const auto place_text = [&] { return str(file.path(), ": record ", place, " at offset ", file.offset(place), ": "); };
  RecordDamage damage;
  if (file.try_read(place, record, damage)) {
    try {
      const std::uint64_t seed = io::mix(options_.shuffle.value_or(0), static_cast<std::uint64_t>(epoch_.load()));
      decoder.add(record, io::mix(seed, static_cast<std::uint64_t>(position)));
      return;
    } catch (const Corrupt& error) {
      damage = {file.path(), file.offset(place), place, error.what()};
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(place_text() + error.what());
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw Error(str(place_text(), "the decoder failed: ", error.what()));
    }
  }
  if (options_.on_damage == OnDamage::kFail) {
    throw Corrupt(
        str(damage.text(), "; --skip_bad leaves such records out (OnDamage::kSkip in a program of your own)"));
  }
  report(std::move(damage));
}

void RecordLoader::Impl::report(RecordDamage damage) {
  Lock lock(mutex_);
  ++damaged_;
  if (damage_.size() < kMostListed) damage_.push_back(std::move(damage));
}

void RecordLoader::Impl::warn_of_damage() {
  Lock lock(mutex_);
  if (damaged_ == warned_) return;
  LOG(WARNING) << path_ << ": " << damaged_ - warned_ << " damaged records were left out of this epoch; the first that "
               << "was left out: " << damage_.front().text();
  warned_ = damaged_;
}

bool RecordLoader::Impl::take(std::shared_ptr<Job>& job) {
  Lock lock(mutex_);
  changed_.wait(mutex_, [this]() PACELINE_NO_THREAD_SAFETY_ANALYSIS {
    return window_.empty() ? planned_all_ : window_.front()->ready;
  });
  if (window_.empty()) return false;
  job = std::move(window_.front());
  window_.pop_front();
  changed_.notify_all();
  return true;
}

bool RecordLoader::Impl::next(Batch& batch) {
  if (failure_) std::rethrow_exception(failure_);
  require(order_.has_value(), "call start() before next()");
  try {
    for (;;) {
      std::shared_ptr<Job> job;
      if (!take(job)) {
        warn_of_damage();
        return false;
      }
      if (job->error) std::rethrow_exception(job->error);
      std::vector<Range> ranges = io::to_ranges(job->positions);
      if (job->examples == 0) {
        // Every record of it was damaged: there is nothing to learn, and nobody else shall try.
        commit(epoch_, ranges);
        continue;
      }
      batch.data = batch.label = {};
      batch.others.clear();
      for (auto& [name, array] : job->arrays) {
        if (name == "data")
          batch.data = std::move(array);
        else if (name == "label")
          batch.label = std::move(array);
        else
          batch.others.emplace_back(name, std::move(array));
      }
      batch.examples = job->examples;
      batch.epoch = epoch_;
      batch.positions = std::move(ranges);
      batch.note.clear();
      return true;
    }
  } catch (...) {
    failure_ = std::current_exception();
    throw;
  }
}

bool RecordLoader::Impl::take_over() {
  require(order_.has_value(), "call start() before take_over()");
  const RangeSet left = options_.source->take_over(epoch_);
  if (left.empty()) return false;
  stop();
  shards_.begin(order_->shards(left), order_->spread(), options_.decode_threads);
  run(order_->taken_over(left));
  return true;
}

void RecordLoader::Impl::commit(std::int64_t epoch, const std::vector<Range>& positions, const std::string& note) {
  {
    Lock lock(mutex_);
    if (epoch == epoch_)
      for (const Range& range : positions) committed_.add(range);
  }
  options_.source->commit(epoch, positions, note);
}

Decoding parse_decoding(std::string_view name) {
  if (name == "auto") return Decoding::kAuto;
  if (name == "cpu") return Decoding::kCpu;
  if (name == "device") return Decoding::kDevice;
  throw InvalidArgument(str("unknown decoding '", name, "'; known: auto cpu device"));
}

RecordLoader::RecordLoader(const std::string& manifest, RecordLoaderOptions options)
    : impl_(std::make_unique<Impl>(io::Mixture{Manifest::load(manifest), manifest}, std::move(options))) {}
RecordLoader::RecordLoader(const std::vector<MixedDataSet>& sets, RecordLoaderOptions options)
    : impl_(std::make_unique<Impl>(io::mixture_of(sets), std::move(options))) {}
RecordLoader::~RecordLoader() = default;
bool RecordLoader::has_source() const { return impl_->has_source(); }
void RecordLoader::deliver_to(Device device) { impl_->deliver_to(device); }
void RecordLoader::start(std::int64_t epoch, const RangeSet& done) { impl_->start(epoch, done); }
bool RecordLoader::next(Batch& batch) { return impl_->next(batch); }
bool RecordLoader::take_over() { return impl_->take_over(); }
std::int64_t RecordLoader::size() const { return impl_->size(); }
std::string RecordLoader::order() const { return impl_->order(); }
Shape RecordLoader::batch_shape() const { return impl_->batch_shape(); }
void RecordLoader::commit(const Batch& batch) { impl_->commit(batch); }
RangeSet RecordLoader::committed() const { return impl_->committed(); }
const std::vector<std::string>& RecordLoader::labels() const { return impl_->manifest().labels; }
const Manifest& RecordLoader::manifest() const { return impl_->manifest(); }
std::vector<std::string> RecordLoader::open_shards() const { return impl_->open_shards(); }
std::vector<RecordDamage> RecordLoader::damage() const { return impl_->damage(); }
std::int64_t RecordLoader::damaged() const { return impl_->damaged(); }

}  // namespace paceline
