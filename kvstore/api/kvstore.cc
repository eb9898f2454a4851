#include <paceline/cluster.h>
#include <paceline/error.h>
#include <paceline/kvstore.h>
#include <paceline/log.h>
#include <paceline/mode.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "allreduce/ring.h"
#include "gossip/gossip.h"
#include "local/local.h"
#include "mode_names.h"
#include "own_objects.h"
#include "servers/servers.h"

namespace paceline {
namespace {

constexpr const char* kNoTables = "holds no row-sparse tables; use local, dist_async or dist_sync without backup";

// A mode without servers: what the mode can do, and how its backend is made.
struct ServerlessMode {
  const char* name;
  bool alone;         // one process, which joins no job
  bool holds_tables;  // row-sparse tables
  void (*check)(const Spec& mode, const ClusterConfig& config, const Extensions& own);
  std::unique_ptr<Backend> (*make)(const ClusterConfig& config, const Spec& mode, const StoreOptions& options);
};

void check_alone(const Spec& mode, const ClusterConfig&, const Extensions&) {
  parse_aggregate(mode.options, Aggregate::kSum);
  mode.options.reject_unknown("mode '" + mode.name + "'");
}

template <bool kSumsOnDevice>
std::unique_ptr<Backend> make_alone(const ClusterConfig&, const Spec& mode, const StoreOptions& options) {
  return make_local_backend(options, {.sums_on_device = kSumsOnDevice,
                                      .several_devices = true,
                                      .aggregate = parse_aggregate(mode.options, Aggregate::kSum),
                                      .updates_in_place = true});
}

// Modes with servers say in their ModeTraits what they can do.
constexpr ServerlessMode kServerlessModes[] = {
    {"local", true, true, check_alone, make_alone<false>},
    {"device", true, true, check_alone, make_alone<true>},
    {"gossip", false, false,
     [](const Spec& mode, const ClusterConfig& config, const Extensions&) { check_gossip(mode, config); },
     make_gossip_backend},
    {"ring", false, false,
     [](const Spec& mode, const ClusterConfig& config, const Extensions& own) { check_ring(mode, config, own); },
     make_ring_backend}};

static_assert(std::ranges::equal(kServerlessModes, kModesWithoutServers, {},
                                 [](const ServerlessMode& mode) { return std::string_view(mode.name); }));

// Null for a mode with servers.
const ServerlessMode* serverless_mode(const std::string& name) {
  for (const ServerlessMode& mode : kServerlessModes)
    if (name == mode.name) return &mode;
  return nullptr;
}

Spec mode_of(const std::string& text) {
  Spec mode = Spec::parse(text);
  mode.name = mode_name(mode.name);
  return mode;
}

[[noreturn]] void serve_and_exit(const ClusterConfig& config, const StoreOptions& options) {
  keep_freed_memory(true);
  try {
    serve(config, options.own);
  } catch (const Error& error) {
    LOG(ERROR) << error.what();
    std::exit(EXIT_FAILURE);  // NOLINT(concurrency-mt-unsafe): nothing else runs
  }
  std::exit(EXIT_SUCCESS);  // NOLINT(concurrency-mt-unsafe): nothing else runs
}

// Does a store of this process take part in a job?
std::atomic<bool> has_joined = false;

// Without a distributed mode, each worker of a job trains alone, and no error shows the mistake.
void warn_if_in_a_job(const std::string& mode) {
  if (has_joined) return;
  try {
    const ClusterConfig job = ClusterConfig::from_environment();
    if (job.workers > 1 || job.servers > 0)
      LOG(WARNING) << "mode '" << mode << "' in a job of " << job.workers << " workers and " << job.servers
                   << " servers: this process trains alone; give its program a distributed mode to train together";
  } catch (const Error&) {
    // There is no job.
  }
}

}  // namespace

Histogram StoreReport::all_delays() const {
  Histogram all;
  for (const Histogram& histogram : delays) all.merge(histogram);
  return all;
}

void KVStore::check(const std::string& mode, bool tables, const Extensions& own) {
  own.check();
  const std::string name = mode_name(mode.substr(0, mode.find(':')));
  const ServerlessMode* const serverless = serverless_mode(name);
  std::string known;
  for (const ServerlessMode& entry : kServerlessModes) known += str(" ", entry.name);
  bool found = serverless || own.modes.count(name) > 0;
  for (const auto& [entry, make] : mode_catalog().entries()) {
    known += " " + entry;
    found |= name == entry;
  }
  for (const auto& [other, same] : kOtherNames) known += str(" ", other);
  if (!own.modes.empty()) known += "; of your own:" + names_of(own.modes);
  require(found, "unknown mode '", name, "'; known:", known);
  const Spec spec = mode_of(mode);
  if (serverless) serverless->check(spec, {}, own);
  const bool holds_tables =
      serverless ? serverless->holds_tables : ModeSetting::parse(spec, own).object->traits().holds_tables;
  require(holds_tables || !tables, "mode '", mode, "' ", kNoTables);
}

std::shared_ptr<KVStore> KVStore::create(const std::string& mode, const StoreOptions& options) {
  check(mode, false, options.own);
  const Spec spec = mode_of(mode);
  const ServerlessMode* const serverless = serverless_mode(spec.name);
  if (serverless && serverless->alone) {
    warn_if_in_a_job(spec.name);
    return std::make_shared<KVStore>(serverless->make({}, spec, options), spec);
  }
  const ClusterConfig config = ClusterConfig::from_environment();
  if (serverless) serverless->check(spec, config, options.own);
  if (config.role != Role::kWorker) serve_and_exit(config, options);
  return join(config, mode, options);
}

std::shared_ptr<KVStore> KVStore::join(const ClusterConfig& given, const std::string& mode,
                                       const StoreOptions& options) {
  options.own.check();
  ClusterConfig config = given;
  const Spec spec = mode_of(mode);
  const StoreOptions defaults;
  if (options.start_deadline_seconds != defaults.start_deadline_seconds)
    config.start_deadline_seconds = options.start_deadline_seconds;
  if (options.silence_deadline_seconds != defaults.silence_deadline_seconds)
    config.silence_deadline_seconds = options.silence_deadline_seconds;
  const ServerlessMode* const serverless = serverless_mode(spec.name);
  require(!serverless || !serverless->alone, "mode '", spec.name, "' joins no job: use create()");
  const auto make = serverless ? serverless->make : make_servers_backend;
  has_joined = true;
  return std::make_shared<KVStore>(make(config, spec, options), spec);
}

KVStore::KVStore(std::unique_ptr<Backend> backend, Spec mode) : mode_(std::move(mode)), backend_(std::move(backend)) {}

KVStore::~KVStore() = default;

const Spec& KVStore::mode() const { return mode_; }
bool KVStore::is_distributed() const {
  const ServerlessMode* const serverless = serverless_mode(mode_.name);
  return backend_->server_count() > 0 || (serverless && !serverless->alone);
}
bool KVStore::holds_tables() const { return backend_->holds_tables(); }
Backend& KVStore::backend() { return *backend_; }
int KVStore::rank() const { return backend_->rank(); }
int KVStore::size() const { return backend_->size(); }

void KVStore::init(const std::vector<InitValue>& values) {
  constexpr std::size_t kMostBytes = 2000;
  for (const InitValue& value : values)
    require(!value.key.empty() && value.key.size() <= kMostBytes, "a key's name has ", value.key.size(),
            " bytes, expected 1 to ", kMostBytes);
  backend_->init(values);
}
void KVStore::set_optimizer(const Spec& optimizer) {
  // Options record which keys were read, so several workers must not share one Spec. The backend gets a copy.
  backend_->set_optimizer(Spec(optimizer));
  has_optimizer_ = true;
}

void KVStore::require_optimizer() const {
  require(
      has_optimizer_,
      "a gradient was pushed, but no optimizer says what it does to the weights; call "
      "set_optimizer() first: optim::Assign{} stores the gradients' mean (MXNet's store: their sum), optim::SGD{.lr = "
      "0.1} trains");
}
void KVStore::set_learning_rate(double rate) { backend_->set_learning_rate(rate); }

void KVStore::push(const std::string& key, const NDArray& gradient, std::int64_t examples, int priority) {
  require_optimizer();
  backend_->push({{key, gradient}}, examples, priority);
}

void KVStore::pull(const std::string& key, const NDArray& out, int priority) { backend_->pull({{key, out}}, priority); }

namespace {

// Item number i has key number i and array number i.
template <class Item>
std::vector<Item> items_of(const std::vector<std::string>& keys, const std::vector<NDArray>& arrays, const char* use) {
  require(keys.size() == arrays.size(), use, " of ", keys.size(), " keys has ", arrays.size(),
          " arrays; give one array for each key, and name a key again for each further array");
  std::vector<Item> items;
  items.reserve(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) items.push_back({keys[i], arrays[i]});
  return items;
}

}  // namespace

void KVStore::push(const std::vector<std::string>& keys, const std::vector<NDArray>& gradients, std::int64_t examples,
                   int priority) {
  require_optimizer();
  backend_->push(items_of<PushItem>(keys, gradients, "a push"), examples, priority);
}

void KVStore::pull(const std::vector<std::string>& keys, const std::vector<NDArray>& outs, int priority) {
  backend_->pull(items_of<PullItem>(keys, outs, "a pull"), priority);
}

void KVStore::push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights,
                        std::int64_t examples, int priority) {
  if (!gradients.empty()) require_optimizer();
  backend_->push_pull(gradients, weights, examples, priority);
}

