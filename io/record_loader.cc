#include <paceline/record_loader.h>

#include <paceline/cores.h>
#include <paceline/detail/remote.h>
#include <paceline/error.h>
#include <paceline/log.h>
#include <paceline/manifest.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <string_view>

#include "augment/mixing.h"
#include "batch_decoder.h"
#include "damage_log.h"
#include "example_arrays.h"
#include "example_decoder.h"
#include "mixture.h"
#include "open_shards.h"
#include "pipeline.h"
#include "remote/remote_shards.h"

namespace paceline {
namespace {

// The shards that a batch uses stay open until it is made.
using HeldShards = std::map<std::size_t, std::shared_ptr<const RecordFile>>;

}  // namespace

class RecordLoader::Impl final : public io::ExampleStore {
 public:
  Impl(io::Mixture data, RecordLoaderOptions options);

  io::PipelineOptions pipeline_options() const;
  std::vector<ExampleArray> arrays() const override { return arrays_; }
  int prepare(Device device) override;
  void open(const io::EpochOrder& order, const RangeSet& positions, std::size_t spread) override {
    std::vector<std::size_t> shards = order.shards(positions);
    if (remote_) std::erase_if(shards, [this](std::size_t shard) { return is_remote(shard); });
    shards_.begin(shards, spread, options_.decode_threads ? options_.decode_threads : core_budget());
  }
  void begin(const io::EpochOrder& order, const io::Batches& plan) override {
    if (remote_) remote_->begin(remote_in_order(order, plan));
  }
  void extend(const io::EpochOrder& order, const io::Batches& plan, const io::Batches& guess) override {
    if (!remote_) return;
    io::RemoteShards::Walk guessed;
    if (!guess.empty()) guessed = remote_in_order(order, guess);
    remote_->extend(remote_in_order(order, plan), std::move(guessed));
  }
  void passed(std::int64_t batches) override {
    if (remote_) remote_->passed(batches);
  }
  void stop() override {
    if (remote_) remote_->end();
  }
  std::string identity() const override { return io::identity_of(manifest_); }
  std::unique_ptr<io::BatchMaker> maker(int thread, const std::shared_ptr<io::BatchMemory>& memory) override;
  void ended() override { damage_.warn(path_); }

  const Manifest& manifest() const { return manifest_; }
  std::vector<std::string> open_shards() const {
    std::vector<std::string> paths = shards_.paths();
    if (remote_) std::ranges::copy(remote_->open(), std::back_inserter(paths));
    return paths;
  }
  const io::DamageLog& damage() const { return damage_; }

 private:
  class Maker;

  void choose_decoders(Device device);
  // Where the shard is a copy of one on another host, the next loader fetches it anew. Returns the copy's folder.
  std::string distrust_copy(std::size_t shard) { return remote_ && is_remote(shard) ? remote_->distrust(shard) : ""; }
  bool is_remote(std::size_t shard) const { return paceline::is_remote(manifest_.path_of(manifest_.shards[shard])); }
  io::RemoteShards::Walk remote_in_order(const io::EpochOrder& order, io::Batches plan) const;
  std::shared_ptr<const RecordFile> file(std::size_t shard) {
    return remote_ && is_remote(shard) ? remote_->file(shard) : shards_.get(shard);
  }

  const std::string path_;
  const Manifest manifest_;
  std::vector<std::pair<std::size_t, double>> mixture_;
  RecordLoaderOptions options_;
  const std::vector<std::int64_t> starts_;   // first record of each shard, and the number of records
  std::optional<io::ExampleFormat> images_;  // none where the options or the manifest name another decoder
  std::vector<ExampleArray> arrays_;
  std::optional<Device> decoders_for_;
  std::vector<std::unique_ptr<io::DeviceDecoder>> decoders_;  // one for each thread; empty where the CPU decodes
  io::OpenShards shards_;
  std::unique_ptr<io::RemoteShards> remote_;  // for shards on other hosts, instead of shards_; null without such shards
  io::DamageLog damage_;
};

// Reads and decodes records in one thread.
class RecordLoader::Impl::Maker final : public io::BatchMaker {
 public:
  Maker(Impl& data, std::unique_ptr<io::BatchDecoder> decoder) : data_(data), decoder_(std::move(decoder)) {}

  io::MadeBatch make(const std::vector<std::int64_t>& positions, const io::EpochView& epoch) override {
    io::MadeBatch made;
    HeldShards held;
    decoder_->begin(static_cast<std::int64_t>(positions.size()));
    numbers_.clear();
    for (const std::int64_t position : positions) numbers_.push_back(epoch.example(position));
    for (std::size_t i = 0; i < positions.size();) {
      const Run run = run_at(i);
      const auto count = static_cast<std::size_t>(run.end - run.begin);
      made.bytes += add(run, std::span(positions).subspan(i, count), epoch, held);
      i += count;
    }
    made.examples = decoder_->examples();
    if (made.examples > 0) made.arrays = decoder_->finish();
    return made;
  }

