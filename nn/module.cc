#include <fnmatch.h>
#include <paceline/module.h>
#include <paceline/parallel.h>
#include <paceline/recorder.h>
#include <paceline/trainer.h>

#include <algorithm>

#include "precision.h"
#include "seed.h"

namespace paceline::nn {
namespace {

void collect(const Layer& layer, const std::string& prefix, std::vector<std::shared_ptr<Parameter>>& all) {
  for (const auto& [name, parameter] : layer.own_parameters()) {
    if (std::ranges::find(all, parameter) != all.end()) continue;
    parameter->name = prefix + name;
    all.push_back(parameter);
  }
  for (const auto& [name, child] : layer.children()) collect(*child, prefix + name + ".", all);
}

// A parameter that is tied has several.
template <class Visitor>
void for_each_name(const Layer& layer, const std::string& prefix, const Visitor& visit) {
  for (const auto& [name, parameter] : layer.own_parameters()) visit(prefix + name, *parameter);
  for (const auto& [name, child] : layer.children()) for_each_name(*child, prefix + name + ".", visit);
}

bool is_elsewhere(const Layer& layer) {
  return (layer.device() && *layer.device() != Device()) ||
         std::any_of(layer.children().begin(), layer.children().end(),
                     [](const auto& child) { return is_elsewhere(*child.second); });
}

void print(const Layer& layer, const std::string& name, int depth, bool devices, std::string& text) {
  text += std::string(static_cast<std::size_t>(2 * depth), ' ') + (name.empty() ? "" : name + " ") + layer.kind();
  for (const auto& [own, parameter] : layer.own_parameters())
    text += " " + own + parameter->value.shape().text() + (parameter->frozen ? " frozen" : "");
  if (devices && layer.device()) text += " on " + layer.device()->name();
  text += "\n";
  for (const auto& [child_name, child] : layer.children()) print(*child, child_name, depth + 1, devices, text);
}

}  // namespace

Parameter* Layer::find(const std::string& name, const Shape& shape) {
  for (const auto& [own, parameter] : parameters_)
    if (own == name) return parameter.get();
  const auto tied = tied_.find(name);
  if (tied == tied_.end() || !*tied->second) return nullptr;
  const std::shared_ptr<Parameter>& shared = *tied->second;
  require(shared->value.shape() == shape, "[", kind(), "] '", name, "' of shape ", shape, " is tied to '", shared->name,
          "' of shape ", shared->value.shape(), ", expected one shape");
  require(!shared->is_row_sparse(), "[", kind(), "] '", name, "' is tied to '", shared->name,
          "', a table of sparse_grad, whose rows only an embedding can use; set sparse_grad = false");
  parameters_.emplace_back(name, shared);
  return shared.get();
}

void Layer::tie(const std::string& name, Layer& other, const std::string& other_name) {
  const auto existing = [](Layer& layer, const std::string& wanted) {
    for (const auto& [own, parameter] : layer.parameters_)
      if (own == wanted) return parameter;
    return std::shared_ptr<Parameter>();
  };
  const std::shared_ptr<Parameter> mine = existing(*this, name), its = existing(other, other_name);
  require(!mine || !its, "[tie] both '", name, "' and '", other_name, "' exist already; tie before the first call");
  Shared& here = tied_[name];
  Shared& there = other.tied_[other_name];
  if (!here) here = there ? there : std::make_shared<std::shared_ptr<Parameter>>();
  require(!there || there == here, "[tie] '", name, "' and '", other_name, "' are each tied to others");
  const std::shared_ptr<Parameter> own = mine ? mine : its;
  require(!own || !*here || *here == own, "[tie] '", name, "' and '", other_name,
          "' cannot be one parameter: both are tied to parameters that exist already; tie before the first call");
  there = here;
  if (own) *here = own;
}

Parameter& Layer::add(const std::string& name, const Shape& shape, const Initializer& initializer,
                      const Context& context, DType dtype) {
  if (is_half(context.compute) && is_half(dtype)) dtype = DType::kFloat32;
  auto created = std::make_shared<Parameter>();
  created->name = name;
  created->value = NDArray(shape, dtype, context.device);
  initializer(created->value, mix(context.seed, name));
  parameters_.emplace_back(name, created);
  if (const auto tied = tied_.find(name); tied != tied_.end()) *tied->second = created;
  return *created;
}

Parameter& Layer::parameter(const std::string& name, const Shape& shape, const Initializer& initializer,
                            const Context& context, DType dtype) {
  if (Parameter* const existing = find(name, shape)) return *existing;
  Parameter& created = add(name, shape, initializer, context, dtype);
  created.gradient = NDArray::zeros(shape, created.value.dtype(), context.device);
  return created;
}

Parameter& Layer::statistic(const std::string& name, const Shape& shape, double value, const Context& context,
                            DType dtype) {
  if (Parameter* const existing = find(name, shape)) return *existing;
  Parameter& created = add(name, shape, constant(value), context, dtype == DType::kFloat64 ? dtype : DType::kFloat32);
  created.statistic = true;
  return created;
}

Parameter& Layer::table(const std::string& name, const Shape& shape, const Initializer& initializer,
                        const Context& context) {
  const std::size_t before = parameters_.size();
  Parameter* const existing = find(name, shape);
  require(
      parameters_.size() == before, "[", kind(), "] '", name,
      "', a table of sparse_grad, is tied to a parameter of another layer, which cannot use rows; set sparse_grad = "
      "false");
  return existing ? *existing : add(name, shape, initializer, context, DType::kFloat32);
}

Parts Layer::operator()(const Parts& x, const Context& context) {
  Context own = context;
  if (context.calls)
    own.seed = mix(context.seed, (*context.calls)++);
  else if (context.training && context.call.is_none())
    own.call = NDArray::full({1}, static_cast<double>(calls_made_++), DType::kInt64, x[0].device(), x[0].engine());
  own.calls = std::make_shared<std::uint64_t>(0);
  own.device = device_.value_or(x.size() == 1 ? x[0].device() : context.device);
  Parts result = forward_parts(x.size() == 1 ? Parts{to_device(x[0], own.device)} : x, own);
  if (!device_ && !parameters_.empty()) device_ = own.device;
  require_what_is_tied();
  return result;
}

void Layer::require_what_is_tied() const {
  for (const auto& [wanted, shared] : tied_) {
    const auto has_it = [&, name = wanted](const auto& parameter) { return parameter.first == name; };
    if (std::ranges::any_of(parameters_, has_it)) continue;
    std::string names;
    for (const auto& [name, parameter] : parameters_) names += " " + name;
    throw InvalidArgument(str("[", kind(), "] there is no parameter '", wanted, "' to tie; there are:", names));
  }
}

NDArray Layer::operator()(const NDArray& x, const Context& context) {
  const Parts result = (*this)(Parts{x}, context);
  require(result.size() == 1, "[", kind(), "] leaves its result in ", result.size(),
          " parts, expected one array; let the last layer gather it");
  return result[0];
}

Parts Layer::forward_parts(const Parts& x, const Context& context) {
  require(x.size() == 1, "[", kind(), "] got its input in ", x.size(),
          " parts on several devices and needs it whole; let the layer before it gather it");
  return {forward(x[0], context)};
}

void Layer::place(Device device) {
  device_ = device;
  for (const auto& [name, parameter] : parameters_) {
    parameter->value = parameter->value.to(device);
    if (!parameter->gradient.is_none()) parameter->gradient = parameter->gradient.to(device);
  }
  for (const auto& [name, child] : children_) child->place(device);
}

const Module& Module::to(Device device) const {
  layer_->place(device);
  return *this;
}

void Module::initialize(const Shape& input, std::uint64_t seed, Device device, DType dtype) const {
  const RecordingScope no_recording(nullptr);
  (*this)(NDArray::zeros(input, dtype, device), {.training = false, .seed = seed, .device = device});
}

std::vector<std::shared_ptr<Parameter>> Module::parameters() const {
  std::vector<std::shared_ptr<Parameter>> all;
  collect(*layer_, "", all);
  return all;
}

std::string Module::describe() const {
  parameters();
  std::string text;
  print(*layer_, "", 0, is_elsewhere(*layer_), text);
  return text + str(parameter_count(), " parameters");
}

std::int64_t Module::parameter_count() const {
  std::int64_t count = 0;
  for (const auto& parameter : parameters())
    if (!parameter->statistic) count += parameter->value.size();
  return count;
}

void Module::set_frozen(const std::string& pattern, bool frozen) const {
  const auto all = parameters();
  require(!all.empty(), "[freeze] the network has no parameters yet: call initialize() first");
  bool any = false;
  std::string names;
  for_each_name(*layer_, "", [&](const std::string& name, Parameter& parameter) {
    names += " " + name;
    if (fnmatch(pattern.c_str(), name.c_str(), 0) != 0) return;
    parameter.frozen = frozen;
    any = true;
  });
  require(any, "[freeze] no parameter is named like '", pattern, "'; there are:", names);
}

void Module::save(const std::string& path) const {
  NamedArrays arrays;
  for (const auto& parameter : parameters()) arrays.emplace_back(parameter->name, parameter->value);
  require(!arrays.empty(), "'", path, "' is not written: the network has no weights yet; call initialize() first");
  save_params(path, arrays);
}

void Module::load(const std::string& path) const { load_weights(*this, path); }

namespace {

// The layer at the beginning of a name such as "0.body.weight", and what is left of the name.
std::pair<Layer*, std::string> owner_of(const Module& module, const std::string& name) {
  Layer* layer = module.layer().get();
  std::string rest = name;
  for (std::size_t dot = rest.find('.'); dot != std::string::npos; dot = rest.find('.')) {
    const auto& children = layer->children();
    const auto child = std::ranges::find(children, rest.substr(0, dot), [](const auto& one) { return one.first; });
    require(child != children.end(), "[tie] there is no layer '", rest.substr(0, dot), "' for '", name, "'");
    layer = child->second.get();
    rest.erase(0, dot + 1);
  }
  return {layer, rest};
}

}  // namespace

void tie(const Module& a, const std::string& name_a, const Module& b, const std::string& name_b) {
  const auto [layer_a, own_a] = owner_of(a, name_a);
  const auto [layer_b, own_b] = owner_of(b, name_b);
  layer_a->tie(own_a, *layer_b, own_b);
}

}  // namespace paceline::nn