void Backend::init_tables(const std::vector<TableSpec>&) { throw NotAvailable(str("this mode ", kNoTables)); }

void Backend::push_pull_rows(const std::vector<RowPush>&, const std::vector<RowPull>&, std::int64_t, int) {
  throw NotAvailable(str("this mode ", kNoTables));
}

void Backend::fill_table(const std::string&, const FirstRows&) { throw NotAvailable(str("this mode ", kNoTables)); }

void KVStore::init_table(const TableSpec& table) { backend_->init_tables({table}); }

void KVStore::init_table(const TableSpec& table, const FirstRows& values) {
  backend_->init_tables({table});
  backend_->fill_table(table.name, values);
}

void KVStore::init_table(const TableSpec& table, const NDArray& values) {
  require(!values.is_none() && values.dtype() == table.dtype && values.shape() == Shape{table.rows, table.width},
          "the first values of table '", table.name, "' are ", values.is_none() ? "none" : values.describe(),
          ", expected ", name_of(table.dtype), " ", Shape{table.rows, table.width});
  NDArray here;  // filled by the first call, because only one worker needs the values
  init_table(table, [&](std::int64_t begin, std::int64_t, const NDArray& out) {
    if (here.is_none()) {
      here = values.to(Device{}).contiguous();
      here.wait();
    }
    out.wait();
    const auto row_bytes = static_cast<std::size_t>(table.width) * size_of(table.dtype);
    std::memcpy(out.data(), static_cast<const std::byte*>(here.data()) + static_cast<std::size_t>(begin) * row_bytes,
                out.bytes());
  });
}