 private:
  // Records that follow each other in a shard.
  struct Run {
    std::size_t shard;
    std::int64_t begin, end;  // their places
  };
  Run run_at(std::size_t i) const;
  std::size_t add(const Run& run, std::span<const std::int64_t> positions, const io::EpochView& epoch,
                  HeldShards& held);
  bool decode(const RecordFile& file, std::int64_t place, std::string_view record, std::uint64_t seed,
              RecordDamage& damage);
  void leave_out(std::size_t shard, RecordDamage damage, bool distrust);

  Impl& data_;
  std::unique_ptr<io::BatchDecoder> decoder_;
  std::vector<std::int64_t> numbers_;  // of the batch's records
  RecordBuffer buffer_;
};

RecordLoader::Impl::Impl(io::Mixture data, RecordLoaderOptions options)
    : path_(std::move(data.path)),
      manifest_(std::move(data.manifest)),
      mixture_(std::move(data.parts)),
      options_(std::move(options)),
      starts_(io::starts_of(manifest_)),
      shards_(manifest_, path_, options_.on_damage == OnDamage::kFail) {
  require(options_.decode_threads >= 0, "decode_threads cannot be ", options_.decode_threads);
  if (!options_.decoder && manifest_.payload != "image" && !manifest_.decoder.name.empty())
    options_.decoder = decoders::named_in(manifest_);
  const bool here = std::ranges::none_of(
      manifest_.shards, [this](const Shard& shard) { return paceline::is_remote(manifest_.path_of(shard)); });
  if (!here) remote_ = std::make_unique<io::RemoteShards>(manifest_, path_, options_.on_damage);
  if (!options_.decoder) {
    images_ = io::image_format(manifest_, path_, options_.image);
    options_.decoder = [format = *images_] { return std::make_unique<io::ExampleDecoder>(format); };
  }
  arrays_ = options_.decoder()->arrays();
  io::require_distinct(arrays_, "the decoder");
}

io::PipelineOptions RecordLoader::Impl::pipeline_options() const {
  return {.what = path_,
          .starts = starts_,
          .order = {.batch = options_.batch,
                    .seed = options_.shuffle,
                    .partition = options_.partition,
                    .window = options_.window,
                    .virtual_nodes = options_.virtual_nodes,
                    .global_batch = options_.global_batch,
                    .sampling = options_.sampling,
                    .mixture = mixture_},
          .source = options_.source,
          .threads = options_.decode_threads,
          .prefetch = options_.prefetch};
}

int RecordLoader::Impl::prepare(Device device) {
  choose_decoders(device);
  return static_cast<int>(decoders_.size());
}

std::unique_ptr<io::BatchMaker> RecordLoader::Impl::maker(int thread, const std::shared_ptr<io::BatchMemory>& memory) {
  std::unique_ptr<io::BatchDecoder> decoder =
      decoders_.empty() ? io::on_host(options_.decoder(), memory)
                        : io::on_device(*decoders_.at(static_cast<std::size_t>(thread)), *images_, memory);
  if (images_ && !images_->pipeline->mixing().empty()) decoder = io::mixing(std::move(decoder), *images_, memory);
  return std::make_unique<Maker>(*this, std::move(decoder));
}

void RecordLoader::Impl::choose_decoders(Device device) {
  if (decoders_for_ == device) return;
  decoders_for_.reset();
  decoders_.clear();
  const bool on_cuda = device.kind == DeviceKind::kCuda;
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
    if (wanted)
      decoders_ = io::make_device_decoders(
          device, *images_, options_.decode_threads ? options_.decode_threads : std::max(1, core_budget() / 2));
  } catch (const NotAvailable& error) {
    if (must)
      throw NotAvailable(str("images cannot be decoded on ", device.name(), ": ", error.what(),
                             "; or choose the decoding 'auto' or 'cpu'"));
    LOG(INFO) << "images for " << device.name() << " are decoded on the CPU: " << error.what();
  }
  decoders_for_ = device;
}

io::RemoteShards::Walk RecordLoader::Impl::remote_in_order(const io::EpochOrder& order, io::Batches plan) const {
  return [this, &order, plan = std::move(plan)](std::vector<std::size_t>& shards) mutable {
    std::vector<std::int64_t> positions;
    if (!plan.next(positions)) return false;
    std::set<std::size_t> found;
    for (const std::int64_t position : positions) found.insert(io::range_of(starts_, order.record(position)));
    std::erase_if(found, [this](std::size_t shard) { return !is_remote(shard); });
    shards.assign(found.begin(), found.end());
    return true;
  };
}

