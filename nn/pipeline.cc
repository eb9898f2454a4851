#include "pipeline.h"

#include <paceline/recorder.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <numeric>

namespace paceline::nn {

std::vector<int> cut(const std::vector<double>& costs, std::size_t runs) {
  const std::size_t count = costs.size();
  std::vector<double> before(count + 1);
  std::partial_sum(costs.begin(), costs.end(), before.begin() + 1);
  // greatest[r][n]: the greatest of r + 1 runs over the first n elements; the last of them begins at begin[r][n].
  std::vector<std::vector<double>> greatest(runs, before);
  std::vector<std::vector<std::size_t>> begin(runs, std::vector<std::size_t>(count + 1));
  for (std::size_t r = 1; r < runs; ++r)
    for (std::size_t n = r + 1; n <= count; ++n) {
      greatest[r][n] = std::numeric_limits<double>::infinity();
      for (std::size_t b = r; b < n; ++b) {
        const double most = std::max(greatest[r - 1][b], before[n] - before[b]);
        if (most > greatest[r][n]) continue;
        greatest[r][n] = most;
        begin[r][n] = b;
      }
    }
  std::vector<int> begins(runs - 1);
  for (std::size_t r = runs, n = count; --r > 0; n = begin[r][n]) begins[r - 1] = static_cast<int>(begin[r][n]);
  return begins;
}

PipelineLayer::PipelineLayer(const Module& net, const std::vector<Device>& devices, const PipelineOptions& options)
    : body_(net), devices_(devices), options_(options) {
  require(net.layer()->kind() == "Sequential", "[Pipeline] cuts a Sequential into stages, got a ", net.layer()->kind());
  for (const auto& [name, child] : net.layer()->children()) add_child(name, child);
  const std::vector<int>& begins = options.begins;
  require(!devices.empty() && devices.size() <= children().size(), "[Pipeline] cannot cut ", children().size(),
          " modules into ", devices.size(), " stages, one for each device");
  require(options.micro_batches >= 1, "[Pipeline] micro_batches is ", options.micro_batches, ", expected at least 1");
  require(begins.empty() || begins.size() + 1 == devices.size(), "[Pipeline] there are ", devices.size(),
          " devices, but begins of ", begins.size() + 1, " stages");
  for (std::size_t i = 0; i < begins.size(); ++i)
    require(begins[i] > (i == 0 ? 0 : begins[i - 1]) && begins[i] < static_cast<int>(children().size()),
            "[Pipeline] stage ", i + 1, " begins with module ", begins[i], ", expected rising numbers from 1 to ",
            children().size() - 1);
  if (!begins.empty()) place_stages(begins);
}

const PipelineLayer* PipelineLayer::of(const Module& module) {
  return dynamic_cast<const PipelineLayer*>(module.layer().get());
}

void PipelineLayer::place_stages(const std::vector<int>& begins) {
  std::size_t stage = 0;
  for (std::size_t i = 0; i < children().size(); ++i) {
    if (stage < begins.size() && static_cast<int>(i) == begins[stage]) ++stage;
    children()[i].second->place(devices_[stage]);
  }
  placed_ = true;
}

// What each module costs. Makes the parameters, on the CPU, which has room for all of them.
std::vector<double> PipelineLayer::measure(const NDArray& x, const Context& context) const {
  const RecordingScope no_recording(nullptr);
  for (const auto& [name, child] : children()) child->place(Device());
  Context own = context;
  own.training = false;
  body_(x, own);
  std::vector<double> costs;
  NDArray value = x.to(Device());
  for (const auto& [name, child] : children()) {
    double cost = 0;
    if (options_.balance == PipelineOptions::Balance::kBytes) {
      for (const auto& parameter : Module(child).parameters()) cost += static_cast<double>(parameter->value.bytes());
    } else {
      value.wait();
      const auto start = std::chrono::steady_clock::now();
      value = (*child)(value, own);
      value.wait();
      cost = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    costs.push_back(cost);
  }
  return costs;
}

NDArray PipelineLayer::forward(const NDArray& x, const Context& given) {
  Context context = given;
  context.calls = nullptr;  // the network stands for this layer
  if (!placed_) place_stages(cut(measure(x, context), devices_.size()));
  const std::int64_t parts =
      std::min<std::int64_t>(options_.micro_batches, std::max<std::int64_t>(x.ndim() > 0 ? x.size(0) : 1, 1));
  if (parts == 1) return body_(x, context);
  const Parts inputs = scatter(x, 0, std::vector<Device>(static_cast<std::size_t>(parts), x.device()));
  Parts outputs;
  for (std::int64_t i = 0; i < parts; ++i) {
    Context own = context;
    own.call = call_of_part(context.call, i, parts);
    outputs.push_back(body_(inputs[static_cast<std::size_t>(i)], own));
  }
  return concat(outputs, 0);
}

Pipeline::Pipeline(const Module& net, const std::vector<Device>& devices, const PipelineOptions& options)
    : Module(std::make_shared<PipelineLayer>(net, devices, options)) {}

}  // namespace paceline::nn
