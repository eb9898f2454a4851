#pragma once
// Notes a function's launches while it runs eagerly, and makes a Program of them.

#include "capture/listener.h"
#include "capture/program.h"

#include <unordered_map>
#include <unordered_set>

namespace paceline::detail {

class Recording final : public CaptureListener {
 public:
  explicit Recording(const std::vector<NDArray>& inputs);
  ~Recording();
  Recording(const Recording&) = delete;

  // The noted program, not planned yet, and where each result lies (operands of kInput, kOutput and kFixed blocks).
  // Blocks until the launches are done. The recording ends.
  Program finish(const std::vector<NDArray>& results, std::vector<Operand>& places);

  void created(const Storage& storage) override { made_.insert(&storage); }
  void filled(const NDArray& array) override;
  void launched(const Kernel& kernel, KernelFunction function, References inputs, References outputs,
                const std::shared_ptr<const void>& attributes, const LaunchOptions& options) override;
  [[noreturn]] void refuse(const char* what) override;

 private:
  int block_of(const NDArray& array);
  Operand operand(const NDArray& array);

  Program program_;
  std::vector<std::weak_ptr<Storage>> seen_;  // by block; keeps its address from being used again
  std::unordered_map<const Storage*, int> blocks_;
  std::unordered_set<const Storage*> made_;
  std::unordered_set<int> written_;  // blocks
  std::vector<NDArray> inputs_;
  CaptureListener* const outer_;
};

}  // namespace paceline::detail
