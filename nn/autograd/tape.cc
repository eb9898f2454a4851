#include "autograd/sum.h"
#include "autograd/values.h"

#include <paceline/autograd.h>
#include <paceline/detail/array_builder.h>
#include <paceline/ops.h>

#include <algorithm>
#include <deque>
#include <optional>

namespace paceline {
namespace {

using detail::Layout;

// An array whose contents a gradient rule needs, and the writes to it so far.
struct Saved {
  NDArray array;
  const char* what;
  std::uint64_t writes;
};

using Read = Recorder::Seen::Read;

// A step of the program: a call of an operator, or a write of one value into the memory of others.
struct Entry {
  std::optional<OpCall> call = {};
  std::vector<Layout> inputs = {};  // of a call; of a write, its result
  std::vector<Read> reads = {};     // of a call; of a write, what its result keeps elements of
  std::vector<ValueId> outputs = {};
  std::vector<Saved> saved = {};
  // Of a write:
  Layout written = {};
  std::optional<ValueId> source = {};  // none: constants
};

struct Leaf {
  ValueId value = 0;
  Variable variable;
  Layout layout;
  NDArray gradient = {};
  bool sparse = false;
  Gradient result = {};
};

struct CopyAttributes {
  Device from;
};

const OpDef& copy_from_operator() {
  static const OpDef& op =
      *new OpDef(OpDef("copy_from")
                     .attributes<CopyAttributes>()
                     .input("source")
                     .gradient([](const OpCall& call, const std::vector<NDArray>& gradients) -> std::vector<Gradient> {
                       const auto& [shape, dtype] = call.input_specs[0];
                       const NDArray gradient = sum_to(gradients[0], shape);
                       return {(gradient.dtype() == dtype ? gradient : gradient.cast(dtype))
                                   .to(call.attributes<CopyAttributes>().from)};
                     }));
  return op;
}

// A rule of one's own may be wrong, and what it gives would be broadcast where it is added.
void require_shape(const OpCall& call, std::size_t input, const Gradient& gradient) {
  const Shape& shape = gradient.is_sparse() ? gradient.sparse.shape : gradient.dense.shape();
  const Shape& expected = call.input_specs[input].shape;
  if (shape != expected)
    throw InvalidArgument(str("[", call.op->name(), "] the gradient rule gives ", shape, " for input ", input,
                              ", whose shape is ", expected));
}

}  // namespace

struct Tape::Impl {
  std::optional<RecordingScope> scope;
  std::vector<Entry> entries;
  std::deque<Leaf> leaves;
  Values values;
  const detail::NotesWrites notes;
  bool used_up = false;

