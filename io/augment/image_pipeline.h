#pragma once
// The augmentation steps of ImageOptions::steps, checked and ready to run on images.

#include <paceline/record_loader.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "augment/actions.h"

namespace paceline::io {

// The full list of steps for `options`. random_crop and random_flip become steps. resize() is added where no step gives
// all images one size, and normalize() where images become float32 without it. Throws InvalidArgument where the options
// contradict each other.
std::vector<augment::Step> complete_steps(const ImageOptions& options);

// Threads may share it.
class ImagePipeline {
 public:
  // `size` is that of the examples where the steps do not say otherwise; 0: not known. Throws InvalidArgument for wrong
  // steps, for a wrong order of steps, and where the final size is not known.
  ImagePipeline(const std::vector<augment::Step>& steps, augment::Size size, int channels);

  // The size that every image has after the steps.
  augment::Size size() const { return size_; }
  // Do steps move pixels, so that boxes must move too?
  bool moves() const;
  // The name of a step that devices do not do; empty: they do all.
  const std::string& host_only() const { return host_only_; }
  // The step normalize(); nullptr: pixels stay as they are.
  const CheckedStep* normalize() const { return normalize_.empty() ? nullptr : normalize_.data(); }
  // Those that mix the examples of a batch.
  const std::vector<CheckedStep>& mixing() const { return mixing_; }

  // Runs the steps in front of normalize(). The same seed gives the same random choices.
  void run(Picture& picture, std::uint64_t seed) const;
  // Runs the erase steps that follow normalize() on `planes`, which holds one plane per channel.
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
