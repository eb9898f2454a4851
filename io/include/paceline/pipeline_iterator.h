#pragma once
// What the iterators of the library share.

#include <paceline/data_iterator.h>

#include <cstdint>
#include <memory>
#include <string>

namespace paceline {

namespace io {
class Pipeline;
}

// An iterator that makes its batches ahead, in threads of its own. One thread uses it, but for what says otherwise. The
// memory is bounded by LoaderTiming::prefetch batches and the one that next() handed out last.
//
// Where `decode_threads` of its options is 0, half the core budget (cores.h) make batches at first. There is one thread
// more, up to the whole budget, after 20 ms of which the caller of next() waited a tenth while half a core was idle.
// Where `prefetch` is 0, the threads and two batches more may be ready, at least four.
class PipelineIterator : public DataIterator {
 public:
  ~PipelineIterator() override;

  bool has_source() const final;
  bool is_dynamic() const final;
  void deliver_to(Device device) final;
  void start(std::int64_t epoch, const RangeSet& done = {}) final;
  // As DataIterator::next(). After an error it throws the same error again until the next start().
  bool next(Batch& batch) final;
  bool take_over(bool wait = true) final;
  std::int64_t size() const final;
  std::string order() const final;  // reads arrays in memory when it is first called
  Shape batch_shape() const final;
  DType batch_dtype() const final;
  void commit(const Batch& batch) final;  // thread-safe
  RangeSet committed() const final;       // thread-safe
  LoaderTiming timing() const final;      // not beside start()

 protected:
  // For the iterators of the library alone, which know what a pipeline is.
  explicit PipelineIterator(std::unique_ptr<io::Pipeline> pipeline);

 private:
  std::unique_ptr<io::Pipeline> pipeline_;
};

}  // namespace paceline