  void add_leaf(Leaf leaf, const NDArray& value);
  void require_unwatched(const ValueIds& overwritten, const char* who) const;
  static void require_not_stopped(const NDArray& target, const char* who);
  void wrote(const NDArray& target, std::optional<ValueId> source, const ValueIds& overwritten);
  void check_unchanged(const Entry& entry) const;
};

Tape::Tape() : impl_(std::make_unique<Impl>()) { impl_->scope.emplace(this); }
Tape::~Tape() = default;

// A view of a value that is there already stands for its part of that value, with what the Tape knows of it.
void Tape::Impl::add_leaf(Leaf leaf, const NDArray& value) {
  require(!ArrayBuilder::is_stopped(value), "[Tape::watch] the array is constant: stop_gradient() made it");
  require(scope.has_value(), "[Tape::watch] the tape's backward() or stop() was called: watch arrays before what is ",
          "computed from them");
  require(!detail::repeats_elements(value), "[Tape::watch] ", value.describe(),
          " shows elements more than once (broadcast_to); watch the array that it was made of");
  const ValueIds shown = values.shown_by(value, "Tape::watch");
  const bool within = shown.size() == 1 && detail::covers(values[shown[0]].layout, leaf.layout);
  for (const ValueId id : shown)
    require(within || values[id].made_by == Value::kWatched, "[Tape::watch] ", value.describe(),
            " holds elements that are computed from watched arrays beside others; watch these parts one by one");
  if (within) {
    leaf.value = shown[0];
  } else {
    leaf.value = values.add(value, Value::kWatched);
    values.enter(leaf.value);
  }
  leaves.push_back(std::move(leaf));
}

void Tape::watch(const NDArray& value, const NDArray& gradient) {
  require(!value.is_none() && !gradient.is_none(), "[Tape::watch] the ", value.is_none() ? "value" : "gradient",
          " is none");
  require(value.shape() == gradient.shape() && value.dtype() == gradient.dtype() && value.device() == gradient.device(),
          "[Tape::watch] the gradient is ", gradient.describe(), ", the value ", value.describe());
  require(!detail::repeats_elements(gradient),
          "[Tape::watch] the gradient shows elements more than once (broadcast_to); give ", "an array of its own");
  impl_->add_leaf({.variable = value.variable(), .layout = Layout::of(value), .gradient = gradient}, value);
}

void Tape::watch_sparse(const NDArray& value) {
  impl_->add_leaf({.variable = value.variable(), .layout = Layout::of(value), .sparse = true}, value);
}

Gradient Tape::sparse_gradient(const NDArray& value) const {
  const auto found = std::ranges::find_if(impl_->leaves, [&](const Leaf& leaf) {
    return leaf.sparse && leaf.variable.state() == value.variable().state() && leaf.layout == Layout::of(value);
  });
  require(found != impl_->leaves.end(), "[Tape::sparse_gradient] the array is not watched");
  return found->result;
}

void Tape::stop() {
  require(!impl_->scope || impl_->scope->is_of_this_thread(),
          "[Tape] a tape records on the thread that made it; call stop() or backward() there first");
  impl_->scope.reset();
}

// ---- Recording ----

void Tape::Impl::require_unwatched(const ValueIds& overwritten, const char* who) const {
  for (const ValueId id : overwritten)
    require(values[id].made_by != Value::kWatched, "[", who,
            "] would overwrite an array that a Tape watches, whose gradient would then mean nothing; write into a "
            "copy(), or after the tape's backward() or stop()");
}

// Reads of the handle would go on to be constants, whatever is written.
void Tape::Impl::require_not_stopped(const NDArray& target, const char* who) {
  require(
      !ArrayBuilder::is_stopped(target), "[", who,
      "] would write what a Tape follows into an array that stop_gradient() made constant; write into a copy() of it, "
      "or into the array that it was made of");
}

// The memory of `target` holds what `source` computes, or constants; it held elements of the values `overwritten`.
void Tape::Impl::wrote(const NDArray& target, std::optional<ValueId> source, const ValueIds& overwritten) {
  const Layout written = Layout::of(target);
  values.saw_write(target);
  const bool all_gone =
      std::ranges::all_of(overwritten, [&](const ValueId id) { return detail::covers(written, values[id].layout); });
  if (all_gone) {
    for (const ValueId id : overwritten) values.leave(id);
    if (source) values.enter(*source);
    return;
  }
  // Parts of the old values stay: they and the new part are one new value.
  ValueIds old = overwritten;
  Layout layout = values[old[0]].layout;
  if (old.size() > 1 || layout.offset > written.offset || layout.end() < written.end() ||
      !is_dense(layout.shape, layout.strides)) {
    layout = detail::whole_block(target);
    old = values.under(target, layout);
    // Those are not written, and go on to be watched.
    std::erase_if(old, [this](const ValueId id) { return values[id].made_by == Value::kWatched; });
  }
  Entry entry{.inputs = {layout}, .written = written, .source = source};
  for (const ValueId id : old) {
    require(size_of(values[id].layout.dtype) == size_of(target.dtype()), "[Tape] ", target.describe(),
            " lies in memory that holds ", name_of(values[id].layout.dtype), ", too; a Tape cannot follow that");
    entry.reads.push_back({0, id});
    values.leave(id);
  }
  entry.outputs.push_back(values.add(target, layout, entries.size()));
  for (const ValueId id : old)
    if (!detail::covers(written, values[id].layout)) values.has_seen(entry.outputs.back(), values[id].writes);
  values.enter(entry.outputs.back());
  entries.push_back(std::move(entry));
}

Recorder::Seen Tape::see(const OpDef& op, const std::vector<NDArray>& inputs, const NDArray* target) {
  Seen seen;
  for (std::size_t i = 0; i < inputs.size() && op.has_gradient(); ++i)
    for (const ValueId value : impl_->values.shown_by(inputs[i], op.name().c_str())) seen.reads.push_back({i, value});
  // What the call writes without a gradient. A refusal after the launch would come too late.
  for (std::size_t i = 0; i < inputs.size() && !op.is_variadic(); ++i)
    if (op.inputs()[i].mutated && !inputs[i].is_none())
      impl_->require_unwatched(impl_->values.under(inputs[i], Layout::of(inputs[i])), op.name().c_str());
  if (target) {
    const ValueIds overwritten = impl_->values.under(*target, Layout::of(*target));
    impl_->require_unwatched(overwritten, op.name().c_str());
    if (!seen.reads.empty() || !overwritten.empty()) Impl::require_not_stopped(*target, op.name().c_str());
    seen.overwritten.assign(overwritten.begin(), overwritten.end());
  }
  if (seen.reads.empty()) return seen;
  seen.writes.reserve(inputs.size());
  for (const NDArray& input : inputs) seen.writes.push_back(input.is_none() ? 0 : detail::writes_to(input));
  return seen;
}

void Tape::record(OpCall call, Seen seen, const std::vector<NDArray>& inputs, const std::vector<NDArray>& outputs) {
  Values& values = impl_->values;
  const char* const who = call.op->name().c_str();
  const bool in_place = !seen.overwritten.empty();
  std::vector<ValueId> made;
  if (!seen.reads.empty()) {
    Entry entry;
    call.wants.assign(inputs.size(), false);
    for (const NDArray& input : inputs) entry.inputs.push_back(input.is_none() ? Layout() : Layout::of(input));
    for (const auto& [input, value] : seen.reads) {
      call.wants[input] = true;
      entry.reads.push_back({input, value});
    }
    for (std::size_t i = 0; i < call.inputs.size(); ++i) {
      const NDArray& saved = call.inputs[i];
      if (saved.is_none()) continue;
      const bool copied = !saved.shares_memory_with(inputs[i]);
      entry.saved.push_back({saved, "an input", copied ? detail::writes_to(saved) : seen.writes[i]});
    }
    for (const NDArray& saved : call.outputs)
      if (!saved.is_none()) entry.saved.push_back({saved, "an output", detail::writes_to(saved)});
    for (const NDArray& output : outputs) made.push_back(values.add(output, impl_->entries.size()));
    entry.outputs = made;
    entry.call = std::move(call);
    impl_->entries.push_back(std::move(entry));
  }
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const ValueIds under = in_place ? ValueIds(seen.overwritten.begin(), seen.overwritten.end())
                                    : values.under(outputs[i], Layout::of(outputs[i]));
    impl_->require_unwatched(under, who);
    impl_->wrote(outputs[i], made.empty() ? std::nullopt : std::optional(made[i]), under);
  }
}