void KVStore::push_rows(const std::vector<RowPush>& rows, std::int64_t examples, int priority) {
  require_optimizer();
  backend_->push_pull_rows(rows, {}, examples, priority);
}

void KVStore::pull_rows(const std::vector<RowPull>& rows, int priority) {
  backend_->push_pull_rows({}, rows, 0, priority);
}

void KVStore::push_pull_rows(const std::vector<RowPush>& gradients, const std::vector<RowPull>& rows,
                             std::int64_t examples, int priority) {
  if (!gradients.empty()) require_optimizer();
  backend_->push_pull_rows(gradients, rows, examples, priority);
}

void KVStore::step_end() {
  backend_->step_end();
  backend_->reached(++steps_);
}
void KVStore::barrier() { backend_->barrier(); }
GatheredValues KVStore::all_gather(const std::string& name, const std::string& value) {
  require(!name.empty(), "all_gather() wants a name, by which the workers know that they gather the same");
  const std::size_t most = (std::size_t{32} << 20) / static_cast<std::size_t>(size());
  require(value.size() <= most, "all_gather('", name, "') gives ", value.size(), " bytes; in a job of ", size(),
          " workers each gives at most ", most);
  return backend_->all_gather(name, value);
}
void KVStore::put_fact(const std::string& name, const std::string& value) { backend_->put_fact(name, value); }
Facts KVStore::facts(const std::string& prefix) { return backend_->facts(prefix); }
StoreReport KVStore::report() {
  StoreReport report = backend_->report();
  report.loads = loads_;
  return report;
}
StoreState KVStore::save() { return backend_->save(); }
void KVStore::load(const StoreState& state) {
  ++loads_;
  backend_->load(state);
}
void KVStore::finish() { backend_->finish(); }

}  // namespace paceline
