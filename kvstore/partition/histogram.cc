#include <paceline/histogram.h>

#include <cmath>

namespace paceline {

std::int64_t Histogram::count() const {
  std::int64_t total = 0;
  for (const auto& [value, count] : counts_) total += count;
  return total;
}

double Histogram::mean() const {
  const std::int64_t total = count();
  if (total == 0) return 0;
  double sum = 0;
  for (const auto& [value, count] : counts_) sum += static_cast<double>(value) * static_cast<double>(count);
  return sum / static_cast<double>(total);
}

std::int64_t Histogram::quantile(double q) const {
  const auto needed = static_cast<std::int64_t>(std::ceil(q * static_cast<double>(count())));
  std::int64_t seen = 0;
  for (const auto& [value, count] : counts_) {
    seen += count;
    if (seen >= needed) return value;
  }
  return 0;
}

std::string Histogram::text() const {
  std::string text;
  for (const auto& [value, count] : counts_)
    text += (text.empty() ? "" : " ") + std::to_string(value) + ":" + std::to_string(count);
  return text;
}

}  // namespace paceline
