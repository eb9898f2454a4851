#include <paceline/pipeline_iterator.h>

#include "pipeline.h"

namespace paceline {

PipelineIterator::PipelineIterator(std::unique_ptr<io::Pipeline> pipeline) : pipeline_(std::move(pipeline)) {}
PipelineIterator::~PipelineIterator() = default;
bool PipelineIterator::has_source() const { return pipeline_->has_source(); }
bool PipelineIterator::is_dynamic() const { return pipeline_->is_dynamic(); }
void PipelineIterator::deliver_to(Device device) { pipeline_->deliver_to(device); }
void PipelineIterator::start(std::int64_t epoch, const RangeSet& done) { pipeline_->start(epoch, done); }
bool PipelineIterator::next(Batch& batch) { return pipeline_->next(batch); }
bool PipelineIterator::take_over(bool wait) { return pipeline_->take_over(wait); }
std::int64_t PipelineIterator::size() const { return pipeline_->size(); }
std::string PipelineIterator::order() const { return pipeline_->order(); }
Shape PipelineIterator::batch_shape() const { return pipeline_->batch_shape(); }
DType PipelineIterator::batch_dtype() const { return pipeline_->batch_dtype(); }
void PipelineIterator::commit(const Batch& batch) { pipeline_->commit(batch.epoch, batch.positions, batch.note); }
RangeSet PipelineIterator::committed() const { return pipeline_->committed(); }
LoaderTiming PipelineIterator::timing() const { return pipeline_->timing(); }

}  // namespace paceline
