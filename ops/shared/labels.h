#pragma once
// Class numbers of any element type but bool.

#include <paceline/detail/convert.h>
#include <paceline/kernel.h>

#include <limits>
#include <optional>

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
  // Throws InvalidArgument naming the first label that is no whole number in [0, classes), other than `ignored`.
  Labels(const char* name, const Tensor& labels, std::int64_t classes,
         std::optional<std::int64_t> ignored = std::nullopt)
      : labels_(labels), ignored_(ignored) {
    for (std::int64_t i = 0; i < labels.size(); ++i) {
      const std::int64_t label = (*this)[i];
      if ((label < 0 || label >= classes) && label != ignored)
        throw InvalidArgument(str("[", name, "] label ", text(i), " at position ", i, " is outside [0, ", classes, ")",
                                  is_whole(i) ? "" : ": it is no whole number"));
    }
  }

  std::int64_t operator[](std::int64_t i) const {
    return visit_dtype(labels_.dtype, [&]<class T>(TypeTag<T>) {
      const T label = labels_.as<const T>()[i];
      const auto number = detail::convert<std::int64_t>(label);
      // NaN and 1.7 are no classes; as integers they would be classes 0 and 1.
      return detail::convert<T>(number) == label ? number : std::numeric_limits<std::int64_t>::min();
    });
  }

  bool is_ignored(std::int64_t i) const { return ignored_ && (*this)[i] == *ignored_; }

  std::int64_t counted() const {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < labels_.size(); ++i) count += !is_ignored(i);
    return count;
  }

 private:
  bool is_whole(std::int64_t i) const { return (*this)[i] != std::numeric_limits<std::int64_t>::min(); }

  std::string text(std::int64_t i) const {
    return visit_dtype(labels_.dtype, [&]<class T>(TypeTag<T>) {
      using Number = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>;
      return str(static_cast<Number>(labels_.as<const T>()[i]));
    });
  }

  const Tensor& labels_;
  std::optional<std::int64_t> ignored_;
};

}  // namespace paceline
