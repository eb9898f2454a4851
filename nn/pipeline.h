#pragma once
// The layer behind nn::Pipeline, for the Trainer, which runs the parts of a batch in its own order.

#include <paceline/ops.h>
#include <paceline/parallel.h>

namespace paceline::nn {

class PipelineLayer final : public Layer {
 public:
  PipelineLayer(const Module& net, const std::vector<Device>& devices, const PipelineOptions& options);
  // That of a module which is a Pipeline, or null.
  static const PipelineLayer* of(const Module& module);

  // The stages one after the other, for one part of a batch.
  const Module& body() const { return body_; }
  int micro_batches() const { return options_.micro_batches; }

  NDArray forward(const NDArray& x, const Context& context) override;
  std::string kind() const override { return "Pipeline"; }

 private:
  std::vector<double> measure(const NDArray& x, const Context& context) const;
  void place_stages(const std::vector<int>& begins);

  Module body_;
  std::vector<Device> devices_;
  PipelineOptions options_;
  bool placed_ = false;
};

// The number by which dropout draws in a part of a call.
inline NDArray call_of_part(const NDArray& call, std::int64_t part, std::int64_t parts) {
  return parts == 1 || call.is_none() ? call : call * parts + part;
}

// The first of the elements in each run but the first, where `costs` are cut into so many runs that the greatest sum is
// least; elements that cost nothing stay with those before them.
std::vector<int> cut(const std::vector<double>& costs, std::size_t runs);

}  // namespace paceline::nn