// The records from the i-th of the batch on, as far as they follow each other.
RecordLoader::Impl::Maker::Run RecordLoader::Impl::Maker::run_at(std::size_t i) const {
  const std::size_t shard = io::range_of(data_.starts_, numbers_[i]);
  const std::int64_t begin = numbers_[i], first = data_.starts_[shard];
  std::int64_t end = begin + 1;
  for (++i; i < numbers_.size() && numbers_[i] == end && end < data_.starts_[shard + 1]; ++i) ++end;
  return {shard, begin - first, end - first};
}

// Reads and decodes a run, whose records stand at `positions` of the epoch. Returns how many bytes were added.
std::size_t RecordLoader::Impl::Maker::add(const Run& run, std::span<const std::int64_t> positions,
                                           const io::EpochView& epoch, HeldShards& held) {
  std::shared_ptr<const RecordFile>& holder = held[run.shard];
  if (!holder) {
    const io::StageScope stage(io::Stage::kFetch);
    holder = data_.file(run.shard);
  }
  const RecordFile& file = *holder;
  std::size_t bytes = 0;
  const io::StageScope stage(io::Stage::kRead);
  file.visit(run.begin, run.end, buffer_,
             [&](std::int64_t place, std::string_view record, const RecordDamage* unreadable) {
               if (unreadable) return leave_out(run.shard, *unreadable, true);
               RecordDamage damage;
               const std::int64_t position = positions[static_cast<std::size_t>(place - run.begin)];
               if (decode(file, place, record, epoch.seed(position), damage))
                 bytes += record.size();
               else
                 leave_out(run.shard, std::move(damage), false);
             });
  return bytes;
}

// Returns false, and why, where the record is damaged.
bool RecordLoader::Impl::Maker::decode(const RecordFile& file, std::int64_t place, std::string_view record,
                                       std::uint64_t seed, RecordDamage& damage) {
  const auto place_text = [&] { return str(file.path(), ": record ", place, " at offset ", file.offset(place), ": "); };
  const io::StageScope stage(io::Stage::kDecode);
  try {
    decoder_->add(record, seed);
    return true;
  } catch (const Corrupt& error) {
    damage = {file.path(), file.offset(place), place, error.what()};
    return false;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(place_text() + error.what());
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(str(place_text(), "the decoder failed: ", error.what()));
  }
}

// `distrust`: where the shard is a copy, the copy may be at fault.
void RecordLoader::Impl::Maker::leave_out(std::size_t shard, RecordDamage damage, bool distrust) {
  const std::string copy = distrust ? data_.distrust_copy(shard) : "";
  if (data_.options_.on_damage == OnDamage::kFail) {
    if (!copy.empty()) damage.reason += str(", in the copy ", copy, " on this host, which is fetched anew next time");
    throw Corrupt(
        str(damage.text(), "; --skip_bad leaves such records out (OnDamage::kSkip in a program of your own)"));
  }
  data_.damage_.add(std::move(damage));
}

Decoding parse_decoding(std::string_view name) {
  if (name == "auto") return Decoding::kAuto;
  if (name == "cpu") return Decoding::kCpu;
  if (name == "device") return Decoding::kDevice;
  throw InvalidArgument(str("unknown decoding '", name, "'; known: auto cpu device"));
}

RecordLoader::RecordLoader(const std::string& manifest, RecordLoaderOptions options)
    : RecordLoader(
          std::make_shared<Impl>(io::Mixture{Manifest::load(manifest), redacted(manifest)}, std::move(options))) {}
RecordLoader::RecordLoader(const std::vector<MixedDataSet>& sets, RecordLoaderOptions options)
    : RecordLoader(std::make_shared<Impl>(io::mixture_of(sets), std::move(options))) {}
RecordLoader::RecordLoader(const std::shared_ptr<Impl>& impl)
    : PipelineIterator(std::make_unique<io::Pipeline>(impl->pipeline_options(), impl)), impl_(impl) {}
RecordLoader::~RecordLoader() = default;
const std::vector<std::string>& RecordLoader::labels() const { return impl_->manifest().labels; }
const Manifest& RecordLoader::manifest() const { return impl_->manifest(); }
std::vector<std::string> RecordLoader::open_shards() const { return impl_->open_shards(); }
std::vector<RecordDamage> RecordLoader::damage() const { return impl_->damage().listed(); }
std::int64_t RecordLoader::damaged() const { return impl_->damage().count(); }

}  // namespace paceline
