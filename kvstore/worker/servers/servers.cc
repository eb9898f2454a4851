#include "servers/servers.h"

#include <paceline/detail/array_builder.h>
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <exception>
#include <utility>

#include "own_objects.h"
#include "parse_body.h"
#include "send/two_round_push.h"
#include "servers/averaging.h"
#include "store.pb.h"
#include "transport/transport_setting.h"

namespace paceline {
namespace {

constexpr std::size_t kKeysAtOnce = 2500;            // keys in one task
constexpr std::size_t kSentAtOnce = 64 << 10;        // bytes; sending so few takes less time than waking a thread
constexpr std::size_t kPart = std::size_t{1} << 20;  // bytes of a part of a key of an accelerator

// Warns if the mode's text names none of the program's own objects. The program would train without them, and nothing
// else would show this.
template <class Object, class Names>
void warn_if_unnamed(const char* kind, const OwnObjects<Object>& own, const Names& named) {
  if (own.empty() || std::ranges::any_of(named, [&](const std::string& name) { return own.contains(name); })) return;
  LOG(WARNING) << "the mode's text names none of this program's own " << kind << ":" << names_of(own);
}

// Returns the elements of `part` in `array`, which is the whole key, and a host array to copy these elements to or
// from.
std::pair<NDArray, NDArray> part_of(const NDArray& array, const RemotePart& part) {
  const NDArray there = array.view({-1}).narrow(0, part.slices.front().begin, part.slices.back().end);
  return {there, ArrayBuilder::host_side(there.shape(), there.dtype(), there.device(), array.engine())};
}

// Can the array's elements be sent or filled in place?
bool fits(const NDArray& array) { return array.device() == Device{} && array.is_contiguous(); }

}  // namespace

ModeSetting ModeSetting::parse(const Spec& spec, const Extensions& own) {
  ModeSetting setting;
  setting.own = own;
  setting.mode.name = spec.name;
  Options rest = spec.options;
  const auto take = [&](const std::string& key) {
    std::string value = rest.get(key, "");
    rest.erase(key);
    return value;
  };
  setting.staleness = take("staleness");
  setting.transport = take("transport");
  if (!setting.transport.empty()) TransportSetting::parse(setting.transport);
  for (const std::string& key : make_mode(Spec{spec.name, {}}, own)->keys()) {
    const bool given = rest.has(key);
    const std::string value = take(key);
    if (given) setting.mode.options.set(key, value);
  }
  setting.object = make_mode(setting.mode, own);
  setting.compression = CompressionSetting::take(&rest, own);
  setting.compression.suit(setting.object->traits().lockstep);
  const auto codec = setting.compression.make(setting.compression.push);
  require(!codec || !codec->votes() || setting.object->aggregate() == Aggregate::kMean, "compression '",
          setting.compression.push.text(), "' applies the sign that most workers vote for, which is no sum; leave out ",
          "aggregate=sum, or majority");
  const std::string policy = setting.staleness.empty() ? "dana+gap_aware" : setting.staleness;
  for (const char* key : {"compression", "pull", "min_bytes", "except", "only", "bandwidth", "rules", "error_feedback"})
    require(rest.get(key, "").empty(), "option '", key, "' of mode '", spec.text(),
            "' is for gradients that are compressed; name a compression");
  // Each object makes its options known, so that the error for an unknown option can list them.
  if (setting.compression.active()) make_object(own.codecs, compression_catalog(), setting.compression.push.name, rest);
  for (const std::string& part : policy_parts(policy)) make_object(own.policies, staleness_catalog(), part, rest);
  reject_unknown(rest, spec);
  setting.staleness_options = rest;
  if (const AveragingOptions* const averaging = setting.object->averaging()) check_averaging(setting, *averaging);
  return setting;
}

ServersBackend::ServersBackend(const ClusterConfig& config, ModeSetting setting, const StoreOptions& options)
    : setting_(std::move(setting)),
      traits_(setting_.object->traits()),
      engine_(options.engine ? *options.engine : default_engine()),
      workers_(config.workers),
      servers_(config.servers),
      node_(std::make_unique<Node>(config, Node::Handlers{})),
      client_(*node_) {
  setting_.object->check_workers(workers_);
  for (int s = 0; s < servers_; ++s)
    outboxes_.push_back(
        std::make_unique<Outbox>(*node_, PeerId{Role::kServer, s}, static_cast<std::size_t>(config.message_bytes)));
  scheduler_ = std::make_unique<Outbox>(*node_, PeerId{Role::kScheduler, 0});
  for (const auto& outbox : outboxes_) coalescers_.push_back(std::make_unique<Coalescer>(*outbox));
  route_.outboxes = &outboxes_;
  route_.coalescers = &coalescers_;
  route_.placement = std::make_shared<const Placement>(servers_);
  route_.pending = pending_;
  route_.waited_microseconds = &waited_microseconds_;
  route_.pulls_wait = traits_.pulls_wait();
  // Over shm, servers read gradients in the worker's memory. A mode that keeps gradients needs copies. Over inproc, the
  // worker copies in every mode.
  const TransportSetting transport = TransportSetting::parse(config.transport);
  route_.copies = transport.in_process() || (traits_.in_rounds() && transport.lends_memory());
  node_->join();
  node_->receive_while_waiting();
  look_around();
  if (setting_.compression.active()) {
    compressor_ = std::make_unique<Compressor>(setting_.compression, engine_);
    LOG(INFO) << setting_.compression.describe();
  }
  warn_if_unnamed("modes", setting_.own.modes, std::array{setting_.mode.name});
  warn_if_unnamed("staleness policies", setting_.own.policies, policy_parts(setting_.staleness));
  warn_if_unnamed("codecs", setting_.own.codecs, setting_.compression.names());
  step_ = new_step(0);  // after the join, because the end of a step sends messages to the servers
}

ServersBackend::~ServersBackend() {
  // If an exception unwinds the stack, this worker does not leave the job, so the others count it as lost.
  if (!finished_ && std::uncaught_exceptions() == 0) node_->leave();
  for (const auto& outbox : outboxes_) outbox->close();
  scheduler_->close();
  {
    Lock lock(mutex_);
    step_.reset();
  }
  node_->close();
  // Tasks that wait for a gradient still refer to this object. Without servers they fail when they start.
  pending_->wait_none();
}

RemoteKey& ServersBackend::find(const std::string& name) {
  const auto found = keys_.find(name);
  require(found != keys_.end(), "key '", name, "' was not initialised");
  return *found->second;
}

RemoteKey& ServersBackend::find(const std::string& name, const NDArray& array, const char* use, RemoteKey*& previous) {
  // Training names its keys in the same order in each step. Looking a key up costs more than all other work for it.
  RemoteKey* const guess = previous ? previous->next : nullptr;
  RemoteKey& key = guess && guess->info.name == name ? *guess : find(name);
  if (previous) previous->next = &key;
  previous = &key;
  __builtin_prefetch(key.next);
  // The text of the error is made only when it is needed, because a call may hold ten thousand keys.
  if (array.size() != key.info.shape.size() || array.dtype() != key.info.dtype)
    throw InvalidArgument(str(use, " of key '", name, "' is ", array.describe(), ", expected ", key.info.describe()));
  return key;
}

NDArray ServersBackend::prepare_gradient(RemoteKey& key, const NDArray& gradient, int priority) {
  NDArray update = gradient;
  if (!fits(gradient)) {
    update = ArrayBuilder::host_side(gradient.shape(), gradient.dtype(), gradient.device(), engine_);
    update.copy_from(gradient, priority);
  }
  if (rule_ && !key.info.average)
    update = rule_->prepare(key.info.name, update.view(key.info.shape), key.weight.to(Device{}));
  return update;
}

void ServersBackend::push(const std::vector<PushItem>& items, std::int64_t examples, int priority) {
  push_pull(items, {}, examples, priority);
}

void ServersBackend::pull(const std::vector<PullItem>& items, int priority) { push_pull({}, items, 0, priority); }

void ServersBackend::push_pull(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights,
                               std::int64_t examples, int priority) {
  transfer(gradients, weights, examples, priority, false);
}

void ServersBackend::pull_after(const std::vector<PullItem>& items, std::uint64_t step, int priority) {
  transfer({}, items, 0, priority, false, step);
}

void ServersBackend::pull_exactly(const std::vector<PullItem>& items) {
  const auto start = std::chrono::steady_clock::now();
  transfer({}, items, 0, 0, true);
  double bytes = 0;
  for (const PullItem& item : items) {
    item.out.wait();
    bytes += static_cast<double>(item.out.bytes());
  }
  Lock lock(mutex_);
  if (compressor_ && bytes > 0)
    compressor_->saw_transfer(bytes, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
}

void ServersBackend::resume_if_paused() {
  if (!paused_) return;
  const Lock lock(resume_mutex_);
  if (paused_) resume();
}

void ServersBackend::transfer(const std::vector<PushItem>& gradients, const std::vector<PullItem>& weights,
                              std::int64_t examples, int priority, bool exact, std::optional<std::uint64_t> need) {
  require(examples >= 0, "a push of ", examples, " examples");
  resume_if_paused();
  struct Named {
    RemoteKey* key;
    const NDArray *gradient, *out;
  };
  std::vector<Named> named;
  Copies copies;
  {
    Lock lock(mutex_);
    const bool two_rounds = compressor_ && compressor_->two_rounds();
    const std::uint64_t step = step_->number();
    const std::uint64_t call = ++calls_;
    named.reserve(std::max(gradients.size(), weights.size()));
    for (const PushItem& item : gradients) {
      RemoteKey& key = find(item.key, item.gradient, "the gradient", last_key_);
      if (key.call == call) throw InvalidArgument("key '" + item.key + "' is pushed twice in one call");
      require(!two_rounds || key.last_step != step, "key '", item.key, "' is pushed twice in step ", step,
              "; call step_end() between steps");
      key.call = call;
      key.place = named.size();
      named.push_back({&key, &item.gradient, nullptr});
    }
    for (const PullItem& item : weights) {
      RemoteKey& key = find(item.key, item.out, "the output", last_key_);
      if (key.call == call && !named[key.place].out)
        named[key.place].out = &item.out;
      else
        named.push_back({&key, nullptr, &item.out});
    }
    if (named.empty()) return;
    const char* task = weights.empty() ? "store.push" : gradients.empty() ? "store.pull" : "store.push_pull";
    std::vector<Transfer::Item> items;
    items.reserve(std::min(kKeysAtOnce, named.size()));
    std::vector<std::pair<RemoteKey*, NDArray>> predicted;
    NDArray made;  // an array that is sent or filled instead of the caller's
    for (std::size_t i = 0; i < named.size(); ++i) {
      // The first keys are on their way while the next are prepared.
      if (items.size() == kKeysAtOnce && !two_rounds && !route_.pulls_wait) {
        launch(task, std::exchange(items, {}), examples, priority);
        items.reserve(std::min(kKeysAtOnce, named.size() - i));
      }
      const Named& name = named[i];
      RemoteKey& key = *name.key;
      if (!exact && goes_in_parts(key, name.gradient, name.out)) {
        if (name.gradient) key.last_step = step;
        const std::uint64_t wanted = !route_.pulls_wait ? 0 : need.value_or(key.last_step == step ? step + 1 : step);
        transfer_parts(key, name.gradient, name.out, {task, examples, priority, wanted}, &copies);
        continue;
      }
      Transfer::Item& item = items.emplace_back(Transfer::Item{&key, {}, {}});
      if (name.gradient) {
        const NDArray* gradient = name.gradient;
        if (rule_ || !fits(*gradient)) gradient = &(made = prepare_gradient(key, *gradient, priority));
        ++key.unpulled_pushes;
        if (compressor_) {
          item.encoded = compressor_->encode(key.info, key.slices, *gradient, rank(), workers_, priority);
          made = item.encoded ? item.encoded->bytes : compressor_->with_momentum(key.info, *gradient, priority);
          gradient = &made;
        }
        item.gradient = Transfer::Bytes::of(*gradient);
        key.last_step = step;
        pushed_in_step_ = true;
      }
      if (!name.out) continue;
      if (compressor_ && !exact) item.pull_codec = compressor_->pull_codec(key.info);
      // If the key was pushed in this step, the pull gets the weights for the next step.
      if (route_.pulls_wait) item.need = need.value_or(key.last_step == step ? step + 1 : step);
      const NDArray* out = name.out;
      if (!fits(*out)) {
        out = &(made = ArrayBuilder::host_side(out->shape(), key.info.dtype, out->device(), engine_));
        copies.emplace_back(*name.out, made);
      }
      item.out = Transfer::Bytes::of(*out);
      if (rule_ && rule_->predicts() && key.unpulled_pushes > 0) predicted.emplace_back(&key, *out);
      if (!key.weight.shares_memory_with(*out) || ArrayBuilder::data(key.weight) != item.out.data)
        key.weight = out->shape() == key.info.shape ? *out : out->view(key.info.shape);
    }
    std::vector<RemoteKey*> proposed;
    std::vector<Transfer::Item> later;  // pulls of keys whose push is only a proposal
    if (two_rounds) {
      for (Transfer::Item& item : items) {
        if (!item.encoded || !item.encoded->codec->codec->two_rounds()) continue;
        proposed.push_back(item.key);
        if (item.out) later.push_back({item.key, {}, item.out, item.need, nullptr, item.pull_codec});
        item.out = {};
      }
    }
    if (!items.empty()) launch(task, std::move(items), examples, priority);
    for (RemoteKey* const key : proposed) finish_proposal(*key, priority);
    if (!later.empty()) launch("store.pull", std::move(later), 0, priority);
    for (const auto& [key, out] : predicted) predict(*key, out, priority);
  }
  for (const auto& [target, source] : copies) target.copy_from(source, priority);
}

bool ServersBackend::goes_in_parts(const RemoteKey& key, const NDArray* gradient, const NDArray* out) const {
  if (static_cast<std::size_t>(key.info.shape.size()) * size_of(key.info.dtype) < 2 * kPart) return false;
  if (rule_ || compressor_) return false;
  for (const NDArray* array : {gradient, out})
    if (array && (array->device().is_cpu() || !array->is_contiguous())) return false;
  return true;
}

// A large key of an accelerator: while one part is on the wire, the next part is copied.
void ServersBackend::transfer_parts(RemoteKey& key, const NDArray* gradient, const NDArray* out, const PartCall& call,
                                    Copies* copies) {
  const bool first_use = key.parts.empty();
  for (std::span<RemoteSlice> rest = first_use ? key.slices : std::span<RemoteSlice>(); !rest.empty();) {
    const auto room = static_cast<std::int64_t>(kPart / size_of(key.info.dtype));
    std::size_t count = 1;
    while (count < rest.size() && rest[count].end - rest.front().begin <= room) ++count;
    key.parts.push_back({rest.first(count), engine_.new_variable()});
    rest = rest.subspan(count);
  }
  if (first_use) {
    // The tasks of the parts come after earlier tasks of the whole key, and fail if those have failed.
    std::vector<Variable> orders;
    key.add_orders(&orders);
    engine_.push({"store.parts", {}, Lane::kCommunication, call.priority}, std::array{key.order}, orders,
                 [](TaskContext&) {});
  }
  for (RemotePart& part : key.parts) {
    Transfer::Item item{&key, {}, {}, call.need};
    item.part = &part;
    if (gradient) {
      const auto [there, here] = part_of(*gradient, part);
      here.copy_from(there, call.priority);
      item.gradient = Transfer::Bytes::of(here);
      pushed_in_step_ = true;
    }
    if (out) {
      copies->push_back(part_of(*out, part));
      item.out = Transfer::Bytes::of(copies->back().second);
    }
    launch(call.task, {std::move(item)}, call.examples, call.priority);
  }
  if (out) key.weight = out->view(key.info.shape);
}

void ServersBackend::predict(RemoteKey& key, const NDArray& out, int priority) {
  if (key.info.average) return;
  pending_->add();
  const std::shared_ptr<Pending> done(pending_.get(), [pending = pending_](Pending*) { pending->remove(); });
  std::vector<Variable> writes{out.variable()};
  key.add_orders(&writes);
  // The task reads what it writes, so that the failure of the push or the pull stays.
  engine_.push({"store.predict", {}, Lane::kCompute, priority}, writes, writes,
               [rule = rule_, &key, out, done, pushes = std::exchange(key.unpulled_pushes, 0)](TaskContext&) {
                 std::vector<PulledRun> runs;
                 for (const RemoteSlice& slice : key.slices) runs.push_back({slice.begin, slice.end, slice.base});
                 rule->pulled(key.info.name, runs, pushes, out);
               });
}

void ServersBackend::launch(const char* name, std::vector<Transfer::Item> items, std::int64_t examples, int priority) {
  bool pushes = false;
  std::size_t bytes = 0;
  for (const Transfer::Item& item : items) {
    pushes |= bool(item.gradient);
    bytes += item.gradient.size + item.out.size;
  }
  const bool at_once = bytes <= kSentAtOnce;
  auto transfer = std::make_shared<Transfer>(route_, std::move(items), pushes ? step_ : nullptr, examples, priority);
  const auto reads = transfer->reads(), writes = transfer->writes();
  engine_.push_async({name, {}, Lane::kCommunication, priority, at_once}, reads, writes,
                     [transfer = std::move(transfer)](TaskContext&, Completion completion) {
                       transfer->start(std::move(completion));
                     });
}

void ServersBackend::finish_proposal(RemoteKey& key, int priority) {
  pending_->add();
  const std::shared_ptr<Delivery> held(step_->delivery().get(),
                                       [pending = pending_, delivery = step_->delivery()](Delivery*) mutable {
                                         delivery.reset();
                                         pending->remove();
                                       });
  TwoRoundPush::start(engine_, {&key, compressor_->push_codec(), compressor_->arrays_of(key.info.name), step_->number(),
                                priority, &outboxes_, route_.placement, held});
}

std::shared_ptr<Step> ServersBackend::new_step(std::uint64_t number) {
  const auto on_end = [this](std::uint64_t ended) {
    wire::StepEnd body;
    body.set_clock(ended + 1);
    Message message = message_of(MessageKind::kStepEnd, body);
    const std::shared_ptr<void> answered(nullptr, [open = open_steps_](void*) { open->remove(); });
    constexpr int kSoonest = 1 << 30;
    for (const auto& outbox : outboxes_) {
      outbox->end_step();
      outbox->submit(kSoonest, 0, message, [answered](const std::optional<Message>&, const std::exception_ptr&) {});
    }
  };
  return std::make_shared<Step>(number, on_end, &failed_);
}

void ServersBackend::step_end() {
  {
    std::shared_ptr<Step> ended;  // released outside the lock, because this may end the step
    Lock lock(mutex_);
    auto next = new_step(step_->number() + 1);
    step_->close(next);
    last_delivery_ = step_->delivery();
    open_steps_->add();
    ended = std::exchange(step_, std::move(next));
    pushed_in_step_ = false;
  }
  if (traits_.applies == Applies::kInRounds) open_steps_->wait_until(kMostOpenSteps);
}

void ServersBackend::when_pushed(Delivery::Action action) {
  std::shared_ptr<Delivery> delivery;
  {
    Lock lock(mutex_);
    delivery = pushed_in_step_ ? step_->delivery() : last_delivery_.lock();
  }
  if (!delivery) return action(nullptr);
  delivery->then(std::move(action));
}

std::vector<Message> ServersBackend::ask_servers(std::vector<std::pair<int, Message>> requests) {
  struct Answers {
    Mutex mutex;
    CondVar arrived;
    std::vector<Message> messages PACELINE_GUARDED_BY(mutex);
    std::size_t missing PACELINE_GUARDED_BY(mutex) = 0;
    std::exception_ptr error PACELINE_GUARDED_BY(mutex);
  };
  const auto answers = std::make_shared<Answers>();
  {
    Lock lock(answers->mutex);
    answers->messages.resize(requests.size());
    answers->missing = requests.size();
  }
  for (std::size_t i = 0; i < requests.size(); ++i) {
    std::size_t bytes = 0;
    for (const Frame& frame : requests[i].second.payload) bytes += frame.size;
    outboxes_[static_cast<std::size_t>(requests[i].first)]->submit(
        0, bytes, std::move(requests[i].second), [answers, i](std::optional<Message> answer, std::exception_ptr error) {
          Lock lock(answers->mutex);
          if (answer) answers->messages[i] = std::move(*answer);
          if (error && !answers->error) answers->error = std::move(error);
          --answers->missing;
          answers->arrived.notify_all();
        });
  }
  Lock lock(answers->mutex);
  answers->arrived.wait(answers->mutex, [&]() PACELINE_NO_THREAD_SAFETY_ANALYSIS { return answers->missing == 0; });
  if (answers->error) std::rethrow_exception(answers->error);
  return std::move(answers->messages);
}

std::vector<Message> ServersBackend::ask_every_server(const Message& request) {
  std::vector<std::pair<int, Message>> requests;
  for (int s = 0; s < servers_; ++s) requests.emplace_back(s, request);
  return ask_servers(std::move(requests));
}

std::unique_ptr<Backend> make_servers_backend(const ClusterConfig& config, const Spec& mode,
                                              const StoreOptions& options) {
  ModeSetting setting = ModeSetting::parse(mode, options.own);
  require(config.servers > 0, "mode '", mode.name,
          "' needs servers, and this job has none; start it with launch.py -s ",
          "1 or more (DMLC_NUM_SERVER), or use mode ring or gossip, which have none");
  ClusterConfig own = config;
  if (!setting.transport.empty()) own.transport = setting.transport;
  auto servers = std::make_unique<ServersBackend>(own, setting, options);
  const AveragingOptions* const averaging = setting.object->averaging();
  if (!averaging) return servers;
  return make_averaging_backend(std::move(servers), *averaging, options);
}

}  // namespace paceline
