#pragma once
// Class numbers of any element type but bool.

#include <paceline/detail/convert.h>
#include <paceline/kernel.h>

namespace paceline {

// Throws InvalidArgument unless scores are (n, classes >= 1) and labels (n) of a type other than bool.
inline void check_scores(const char* name, const NDArray& scores, const NDArray& labels) {
  require(scores.ndim() == 2, "[", name, "] scores has ", scores.ndim(), " dimensions, expected 2");
  require(scores.size(1) > 0, "[", name, "] scores has shape ", scores.shape(), ", expected at least one class");
  require(labels.shape() == Shape{scores.size(0)}, "[", name, "] labels has shape ", labels.shape(), ", expected ",
          Shape{scores.size(0)});
  require(labels.dtype() != DType::kBool, "[", name, "] labels is bool, expected class numbers");
}

class Labels {
 public:
  // Throws InvalidArgument naming the first label outside [0, classes).
  Labels(const char* name, const Tensor& labels, std::int64_t classes) : labels_(labels) {
    for (std::int64_t i = 0; i < labels.size(); ++i) {
      const std::int64_t label = (*this)[i];
      require(label >= 0 && label < classes, "[", name, "] label ", label, " at position ", i, " is outside [0, ",
              classes, ")");
    }
  }

  std::int64_t operator[](std::int64_t i) const {
    return visit_dtype(labels_.dtype,
                       [&]<class T>(TypeTag<T>) { return detail::convert<std::int64_t>(labels_.as<const T>()[i]); });
  }

 private:
  const Tensor& labels_;
};

}  // namespace paceline
