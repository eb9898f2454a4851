#include <paceline/autograd.h>
#include <paceline/ops.h>

#include <map>
#include <optional>
#include <tuple>

namespace paceline {
namespace {

// Names a value for as long as its Variable lives; the tape keeps Variables, not memory.
struct Key {
  detail::VariableState* variable = nullptr;
  const void* data = nullptr;
  std::vector<std::int64_t> layout;  // shape and strides: views of the same memory are different values

  explicit Key(const NDArray& array) {
    if (array.is_none()) return;
    variable = array.variable().state();
    data = array.data();
    layout.assign(array.shape().begin(), array.shape().end());
    layout.insert(layout.end(), array.strides().begin(), array.strides().end());
  }
  auto operator<=>(const Key&) const = default;
};

struct Saved {
  const char* what;
  Variable variable;
  std::uint64_t version;
};

struct Entry {
  OpCall call;
  std::vector<Key> inputs, outputs;
  std::vector<Variable> alive;  // keeps the keys' Variables from being reused
  std::vector<Saved> saved;
};

struct Leaf {
  NDArray value = {}, gradient = {};
  bool sparse = false;
  bool finished = false;
  Gradient result = {};
};

// A gradient that is being summed. `owned`: made here, so it may be added to in place.
struct Sum {
  Gradient gradient;
  bool owned = false;
};

NDArray to_dense(const Gradient& gradient) {
  if (!gradient.is_sparse()) return gradient.dense;
  const RowSparse& rows = gradient.sparse;
  const NDArray dense = NDArray::zeros(rows.shape, rows.values.dtype(), rows.values.device(), rows.values.engine());
  scatter_add(dense, rows);
  return dense;
}

void add_to(Sum& sum, Gradient part) {
  if (sum.gradient.is_none()) {
    sum.gradient = std::move(part);
    return;
  }
  if (sum.gradient.is_sparse() && part.is_sparse()) {
    const RowSparse &a = sum.gradient.sparse, &b = part.sparse;
    sum = {RowSparse{concat({a.rows, b.rows}, 0), concat({a.values, b.values}, 0), a.shape}, true};
    return;
  }
  const NDArray a = to_dense(sum.gradient), b = to_dense(part);
  const NDArray out = sum.owned ? a : NDArray(a.shape(), a.dtype(), a.device(), a.engine());
  kernels::add(a, b, out);
  sum = {Gradient(out), true};
}

}  // namespace

struct Tape::Impl {
  std::optional<RecordingScope> scope;
  std::vector<Entry> entries;
  std::map<Key, Leaf> leaves;
  std::map<Key, std::size_t> tracked;  // value -> entry that made it; leaves: kLeaf
  static constexpr std::size_t kLeaf = static_cast<std::size_t>(-1);

  void finish_leaf(Leaf& leaf, Sum sum, bool accumulate) {
    leaf.finished = true;
    if (leaf.sparse) {
      leaf.result = std::move(sum.gradient);
    } else if (sum.gradient.is_none()) {
      if (!accumulate) leaf.gradient.fill(0);
    } else if (accumulate) {
      kernels::add(leaf.gradient, to_dense(sum.gradient), leaf.gradient);
    } else {
      leaf.gradient.copy_from(to_dense(sum.gradient));
    }
  }

