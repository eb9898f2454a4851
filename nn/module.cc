#include <paceline/module.h>
#include <paceline/parallel.h>
#include <paceline/recorder.h>

#include <algorithm>
#include <map>

#include "precision.h"
#include "seed.h"

namespace paceline::nn {
namespace {

void collect(const Layer& layer, const std::string& prefix, std::vector<std::shared_ptr<Parameter>>& all) {
  for (const auto& parameter : layer.own_parameters()) {
    const std::size_t dot = parameter->name.rfind('.');
    parameter->name = prefix + (dot == std::string::npos ? parameter->name : parameter->name.substr(dot + 1));
    all.push_back(parameter);
  }
  for (const auto& [name, child] : layer.children()) collect(*child, prefix + name + ".", all);
}

bool is_elsewhere(const Layer& layer) {
  return (layer.device() && *layer.device() != Device()) ||
         std::any_of(layer.children().begin(), layer.children().end(),
                     [](const auto& child) { return is_elsewhere(*child.second); });
}

void print(const Layer& layer, const std::string& name, int depth, bool devices, std::string& text) {
  text += std::string(static_cast<std::size_t>(2 * depth), ' ') + (name.empty() ? "" : name + " ") + layer.kind();
  for (const auto& parameter : layer.own_parameters())
    text += " " + parameter->name.substr(parameter->name.rfind('.') + 1) + parameter->value.shape().text();
  if (devices && layer.device()) text += " on " + layer.device()->name();
  text += "\n";
  for (const auto& [child_name, child] : layer.children()) print(*child, child_name, depth + 1, devices, text);
}

}  // namespace

Parameter* Layer::find(const std::string& name) const {
  for (const auto& existing : parameters_)
    if (existing->name.substr(existing->name.rfind('.') + 1) == name) return existing.get();
  return nullptr;
}

Parameter& Layer::add(const std::string& name, const Shape& shape, const Initializer& initializer,
                      const Context& context, DType dtype) {
  if (is_half(context.compute) && is_half(dtype)) dtype = DType::kFloat32;
  auto created = std::make_shared<Parameter>();
  created->name = name;
  created->value = NDArray(shape, dtype, context.device);
  initializer(created->value, mix(context.seed, name));
  parameters_.push_back(created);
  return *created;
}

Parameter& Layer::parameter(const std::string& name, const Shape& shape, const Initializer& initializer,
                            const Context& context, DType dtype) {
  if (Parameter* const existing = find(name)) return *existing;
  Parameter& created = add(name, shape, initializer, context, dtype);
  created.gradient = NDArray::zeros(shape, created.value.dtype(), context.device);
  return created;
}

Parameter& Layer::statistic(const std::string& name, const Shape& shape, double value, const Context& context) {
  if (Parameter* const existing = find(name)) return *existing;
  Parameter& created = add(name, shape, constant(value), context, DType::kFloat32);
  created.statistic = true;
  return created;
}

Parameter& Layer::table(const std::string& name, const Shape& shape, const Initializer& initializer,
                        const Context& context) {
  Parameter* const existing = find(name);
  return existing ? *existing : add(name, shape, initializer, context, DType::kFloat32);
}

Parts Layer::operator()(const Parts& x, const Context& context) {
  Context own = context;
  if (context.calls) own.seed = mix(context.seed, (*context.calls)++);
  own.calls = std::make_shared<std::uint64_t>(0);
  own.device = device_.value_or(x.size() == 1 ? x[0].device() : context.device);
  Parts result = forward_parts(x.size() == 1 ? Parts{to_device(x[0], own.device)} : x, own);
  if (!device_ && !parameters_.empty()) device_ = own.device;
  return result;
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
  for (const auto& parameter : parameters_) {
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

void Module::save(const std::string& path) const {
  NamedArrays arrays;
  for (const auto& parameter : parameters()) arrays.emplace_back(parameter->name, parameter->value);
  save_params(path, arrays);
}

void Module::load(const std::string& path) const {
  std::map<std::string, NDArray> stored;
  for (auto& [name, array] : load_params(path)) stored[name] = array;
  const auto parameters = this->parameters();
  for (const auto& parameter : parameters) {
    const auto found = stored.find(parameter->name);
    require(found != stored.end(), "'", path, "' holds no '", parameter->name, "', which the network needs");
    require(found->second.shape() == parameter->value.shape(), "'", parameter->name, "' has shape ",
            found->second.shape(), " in '", path, "', but ", parameter->value.shape(), " in the network");
    parameter->value.copy_from(found->second);
    stored.erase(found);
  }
  require(stored.empty(), "'", path, "' holds '", stored.empty() ? "" : stored.begin()->first,
          "', which the network does not have");
}

}  // namespace paceline::nn