void Tape::wrote_constants(const NDArray& array) {
  const ValueIds overwritten = impl_->values.under(array, Layout::of(array));
  impl_->require_unwatched(overwritten, "an operator");
  if (overwritten.empty())
    impl_->values.saw_write(array);
  else
    impl_->wrote(array, std::nullopt, overwritten);
}

void Tape::copy(const NDArray& source, const NDArray& to, int priority) {
  Seen seen = see(copy_from_operator(), {source}, &to);
  Recorder::copy(source, to, priority);
  if (!is_floating(to.dtype()) || !is_floating(source.dtype())) seen.reads.clear();
  if (seen.is_none()) return impl_->values.saw_write(to);
  OpCall call;
  call.op = &copy_from_operator();
  call.inputs.resize(1);
  call.outputs.resize(1);
  call.input_specs = {{source.shape(), source.dtype()}};
  call.attribute_data = std::make_shared<CopyAttributes>(CopyAttributes{source.device()});
  record(std::move(call), std::move(seen), {source}, {to});
}

void Tape::fill(const NDArray& array, double value) {
  const ValueIds overwritten = impl_->values.under(array, Layout::of(array));
  impl_->require_unwatched(overwritten, "fill");
  if (!overwritten.empty()) Impl::require_not_stopped(array, "fill");
  Recorder::fill(array, value);
  wrote_constants(array);
}

// ---- Differentiation ----

void Tape::Impl::check_unchanged(const Entry& entry) const {
  for (const Saved& saved : entry.saved)
    require(!detail::written_since(saved.array, saved.writes), "[", entry.call->op->name(), "] ", saved.what,
            " was written in place after it was recorded, so its gradient cannot be computed; write to a copy");
}

void Tape::backward(const NDArray& loss, BackwardOptions options) {
  require(loss.size() == 1, "[Tape::backward] the loss is ", loss.describe(),
          ", expected one element: call sum() or mean() first, or give the gradient with respect to it");
  backward(loss, NDArray::full(loss.shape(), 1, loss.dtype(), loss.device(), loss.engine()), options);
}

