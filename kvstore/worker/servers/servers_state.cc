// Checkpoints of ServersBackend. save() gathers slices into whole keys, and load() cuts the keys again. The job can
// therefore resume with another number of servers and workers.
#include <paceline/error.h>
#include <paceline/log.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "checkpoint/saved_state.h"
#include "parse_body.h"
#include "payload.h"
#include "servers/servers.h"
#include "shared_failure.h"
#include "store.pb.h"

namespace paceline {
namespace {

// The key and the slice, by partition and number of the slice.
using SliceOwners = std::map<std::pair<std::uint32_t, std::uint32_t>, std::pair<const RemoteKey*, const RemoteSlice*>>;

// The first letter of what the leader of a load tells the others: has it begun to change the servers?
constexpr char kUnchanged = 'u', kChanged = 'c';

// Larger arrays of a worker's own state travel in pieces of this size.
constexpr std::int64_t kBlobBytes = std::int64_t{8} << 20;

// The name of a piece: the name of the array, the element at which the piece begins, and the shape of the whole array.
std::string name_of_piece(const std::string& name, std::int64_t begin, const Shape& shape) {
  std::string text = str(name, '\n', begin, '\n');
  for (const std::int64_t extent : shape) text += std::to_string(extent) + " ";
  return text;
}

struct BlobPiece {
  std::string name;
  std::int64_t begin = 0;
  Shape shape;  // of the whole array
};

BlobPiece parse_piece(const std::string& name, const Shape& own_shape) {
  const std::size_t shape_at = name.rfind('\n');
  const std::size_t begin_at = shape_at == std::string::npos ? shape_at : name.rfind('\n', shape_at - 1);
  if (begin_at == std::string::npos) throw Corrupt("a piece of '" + name + "' does not say where it begins");
  BlobPiece piece{name.substr(0, begin_at), 0, {}};
  std::istringstream(name.substr(begin_at + 1, shape_at - begin_at - 1)) >> piece.begin;
  std::istringstream extents(name.substr(shape_at + 1));
  std::vector<std::int64_t> shape;
  for (std::int64_t extent; extents >> extent;) shape.push_back(extent);
  piece.shape = Shape(shape);
  if (piece.begin < 0 || piece.begin + own_shape.size() > piece.shape.size())
    throw Corrupt("a piece of '" + piece.name + "' lies outside of it");
  return piece;
}

std::byte* at(const NDArray& array, std::int64_t element) {
  return static_cast<std::byte*>(array.data()) + static_cast<std::size_t>(element) * size_of(array.dtype());
}

}  // namespace

StoreState ServersBackend::save() {
  pending_->wait_none();
  SharedFailure failure(rank());
  failure.run([&] { send_own_state(); });
  failure.hear(all_gather("/save", failure.told()));
  StoreState state;
  const int leader = client_.met_leader();
  if (leader == rank()) {
    if (!failure) failure.run([&] { state = fetch_whole_state(); });
    failure.run([&] { clear_blobs(); });
  }
  failure.hear(all_gather("/saved", failure.told()), leader);
  failure.rethrow();
  return state;
}

void ServersBackend::send_own_state() {
  NamedArrays mine;
  {
    Lock lock(mutex_);
    if (rule_) mine = rule_->state();
    if (compressor_)
      for (auto& entry : compressor_->state()) mine.push_back(std::move(entry));
  }
  for (const auto& [name, array] : mine) array.wait();
  send_blobs(placement()->keeper_of(rank()), rank(), mine);
}

StoreState ServersBackend::fetch_whole_state() {
  SavedStore store = fetch_state();
  store.clock = clock();
  for (int s = 0; s < servers_; ++s) fetch_blobs(s, -1, &store);
  StoreState state = store.write();
  fetch_tables(state);
  state.counters.emplace_back("workers", std::to_string(workers_));
  return state;
}

SavedStore ServersBackend::fetch_state() {
  SavedStore store;
  SliceOwners owners;
  {
    Lock lock(mutex_);
    for (const auto& [name, key] : keys_) {
      SavedKey& saved = store.keys[name];
      saved.weight = NDArray(key->info.shape, key->info.dtype, {}, engine_);
      saved.weight.wait();
      for (const RemoteSlice& slice : key->slices) owners[{slice.partition->id, slice.number}] = {key.get(), &slice};
    }
  }
  std::vector<std::pair<int, Message>> requests;
  std::vector<std::uint32_t> ids;
  const std::shared_ptr<const Placement> places = placement();
  for (const auto& [id, partition] : partitions_) {
    wire::SaveRequest body;
    body.set_partition(id);
    requests.emplace_back(places->server_of(kDenseKeys, static_cast<int>(id)), message_of(MessageKind::kSave, body));
    ids.push_back(id);
  }
  const std::vector<Message> answers = ask_servers(std::move(requests));
  for (std::size_t i = 0; i < answers.size(); ++i) {
    const auto body = parse_body<wire::SaveReply>(answers[i]);
    PayloadReader payload(answers[i].payload);
    for (const wire::SavedSlice& part : body.slices()) {
      const auto [key, slice] = owners.at({ids[i], part.slice()});
      SavedKey& saved = store.keys[key->info.name];
      SliceCounters& counters = saved.counters;
      counters.version = std::max(counters.version, part.version());
      counters.examples = std::max(counters.examples, part.examples());
      counters.optimizer_updates = std::max(counters.optimizer_updates, part.optimizer_updates());
      counters.policy_updates = std::max(counters.policy_updates, part.policy_updates());
      for (const std::string& name : part.names()) {
        NDArray& array = name == "weight" ? saved.weight : saved.slots[name];
        if (array.is_none()) {
          array = NDArray::zeros(key->info.shape, key->info.dtype, {}, engine_);
          array.wait();
        }
        const std::size_t bytes = static_cast<std::size_t>(slice->end - slice->begin) * size_of(key->info.dtype);
        const std::byte* data = payload.next(bytes);
        if (data) std::memcpy(at(array, slice->begin), data, bytes);
      }
    }
  }
  return store;
}

void ServersBackend::send_blobs(int server, int worker, const NamedArrays& arrays) {
  if (arrays.empty()) return;
  wire::LoadRequest body;
  PayloadWriter payload;
  for (const auto& [name, array] : arrays) {
    const std::int64_t most = kBlobBytes / static_cast<std::int64_t>(size_of(array.dtype()));
    for (std::int64_t begin = 0; begin < array.size() || begin == 0; begin += most) {
      const std::int64_t count = std::min(most, array.size() - begin);
      wire::Blob* blob = body.add_blobs();
      blob->set_worker(static_cast<std::uint32_t>(worker));
      blob->set_name(name_of_piece(name, begin, array.shape()));
      blob->set_dtype(static_cast<int>(array.dtype()));
      blob->add_shape(count);
      payload.add(at(array, begin), static_cast<std::size_t>(count) * size_of(array.dtype()),
                  std::make_shared<NDArray>(array));
    }
  }
  std::vector<std::pair<int, Message>> requests;
  requests.emplace_back(server, message_of(MessageKind::kLoad, body, payload.finish()));
  ask_servers(std::move(requests));
}

NamedArrays ServersBackend::fetch_blobs(int server, int worker, SavedStore* all) {
  wire::SaveRequest request;
  request.set_blobs(true);
  if (!all) request.set_worker(static_cast<std::uint32_t>(worker));
  std::vector<std::pair<int, Message>> requests;
  requests.emplace_back(server, message_of(MessageKind::kSave, request));
  const Message answer = ask_servers(std::move(requests)).front();
  const auto body = parse_body<wire::SaveReply>(answer);
  PayloadReader payload(answer.payload);
  NamedArrays mine;
  std::map<std::pair<int, std::string>, NDArray> arrays;
  for (const wire::Blob& blob : body.blobs()) {
    wire::KeyDeclaration as_key;
    as_key.set_name(blob.name());
    as_key.set_dtype(blob.dtype());
    *as_key.mutable_shape() = blob.shape();
    const KeyInfo info = parse_key(as_key);
    const BlobPiece piece = parse_piece(info.name, info.shape);
    const int owner = static_cast<int>(blob.worker());
    NDArray& array = arrays[{owner, piece.name}];
    if (array.is_none()) {
      array = NDArray(piece.shape, info.dtype, {}, engine_);
      array.wait();
    }
    if (array.dtype() != info.dtype || array.shape() != piece.shape)
      throw Corrupt("pieces of '" + piece.name + "' do not fit together");
    const std::size_t bytes = static_cast<std::size_t>(info.shape.size()) * size_of(info.dtype);
    const std::byte* data = payload.next(bytes);
    if (data) std::memcpy(at(array, piece.begin), data, bytes);
  }
  for (const auto& [place, array] : arrays) {
    const auto& [owner, name] = place;
    if (owner == worker) mine.emplace_back(name, array);
    if (all) all->workers[owner].emplace_back(name, array);
  }
  return mine;
}

void ServersBackend::load_made(const std::function<StoreState()>& make, const std::function<void()>& renewed) {
  pending_->wait_none();
  // Earlier pushes of other workers must arrive before the loaded state. A worker that makes another collective call
  // must not find out after the servers have changed.
  all_gather("/begin load", {});
  const int leader = client_.met_leader();
  const bool leads = leader == rank();
  SharedFailure failure(rank());
  // Have the servers begun to change? The others assume it until the leader speaks, because it may be lost.
  bool changed = !leads;
  std::string outcome;
  if (leads) {
    failure.run_for_all([&] { send_loaded(make(), &changed); });
    outcome = (changed ? kChanged : kUnchanged) + failure.told();
  }
  GatheredValues outcomes = all_gather("/load", outcome);
  if (const auto told = outcomes.find(leader); told != outcomes.end() && !told->second.empty()) {
    changed = told->second.front() == kChanged;
    told->second.erase(0, 1);
  }
  failure.hear(outcomes, leader);
  if (!failure) failure.run([&] { take_share(fetch_blobs(placement()->keeper_of(rank()), rank(), nullptr)); });
  // After a failure too: the next push must name the version of the weights that the servers have now.
  if (changed)
    failure.run([&] {
      pull_loaded();
      renewed();
    });
  failure.hear(all_gather("/loaded", failure.told()));
  SharedFailure clearing(rank());
  if (leads) clearing.run([&] { clear_blobs(); });
  clearing.hear(all_gather("/cleared", clearing.told()));
  failure.rethrow(changed ? kLoadedInPart : "");
  clearing.rethrow();
}

void ServersBackend::send_loaded(const StoreState& state, bool* changed) {
  SavedStore store = SavedStore::read(state);
  {
    Lock lock(mutex_);
    store.require_known(keys_, tables_);
  }
  const auto policy = make_staleness(policy_, setting_.staleness_options, setting_.own);
  adapt_state(store, *make_optimizer(optimizer_), *policy, has_part(policy_, "dana"), setting_.own);
  std::vector<LoadingTable> tables = read_tables(state);
  for (int worker = 0; worker < workers_; ++worker) {
    const NamedArrays share = share_of(store, worker, workers_);
    check_share(share);
    send_blobs(placement()->keeper_of(worker), worker, share);  // until workers take it, a share changes nothing
  }
  std::vector<std::pair<int, Message>> requests = state_requests(store);
  *changed = true;
  ask_servers(std::move(requests));
  send_tables(std::move(tables));
  set_clock(std::max(clock(), store.clock));  // the next barrier moves the other workers' clocks too
}

void ServersBackend::check_share(NamedArrays share) {
  Lock lock(mutex_);
  if (compressor_) Compressor(*compressor_).load(&share);
  if (rule_) rule_->check(share);
}

void ServersBackend::take_share(NamedArrays mine) {
  Lock lock(mutex_);
  if (compressor_) compressor_->load(&mine);
  if (rule_)
    rule_->load(mine);
  else if (!mine.empty())
    LOG(WARNING) << "the checkpoint's worker state is not used under this staleness policy and compression";
}

void ServersBackend::pull_loaded() {
  renew_tables();
  std::vector<PullItem> pulls;
  {
    Lock lock(mutex_);
    for (const auto& [name, key] : keys_) {
      // No call is in flight, and an earlier push may have failed.
      key->order = engine_.new_variable();
      for (RemotePart& part : key->parts) part.order = engine_.new_variable();
      pulls.push_back({name, key->weight});
    }
  }
  pull_exactly(pulls);
}

void ServersBackend::clear_blobs() {
  wire::LoadRequest clear;
  clear.set_clear_blobs(true);
  ask_every_server(message_of(MessageKind::kLoad, clear));
}

std::vector<std::pair<int, Message>> ServersBackend::state_requests(const SavedStore& store) {
  struct Builder {
    wire::LoadRequest body;
    PayloadWriter payload;
  };
  std::map<std::uint32_t, Builder> builders;
  Lock lock(mutex_);
  for (const auto& [name, key] : keys_) {
    const SavedKey& saved = store.find(name, key->info.shape, key->info.dtype);
    std::vector<std::pair<std::string, NDArray>> arrays{{"weight", saved.weight.contiguous()}};
    for (const auto& [slot, array] : saved.slots) arrays.emplace_back(slot, array.contiguous());
    for (const auto& [slot, array] : arrays) array.wait();
    for (const RemoteSlice& slice : key->slices) {
      Builder& builder = builders[slice.partition->id];
      builder.body.set_partition(slice.partition->id);
      wire::SavedSlice* part = builder.body.add_slices();
      part->set_slice(slice.number);
      part->set_version(saved.counters.version);
      part->set_examples(saved.counters.examples);
      part->set_optimizer_updates(saved.counters.optimizer_updates);
      part->set_policy_updates(saved.counters.policy_updates);
      for (const auto& [slot, array] : arrays) {
        part->add_names(slot);
        builder.payload.add(at(array, slice.begin),
                            static_cast<std::size_t>(slice.end - slice.begin) * size_of(array.dtype()),
                            std::make_shared<NDArray>(array));
      }
    }
  }
  std::vector<std::pair<int, Message>> requests;
  for (auto& [id, builder] : builders)
    requests.emplace_back(route_.placement->server_of(kDenseKeys, static_cast<int>(id)),
                          message_of(MessageKind::kLoad, builder.body, builder.payload.finish()));
  return requests;
}

}  // namespace paceline
