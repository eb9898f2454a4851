#pragma once
// One call of push, pull or push_pull in flight. Transfer makes messages to many servers from the gradients of many
// keys, and writes the weights from the answers.

#include <paceline/backend.h>
#include <paceline/compression.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "key_partition.h"
#include "send/remote_slice.h"
#include "send/store_call.h"

namespace paceline {

// Neighbouring slices of a large key, which are sent as soon as they are on the host.
struct RemotePart {
  std::span<RemoteSlice> slices;
  Variable order;  // as RemoteKey::order, but for the part
};

// A key of this worker. The members that every call reads come first.
struct RemoteKey {
  RemoteKey* next = nullptr;  // the key that the last call named after this one; the next call probably does too
  std::uint64_t call = 0;     // number of the last call that pushes the key
  std::size_t place = 0;      // index of the key in that call's list
  KeyInfo info;
  Variable order;  // written by every task about this key, so that these run in order; parts have their own
  std::optional<std::uint64_t> last_step;  // the last step that pushed the key
  std::int64_t unpulled_pushes = 0;        // pushes since a rule last predicted pulled weights
  std::vector<RemoteSlice> slices;         // by their place in the key
  std::vector<RemotePart> parts;           // made when they are first used
  NDArray weight;                          // the array that holds the worker's weights

  // Appends the variables that order tasks about the whole key.
  void add_orders(std::vector<Variable>* variables) const {
    if (parts.empty()) variables->push_back(order);
    for (const RemotePart& part : parts) variables->push_back(part.order);
  }
};

// A codec and the text that names it to a server.
struct WireCodec {
  std::string text;
  std::shared_ptr<const Codec> codec;
};

// An encoded gradient. The engine task that writes `bytes` also sets the sizes of `slices`.
struct EncodedGradient {
  struct Slice {
    std::size_t offset = 0, bytes = 0;
  };
  std::shared_ptr<const WireCodec> codec;
  NDArray bytes;
  std::vector<Slice> slices;  // in the order of the key's slices
};

class Transfer final : public StoreCall, public SmallCaller, public std::enable_shared_from_this<Transfer> {
 public:
  // A row-major array on the CPU. It is smaller than an NDArray, because a call may hold ten thousand.
  struct Bytes {
    std::shared_ptr<const void> owner;   // null: no array
    const Variable* variable = nullptr;  // the owner's variable
    std::byte* data = nullptr;
    std::size_t size = 0;

    static Bytes of(const NDArray& array);
    explicit operator bool() const { return owner != nullptr; }
  };
  struct Item {
    RemoteKey* key;
    Bytes gradient;  // none: the key is only pulled
    Bytes out;       // none: the key is only pushed
    std::uint64_t need = 0;
    std::shared_ptr<const EncodedGradient> encoded = nullptr;  // not null: `gradient` holds the encoded bytes
    std::shared_ptr<const WireCodec> pull_codec = nullptr;     // null: the weights come raw
    RemotePart* part = nullptr;                                // null: the whole key; else the arrays are this part's

    std::span<RemoteSlice> slices() const { return part ? part->slices : key->slices; }
    void add_orders(std::vector<Variable>* variables) const {
      part ? variables->push_back(part->order) : key->add_orders(variables);
    }
    // The byte offset of the slice in the arrays.
    std::size_t offset(const RemoteSlice& slice) const {
      return static_cast<std::size_t>(slice.begin - slices().front().begin) * size_of(key->info.dtype);
    }
  };
  Transfer(Route route, std::vector<Item> items, std::shared_ptr<Step> step, std::int64_t examples, int priority);

  std::vector<Variable> reads() const;
  std::vector<Variable> writes() const;
  // Sends the call, whose gradients are ready. Calls done() or fail() of `completion` when everything is answered.
  void start(Completion completion);

 private:
  struct Outgoing;
  struct Batch;
  struct Run;

  Run run_of(const Item& item, RemoteSlice& slice, bool push, bool pull) const;
  void send_messages(bool pushes, bool pulls) override;
  void release() override { items_.clear(); }
  // Makes a message of runs to one server. `pulls_apart`: the pulls go into a separate message, which follows.
  std::unique_ptr<Outgoing> make_message(std::span<const Run> runs, bool pulls_apart);
  // True if the call may share messages with others: few bytes, nothing encoded, and no pull that may be held back.
  bool is_small(bool pushes, bool pulls) const;
  void send_small(bool pushes, bool pulls);
  void send_large(bool pushes, bool pulls);
  void on_answered(std::uint64_t waited_microseconds, const std::exception_ptr& error) override;
  void submit(std::shared_ptr<Outgoing> message);
  void receive(const Batch& batch, const Message& answer);
  void finish_push();

  std::vector<Item> items_;
  bool small_ = false;           // the next messages may be shared with others
  bool streams_ = false;         // the pulled weights are too many for the caches
  std::atomic<int> pushing_{0};  // messages with gradients that are not answered
};

}  // namespace paceline
