#pragma once
// The steps of a list, ready to be done to images.

#include <paceline/record_loader.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "augment/actions.h"

namespace paceline::io {

// The list that the options mean: their short form written out, and normalize() where it is missing and images become
// float32. Throws InvalidArgument where they contradict each other.
std::vector<augment::Step> complete_steps(const ImageOptions& options);

// Threads may share it.
class ImagePipeline {
 public:
  // `size` is that of the examples where the steps do not say otherwise; 0: not known. Throws InvalidArgument.
  ImagePipeline(const std::vector<augment::Step>& steps, augment::Size size, int channels);

  // Of every image after the steps.
  augment::Size size() const { return size_; }
  // Do steps move pixels, so that boxes must move too?
  bool moves() const;
  // The name of a step that devices do not do; empty: they do all.
  const std::string& host_only() const { return host_only_; }
  // The step normalize(); nullptr: pixels stay as they are.
  const CheckedStep* normalize() const { return normalize_.empty() ? nullptr : normalize_.data(); }
  // Those that mix the examples of a batch.
  const std::vector<CheckedStep>& mixing() const { return mixing_; }

  // The steps in front of normalize(). The same seed draws the same.
  void run(Picture& picture, std::uint64_t seed) const;
  // Those behind it, on `channels` planes.
  void finish(float* planes, std::uint64_t seed) const;

 private:
  void add(const CheckedStep& step, std::size_t number);

  augment::Size size_;
  augment::Size default_size_;
  int channels_;
  std::string host_only_;
  std::vector<std::unique_ptr<Action>> actions_;
  std::vector<CheckedStep> normalize_;  // none or one
  std::vector<CheckedStep> erasing_;    // behind normalize()
  std::vector<CheckedStep> mixing_;
};

}  // namespace paceline::io