  void check_unchanged(const Entry& entry) const {
    for (const Saved& saved : entry.saved)
      require(saved.variable.version() == saved.version, "[", entry.call.op->name(), "] ", saved.what,
              " was written in place after it was recorded, so its gradient cannot be computed; write to a copy");
  }
};

Tape::Tape() : impl_(std::make_unique<Impl>()) { impl_->scope.emplace(this); }
Tape::~Tape() = default;

void Tape::watch(const NDArray& value, const NDArray& gradient) {
  require(value.shape() == gradient.shape() && value.dtype() == gradient.dtype(), "[Tape::watch] the gradient is ",
          gradient.describe(), ", the value ", value.describe());
  const Key key(value);
  impl_->leaves[key] = Leaf{.value = value, .gradient = gradient};
  impl_->tracked[key] = Impl::kLeaf;
}

void Tape::watch_sparse(const NDArray& value) {
  const Key key(value);
  impl_->leaves[key] = Leaf{.value = value, .sparse = true};
  impl_->tracked[key] = Impl::kLeaf;
}

Gradient Tape::sparse_gradient(const NDArray& value) const {
  const auto found = impl_->leaves.find(Key(value));
  require(found != impl_->leaves.end() && found->second.sparse, "[Tape::sparse_gradient] the array is not watched");
  return found->second.result;
}

void Tape::stop() { impl_->scope.reset(); }

bool Tape::wants(const OpDef& op, const std::vector<NDArray>& inputs) const {
  if (!op.has_gradient()) return false;
  for (const NDArray& input : inputs)
    if (!input.is_none() && impl_->tracked.count(Key(input))) return true;
  return false;
}

bool Tape::follows_memory_of(const NDArray& array) const {
  if (array.is_none()) return false;
  for (const auto& [key, made_by] : impl_->tracked)
    if (key.variable == array.variable().state()) return true;
  return false;
}

void Tape::record(OpCall call, const std::vector<NDArray>& inputs, const std::vector<NDArray>& outputs) {
  Entry entry;
  call.wants.clear();
  for (const NDArray& input : inputs) {
    entry.inputs.emplace_back(input);
    call.wants.push_back(!input.is_none() && impl_->tracked.count(entry.inputs.back()) > 0);
    if (!input.is_none()) entry.alive.push_back(input.variable());
  }
  for (const NDArray& output : outputs) {
    entry.outputs.emplace_back(output);
    impl_->tracked[entry.outputs.back()] = impl_->entries.size();
    entry.alive.push_back(output.variable());
  }
  for (const NDArray& input : call.inputs)
    if (!input.is_none()) entry.saved.push_back({"an input", input.variable(), input.variable().version()});
  for (const NDArray& output : call.outputs)
    if (!output.is_none()) entry.saved.push_back({"an output", output.variable(), output.variable().version()});
  entry.call = std::move(call);
  impl_->entries.push_back(std::move(entry));
}

void Tape::backward(const NDArray& loss, bool accumulate) {
  stop();
  const RecordingScope no_recording(nullptr);
  std::vector<Entry> entries = std::move(impl_->entries);
  impl_->entries.clear();
  require(impl_->tracked.count(Key(loss)) > 0, "[Tape::backward] the loss does not depend on any watched array");

  for (auto& [key, leaf] : impl_->leaves) leaf.finished = false;
  std::map<Key, Sum> sums;
  sums[Key(loss)] = {NDArray::full(loss.shape(), 1, loss.dtype(), loss.device(), loss.engine()), true};

  // A leaf's gradient is final once its first use has been passed; handing it over there, not at the end, lets the
  // store send it while the rest of backward runs.
  std::map<Key, std::size_t> first_use;
  for (std::size_t i = 0; i < entries.size(); ++i)
    for (const Key& input : entries[i].inputs)
      if (impl_->leaves.count(input)) first_use.emplace(input, i);

  for (std::size_t i = entries.size(); i-- > 0;) {
    Entry& entry = entries[i];
    std::vector<NDArray> output_gradients;
    bool reached = false;
    for (const Key& output : entry.outputs) {
      const auto found = sums.find(output);
      output_gradients.push_back(found == sums.end() ? NDArray() : to_dense(found->second.gradient));
      if (found != sums.end()) {
        reached = true;
        sums.erase(found);
      }
    }
    if (reached) {
      impl_->check_unchanged(entry);
      std::vector<Gradient> gradients = entry.call.op->gradient_rule()(entry.call, output_gradients);
      for (std::size_t k = 0; k < gradients.size() && k < entry.inputs.size(); ++k)
        if (entry.call.wants[k] && !gradients[k].is_none()) add_to(sums[entry.inputs[k]], std::move(gradients[k]));
    }
    for (const Key& input : entry.inputs) {
      const auto use = first_use.find(input);
      if (use == first_use.end() || use->second != i) continue;
      first_use.erase(use);
      impl_->finish_leaf(impl_->leaves.at(input), std::move(sums[input]), accumulate);
      sums.erase(input);
    }
    entry = {};  // frees what was saved as early as possible
  }
  for (auto& [key, leaf] : impl_->leaves)
    if (!leaf.finished) impl_->finish_leaf(leaf, std::move(sums[key]), accumulate);
  impl_->tracked.clear();
  for (const auto& [key, leaf] : impl_->leaves) impl_->tracked[key] = Impl::kLeaf;
}

}  // namespace paceline