void Tape::backward(const NDArray& result, const NDArray& gradient, BackwardOptions options) {
  Impl& impl = *impl_;
  require(!impl.used_up,
          "[Tape::backward] an earlier backward() has used up the record; call that one with {.keep = true}");
  require(
      gradient.shape() == result.shape() && gradient.dtype() == result.dtype() && gradient.device() == result.device(),
      "[Tape::backward] the gradient is ", gradient.describe(), ", the array ", result.describe());
  const ValueIds start = impl.values.shown_by(result, "Tape::backward");
  require(!start.empty(), "[Tape::backward] the loss does not depend on any watched array");
  stop();
  const RecordingScope no_recording(nullptr);
  impl.used_up = !options.keep;

  std::unordered_map<ValueId, Sum> sums;
  const auto sum_of = [&](ValueId id) -> Sum& { return sums.try_emplace(id, impl.values[id].layout).first->second; };
  for (const ValueId id : start) sum_of(id).add(gradient, Layout::of(result));

  // A leaf's gradient is final once its first use has been passed; handing it over there, not at the end, lets the
  // store send it while the rest of backward runs.
  std::unordered_map<ValueId, std::vector<Leaf*>> leaves;
  for (Leaf& leaf : impl.leaves) leaves[leaf.value].push_back(&leaf);
  std::unordered_map<ValueId, std::size_t> first_use;
  for (std::size_t i = 0; i < impl.entries.size(); ++i)
    for (const Read& read : impl.entries[i].reads)
      if (leaves.contains(read.value)) first_use.emplace(read.value, i);

  const auto finish = [&](ValueId value) {
    const auto sum = sums.find(value);
    const bool reached = sum != sums.end() && !sum->second.is_none();
    for (Leaf* const leaf : leaves.at(value)) {
      if (leaf->sparse) {
        leaf->result = reached ? sum->second.gradient() : Gradient();
        // The sum's own memory goes on to the values that this one is computed from.
        if (leaf->result.dense.is_none() || impl.values[value].made_by == Value::kWatched) continue;
        leaf->result = leaf->result.dense.clone();
        continue;
      }
      const NDArray part = reached ? sum->second.at(leaf->layout) : NDArray();
      if (part.is_none()) {
        if (!options.accumulate) leaf->gradient.fill(0);
      } else if (options.accumulate) {
        kernels::add(leaf->gradient, part, leaf->gradient);
      } else {
        leaf->gradient.copy_from(part);
      }
    }
    leaves.erase(value);
    if (impl.values[value].made_by == Value::kWatched) sums.erase(value);
  };

  const auto differentiate_call = [&](Entry& entry) {
    std::vector<NDArray> of_outputs;
    bool reached = false;
    for (const ValueId output : entry.outputs) {
      const auto found = sums.find(output);
      const bool has = found != sums.end() && !found->second.is_none();
      of_outputs.push_back(has ? to_dense(found->second.gradient()) : NDArray());
      reached |= has;
      if (leaves.contains(output)) finish(output);
      if (found != sums.end()) sums.erase(found);
    }
    if (!reached) return;
    impl.check_unchanged(entry);
    const std::vector<Gradient> gradients = entry.call->op->gradient_rule()(*entry.call, of_outputs);
    std::vector<GradientPart> parts;
    parts.reserve(gradients.size());
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const bool used = entry.call->wants_gradient(i) && !gradients[i].is_none();
      if (used) require_shape(*entry.call, i, gradients[i]);
      parts.emplace_back(used ? gradients[i] : Gradient(), used ? entry.inputs[i] : Layout());
    }
    for (const auto& [input, value] : entry.reads)
      if (input < parts.size() && !parts[input].gradient.is_none()) sum_of(value).add(parts[input]);
  };

  const auto differentiate_write = [&](Entry& entry) {
    const auto found = sums.find(entry.outputs[0]);
    if (found == sums.end() || found->second.is_none()) return;
    if (leaves.contains(entry.outputs[0])) finish(entry.outputs[0]);
    Sum sum = std::move(found->second);
    sums.erase(found);
    if (entry.source) sum_of(*entry.source).add(sum.at(entry.written).clone(), entry.written, true);
    sum.clear(entry.written);
    // The memory itself goes on where it can: of many writes into one array, each costs no more than its part.
    const ValueId first = entry.reads[0].value;
    if (entry.reads.size() == 1 && impl.values[first].layout == entry.inputs[0] && sum_of(first).is_none()) {
      sum_of(first) = std::move(sum);
      return;
    }
    for (const Read& read : entry.reads) sum_of(read.value).add(sum.gradient(), entry.inputs[0]);
  };

  for (std::size_t i = impl.entries.size(); i-- > 0;) {
    Entry& entry = impl.entries[i];
    entry.call ? differentiate_call(entry) : differentiate_write(entry);
    for (const Read& read : entry.reads) {
      const auto use = first_use.find(read.value);
      if (use == first_use.end() || use->second != i) continue;
      first_use.erase(use);
      finish(read.value);
    }
    if (!options.keep) entry = {};  // frees what was saved as early as possible
  }
  while (!leaves.empty()) finish(leaves.begin()->first);
  if (options.keep) return;
  impl.entries.clear();
  impl.values.clear();
}

NDArray stop_gradient(const NDArray& x) { return ArrayBuilder::stopped(x); }

}  // namespace paceline
